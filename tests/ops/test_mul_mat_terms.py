"""mul_mat of many columns: accuracy, odd shapes, numbers that are no sum of bf16 terms, threads.

Not here: the recorded calls (test_recorded.py), quantized rows (test_mul_mat_types.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from corpus_loader import nmse
from ops.computing import compute, floats

import aggml
from aggml import DType, new_tensor, ops

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

# Terms are the bf16 numbers of which a float is the sum. f32 is computed by six products of terms,
# as exactly as by f32 sums. f16 takes three products, each with an error of 2^-16. For bf16 the
# columns are rounded, too.
BOUND = {"f32": 2e-12, "f16": 1e-9, "bf16": 1e-5}


def product(backend: aggml.Backend, dtype: str, a: Array, b: Array) -> tuple[Array, Array]:
    """The backend's product, and that of float64."""
    held = aggml.quantize(a, DType.parse(dtype)) if dtype == "bf16" else a.astype(np.float16)
    read = aggml.dequantize(held, DType.BF16, ne=a.shape[::-1]) if dtype == "bf16" else held
    left = new_tensor(dtype, ne=a.shape[::-1])
    right = new_tensor("f32", ne=b.shape[::-1])
    values = {"f32": a, "f16": held, "bf16": held.view(np.uint16)}[dtype]
    found = compute(backend, ops.mul_mat(left, right), {left: values, right: b})
    exact = a if dtype == "f32" else read.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = b.astype(np.float64) @ exact.astype(np.float64).T
    return found[0, 0], expected


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(16, 32, 32), (97, 301, 70), (300, 557, 33), (40, 7, 49), (97, 301, 205), (19, 128, 527)],
)
def test_accuracy(dtype: str, m: int, k: int, n: int, backend: aggml.Backend) -> None:
    found, expected = product(backend, dtype, floats(m, k, seed=m), floats(n, k, seed=n))
    assert nmse(expected, found.astype(np.float64)) <= BOUND[dtype]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e-38, 1e-42])
def test_numbers_without_terms(
    dtype: str, where: str, value: float, backend: aggml.Backend
) -> None:
    # An infinity must give NaN only where it meets a 0, not through the lower terms of the numbers
    # that it meets.
    a, b = floats(70, 300, seed=1), floats(65, 300, seed=2)
    a[a == 0], b[b == 0] = 1, 1
    target = a if where == "a" else b
    if np.isfinite(value):  # one row of tiny numbers, and large numbers in the other matrix
        target[17] = np.float32(value) * (1 + np.arange(300) % 7)
        (b if where == "a" else a)[:] *= np.float32(1e3)
    else:
        target[17, 5] = value
    found, expected = product(backend, dtype, a, b)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.array_equal(np.isinf(found), np.isinf(expected))
    row = found[:, 17] if where == "a" else found[17]
    exact = expected[:, 17] if where == "a" else expected[17]
    # f16 cannot represent these numbers
    if np.isfinite(value) and not (dtype == "f16" and where == "a"):
        assert nmse(exact, row.astype(np.float64)) <= 1e-6
    ordinary = np.isfinite(expected)
    assert nmse(expected[ordinary], found[ordinary].astype(np.float64)) <= BOUND[dtype]


@pytest.mark.parametrize("largest", [1.0, 2e-29, 1e-32, 0.0])
def test_tiny_numbers_beside_others(largest: float, backend: aggml.Backend) -> None:
    """As after a gelu: numbers that are no sum of terms; they matter where all others are tiny."""
    a, b = floats(70, 300, seed=1), floats(65, 300, seed=2)
    b[::2] *= np.float32(largest)
    b[::2, ::3] = np.float32(1e-36) * (1 + np.arange(100) % 7)
    found, expected = product(backend, "f32", a, b)
    for column, exact in zip(found, expected, strict=True):
        assert nmse(exact, column.astype(np.float64)) <= BOUND["f32"]


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_K", "iq2_xxs"])
def test_threads_change_nothing(dtype: str, by_threads: list[aggml.Backend]) -> None:
    a, b = new_tensor(dtype, ne=(768, 200, 2)), new_tensor("f32", ne=(768, 530, 4))
    weights = floats(400, 768, seed=3)
    held: Array = weights
    if dtype not in {"f32", "f16"}:
        held = aggml.quantize(weights, DType.parse(dtype), np.ones(768, np.float32))
    if dtype == "f16":
        held = weights.astype(np.float16)
    values = {a: held.view(np.uint16) if dtype == "bf16" else held, b: floats(4, 530, 768, seed=4)}
    values[a] = values[a].reshape(2, 200, -1)
    one, *others = (compute(backend, ops.mul_mat(a, b), values) for backend in by_threads)
    for other in others:
        assert np.array_equal(one, other)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_what_is_fused_with_the_product_is_done(dtype: str, backend: aggml.Backend) -> None:
    weights, x = floats(300, 96, seed=5), floats(2, 600, 96, seed=6)
    bias, residual = floats(300, seed=7), floats(2, 600, 300, seed=8)
    held = weights.astype(np.float16) if dtype == "f16" else weights
    a, b = new_tensor(dtype, ne=(96, 300)), new_tensor("f32", ne=(96, 600, 2))
    c, d = new_tensor("f32", ne=(300,)), new_tensor("f32", ne=(300, 600, 2))
    node = ops.add(ops.relu(ops.add(ops.mul_mat(a, b), c)), d)
    found = compute(backend, node, {a: held, b: x, c: bias, d: residual})
    exact = np.maximum(x.astype(np.float64) @ held.astype(np.float64).T + bias, 0) + residual
    assert nmse(exact.astype(np.float64), found[0].astype(np.float64)) <= BOUND[dtype]


