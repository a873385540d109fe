"""Functions of one number: values at the ends of the range, threads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import run, same_for_any_threads

import aggml
from aggml import DType, Tensor, new_tensor, ops
from aggml.devices.cpu import isas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


Values = np.ndarray[Any, np.dtype[np.float64]]


def _round(x: Values) -> Values:
    y: Values = np.copysign(np.floor(np.abs(x) + 0.5), x)
    return y


def _softplus(x: Values) -> Values:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _hardsigmoid(x: Values) -> Values:
    y: Values = np.fmin(1, np.fmax(0, (x + 3) / 6))
    return y


def _xielu(x: Values) -> Values:
    """xielu with alpha_n 0.5, alpha_p -1, beta 0.25, eps -0.01."""
    n, p = np.log1p(np.exp(0.5)) + 0.25, np.log1p(np.exp(-1.0))
    below = (np.expm1(np.fmin(x, -0.01)) - x) * n + 0.25 * x
    y: Values = np.where(x > 0, p * x * x + 0.25 * x, below)
    return y


EXACT: dict[str, Callable[[Values], Values]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round": _round,
    "trunc": np.trunc,
}
CLOSE: dict[str, Callable[[Values], Values]] = {
    "expm1": np.expm1,
    "softplus": _softplus,
    "hardswish": lambda x: x * _hardsigmoid(x),
    "hardsigmoid": _hardsigmoid,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "xielu": _xielu,
    "leaky_relu": lambda x: np.where(x > 0, x, np.where(x < 0, 0.125 * x, 0)),
    "clamp": lambda x: np.where(np.isnan(x), 1.5, np.clip(x, -0.75, 1.5)),
}
# The relative precision of each type.
EPSILON = {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}


def _apply(name: str, a: Tensor) -> Tensor:
    if name == "xielu":
        return ops.xielu(a, 0.5, -1.0, 0.25, -0.01)
    if name == "leaky_relu":
        return ops.leaky_relu(a, 0.125)
    if name == "clamp":
        return ops.clamp(a, -0.75, 1.5)
    node: Tensor = getattr(ops, name)(a)
    return node


def _arguments(dtype: str) -> tuple[NDArray[Any], Values]:
    """5 x 50 numbers of a type, special ones first, and their values in float64."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, -2.5, 20.0, 20.25, 3.0, -3.0]
    special += [0.49999997, -0.49999997, 8388609.0, -8388609.0, 1e-30, -1e-30, 3e38, 88.5, 90.0]
    rest = np.random.default_rng(1).normal(0.0, 6.0, 250 - len(special))
    x = np.concatenate([special, rest]).astype(np.float32).reshape(5, 50)
    kind = DType.parse(dtype)
    with np.errstate(over="ignore"):  # numbers beyond 65504 overflow f16
        elements = x.astype(kind.numpy)
    return elements, elements.astype(np.float64)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_values_at_the_ends_of_the_range(name: str, dtype: str, backend: aggml.Backend) -> None:
    if dtype == "bf16" and name in {"clamp", "leaky_relu"}:
        with pytest.raises(aggml.Unsupported):
            _apply(name, new_tensor("bf16", ne=(8,)))
        return
    elements, x = _arguments(dtype)
    a = new_tensor(dtype, ne=(50, 5))
    # a view of a part, so that clamp, which works in place, leaves the rest unchanged
    rows = ops.view_2d(a, 50, 4, a.nb[1], 0)
    with np.errstate(all="ignore"):
        expected = {**EXACT, **CLOSE}[name](x)[:4]
        range_of = np.float16 if dtype == "f16" else np.float32  # bf16 has the range of f32
        expected = expected.astype(range_of).astype(np.float64)
    result = run(backend, _apply(name, rows), {a: elements}).astype(np.float64)
    if name in EXACT:
        assert np.array_equal(result, expected, equal_nan=True)
        assert np.array_equal(np.signbit(result), np.signbit(expected))
    else:
        bound = EPSILON[dtype]
        np.testing.assert_allclose(result, expected, rtol=bound, atol=bound * 1e-1)


@pytest.mark.parametrize("name", ["gelu", "gelu_quick", "silu", "relu"])
def test_each_f16_is_the_f32_result_rounded(name: str, backend: aggml.Backend) -> None:
    """All 65,536 numbers, however a kernel computes them: some have a formula of their own."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 256)
    halves, floats = new_tensor("f16", ne=(256, 256)), new_tensor("f32", ne=(256, 256))
    found = run(backend, getattr(ops, name)(halves), {halves: every})
    with np.errstate(all="ignore"):
        wide = run(backend, getattr(ops, name)(floats), {floats: every.astype(np.float32)})
        expected = wide.astype(np.float16)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(found), nan)
    assert np.array_equal(found.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])


@pytest.mark.parametrize("isa", [x for x in isas() if x != "scalar"])
def test_gelu_of_negative_numbers_has_no_tiny_results(isa: str) -> None:
    """Results below 2**-110 are 0.

    On Intel's processors, a product with a subnormal number takes 150 cycles,
    and such a number cannot be split into three bf16 terms.
    """
    device: Any = aggml.get_device("CPU")
    x = np.linspace(-15, -4, 4000, dtype=np.float32).reshape(-1, 400)
    a = new_tensor("f32", ne=(400, 10))
    with device.backend(n_threads=1, isa=isa) as backend:
        found = run(backend, ops.gelu_erf(a), {a: x}).reshape(-1)
    expected = [0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.reshape(-1).tolist()]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-33)
    assert not np.any((found != 0) & (np.abs(found) < 2.0**-110))
    assert np.count_nonzero(found) > 2900  # to -12


@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_threads_do_not_matter(name: str, by_threads: list[aggml.Backend]) -> None:
    x = np.random.default_rng(2).normal(size=(300, 700)).astype(np.float32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a = new_tensor("f32", ne=(700, 300))
        return _apply(name, ops.view_2d(a, 600, 300, a.nb[1], 40)), {a: x}

    result = same_for_any_threads(by_threads, build)
    with np.errstate(invalid="ignore"):
        expected = {**EXACT, **CLOSE}[name](x[:, 10:610].astype(np.float64))
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-6)