def _two_products(
    weights: tuple[aggml.Tensor, aggml.Tensor],
    x: aggml.Tensor,
    bias: aggml.Tensor,
    act: str,
    *,
    watched: bool,
) -> aggml.Tensor:
    """The second product of a bias and a function of the first, which is stored if watched."""
    y = ops.add(ops.mul_mat(weights[0], x), bias)
    if act:
        y = getattr(ops, act)(y)
    if watched:
        y.set_output()
    return ops.mul_mat(weights[1], y)


@pytest.mark.parametrize("act", ["", "relu", "gelu_erf"])
@pytest.mark.parametrize(
    ("k", "middle", "n"), [(64, 96, 64), (40, 72, 33), (64, 1056, 70), (300, 560, 513)]
)
def test_columns_that_only_the_next_product_reads(
    act: str, k: int, middle: int, n: int, fusing: aggml.Backend
) -> None:
    # Such columns need not be stored as floats. The results stay the same; with gelu_erf they are
    # rounded once more.
    first, second = floats(middle, k, seed=1), floats(50, middle, seed=2)
    a, b = new_tensor("bf16", ne=(k, middle)), new_tensor("bf16", ne=(middle, 50))
    x, bias = new_tensor("f32", ne=(k, n)), new_tensor("f32", ne=(middle,))
    values: dict[aggml.Tensor, Array] = {
        a: aggml.quantize(first, DType.BF16).view(np.uint16),
        b: aggml.quantize(second, DType.BF16).view(np.uint16),
        x: floats(n, k, seed=3),
        bias: 4 * floats(middle, seed=4),
    }

    found, expected = (
        compute(fusing, _two_products((a, b), x, bias, act, watched=watched), values)
        for watched in (False, True)
    )
    if act == "gelu_erf":
        assert nmse(expected, found) <= 1e-6  # the error of bf16 columns themselves is 1e-5
    else:
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("act", ["", "relu", "gelu_erf"])
@pytest.mark.parametrize("second", ["f32", "f16", "bf16", "q8_0", "nvfp4", "q4_K"])
@pytest.mark.parametrize("first", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize(("k", "middle", "n"), [(64, 256, 64), (320, 512, 515)])
def test_columns_in_the_form_of_the_next_product(
    first: str, second: str, act: str, k: int, middle: int, n: int, fusing: aggml.Backend
) -> None:
    a, b = new_tensor(first, ne=(k, middle)), new_tensor(second, ne=(middle, 64))
    x, bias = new_tensor("f32", ne=(k, n)), new_tensor("f32", ne=(middle,))
    values: dict[aggml.Tensor, Array] = {
        a: _held(floats(middle, k, seed=1), first),
        b: _held(floats(64, middle, seed=2), second),
        x: floats(n, k, seed=3),
        bias: 4 * floats(middle, seed=4),
    }

    found, expected = (
        compute(fusing, _two_products((a, b), x, bias, act, watched=watched), values)
        for watched in (False, True)
    )
    if act == "gelu_erf":  # rounded once more where columns are bf16 or bytes
        assert nmse(expected, found) <= 1e-6
    else:
        assert np.array_equal(found, expected)


def _held(values: Array, dtype: str) -> Array:
    if dtype == "f32":
        return values
    if dtype == "f16":
        return values.astype(np.float16)
    held: Array = aggml.quantize(values, DType.parse(dtype))
    return held.view(np.uint16) if dtype == "bf16" else held


@pytest.mark.parametrize("gate", ["swiglu_split", "geglu_split", "geglu_erf_split", "reglu_split"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0", "q4_K"])
@pytest.mark.parametrize(("k", "m", "n"), [(256, 96, 64), (256, 50, 33), (512, 560, 515)])
def test_a_gated_unit_behind_a_product(
    dtype: str, gate: str, first: bool, k: int, m: int, n: int, fusing: aggml.Backend
) -> None:
    a, x, other = (
        new_tensor(t, ne=ne) for t, ne in ((dtype, (k, m)), ("f32", (k, n)), ("f32", (m, n)))
    )
    values: dict[aggml.Tensor, Array] = {
        a: _held(floats(m, k, seed=1), dtype),
        x: floats(n, k, seed=3),
        other: floats(n, m, seed=4),
    }

    def value(*, watched: bool) -> Array:
        y = ops.mul_mat(a, x)
        if watched:
            y.set_output()
        pair = (other, y) if first else (y, other)
        return compute(fusing, getattr(ops, gate)(*pair), values)

    assert np.array_equal(value(watched=False), value(watched=True))


@pytest.mark.parametrize(
    ("k", "m", "n"), [(64, 96, 64), (40, 50, 33), (300, 560, 513), (64, 48, 5)]
)
def test_a_product_that_is_only_wanted_in_bf16(
    k: int, m: int, n: int, fusing: aggml.Backend
) -> None:
    a, x, bias = (
        new_tensor(t, ne=ne) for t, ne in (("bf16", (k, m)), ("f32", (k, n)), ("f32", (m,)))
    )
    values: dict[aggml.Tensor, Array] = {
        a: aggml.quantize(floats(m, k, seed=1), DType.BF16).view(np.uint16),
        x: floats(n, k, seed=3),
        bias: floats(m, seed=4),
    }

    def value(*, watched: bool) -> Array:
        y = ops.relu(ops.add(ops.mul_mat(a, x), bias))
        if watched:
            y.set_output()
        return compute(fusing, ops.cast(y, "bf16"), values)

    assert np.array_equal(value(watched=False).view(np.uint16), value(watched=True).view(np.uint16))
