"""Gated units: rows with gaps, odd rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import compute, same_for_any_threads

import aggml
from aggml import Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray


@pytest.mark.parametrize(("alpha", "limit"), [(1.702, 7.0), (0.5, 0.0), (2.0, 1.5)])
def test_swiglu_oai_of_rows_apart(
    alpha: float, limit: float, by_threads: list[aggml.Backend]
) -> None:
    x, y = 5 * np.random.default_rng(1).normal(size=(2, 200, 120)).astype(np.float32)

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        a, b = new_tensor("f32", ne=(120, 200)), new_tensor("f32", ne=(120, 200))
        part = ops.view_2d(b, 100, 200, b.nb[1], 4)
        node = ops.swiglu_oai(ops.view_2d(a, 100, 200, a.nb[1], 80), part, alpha, limit)
        return node, {a: x, b: y}

    v = np.minimum(x[:, 20:].astype(np.float64), limit)
    w = np.clip(y[:, 1:101].astype(np.float64), -limit, limit)
    result = same_for_any_threads(by_threads, build)
    np.testing.assert_allclose(result, v / (1 + np.exp(-alpha * v)) * (w + 1), rtol=2e-6, atol=1e-6)


def _limited(x: NDArray[Any], y: NDArray[Any], limit: float) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        v = np.minimum(x.astype(np.float64), limit)  # NaN stays NaN
        found: NDArray[np.float64] = (
            v / (1 + np.exp(-v)) * np.clip(y.astype(np.float64), -limit, limit)
        )
        return found


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("limit", [0.0, 1.5, 7.0, float("inf")])
@pytest.mark.parametrize("halves", [False, True])
def test_swiglu_clamp_is_silu_of_a_limited_gate_times_a_limited_value(
    dtype: str, limit: float, halves: bool, by_threads: list[aggml.Backend]
) -> None:
    numpy = np.float16 if dtype == "f16" else np.float32
    x, y = (4 * np.random.default_rng(2).normal(size=(2, 90, 37))).astype(numpy)
    x[:3, 0], y[:3, 1] = np.nan, np.nan

    def build() -> tuple[Tensor, Mapping[Tensor, NDArray[Any]]]:
        if halves:
            a = new_tensor(dtype, ne=(74, 90))
            return ops.swiglu_clamp(a, None, limit), {a: np.concatenate([x, y], axis=1)}
        a, b = new_tensor(dtype, ne=(37, 90)), new_tensor(dtype, ne=(37, 90))
        return ops.swiglu_clamp(a, b, limit), {a: x, b: y}

    result = same_for_any_threads(by_threads, build)
    bound = 1e-3 if dtype == "f16" else 2e-6
    expected = _limited(x, y, limit)
    assert np.isnan(expected[:3, :2]).all()
    np.testing.assert_allclose(
        result.astype(np.float64).reshape(x.shape), expected, rtol=bound, atol=bound
    )


def test_swiglu_oai_takes_the_halves_of_a_row_and_keeps_nan(any_backend: aggml.Backend) -> None:
    x, y = (4 * np.random.default_rng(3).normal(size=(2, 9, 21))).astype(np.float32)
    x[0, 0], y[1, 1] = np.nan, np.nan
    a = new_tensor("f32", ne=(42, 9))
    found = compute(any_backend, ops.swiglu_oai(a), {a: np.concatenate([x, y], axis=1)})
    v, w = np.minimum(x.astype(np.float64), 7), np.clip(y.astype(np.float64), -7, 7)
    expected = v / (1 + np.exp(-1.702 * v)) * (w + 1)
    assert np.isnan(expected).sum() == 2
    np.testing.assert_allclose(found.reshape(x.shape), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("builder", [ops.swiglu_clamp, ops.swiglu_oai])
@pytest.mark.parametrize("limit", [-1.0, float("nan"), float("-inf"), 1e39, "7", None])
def test_a_limit_is_a_number_that_is_not_negative(builder: Any, limit: Any) -> None:
    a = new_tensor("f32", ne=(4, 2), name="a")
    with pytest.raises(aggml.InvalidArgument, match=r"^\[swiglu_\w+\] "):
        builder(a, a, limit=limit)


def test_operands_of_swiglu_clamp_have_one_type_and_shape() -> None:
    a = new_tensor("f32", ne=(4, 2), name="a")
    with pytest.raises(aggml.LayoutMismatch, match=r"^\[swiglu_clamp\] a and b"):
        ops.swiglu_clamp(a, new_tensor("f32", ne=(4, 3)), 1.0)
    with pytest.raises(aggml.LayoutMismatch, match=r"^\[swiglu_clamp\] a and b"):
        ops.swiglu_clamp(a, new_tensor("f16", ne=(4, 2)), 1.0)
    with pytest.raises(aggml.Unsupported, match=r"^\[swiglu_clamp\] .*bf16"):
        ops.swiglu_clamp(new_tensor("bf16", ne=(4, 2)), None, 1.0)
    with pytest.raises(aggml.LayoutMismatch, match="5 is odd"):
        ops.swiglu_clamp(new_tensor("f32", ne=(5, 2)), None, 1.0)
    with pytest.raises(aggml.InvalidHandle, match="b is no tensor: 3"):
        ops.swiglu_clamp(a, 3, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("swapped", [False, True])
def test_an_odd_row_has_no_halves(swapped: bool) -> None:
    a = new_tensor("f32", ne=(67, 40), name="a")
    with pytest.raises(aggml.LayoutMismatch, match=r"\[reglu\] .*67 is odd.*a f32 \[67, 40\]"):
        ops.glu(a, "reglu", swapped)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("gate", ["reglu", "swiglu"])
def test_a_result_that_takes_half_an_l3(gate: str, any_backend: aggml.Backend) -> None:
    ne = (4097, 1024)
    x, y = np.random.default_rng(8).normal(size=(2, 1024, 4097)).astype(np.float32)
    a, b = new_tensor("f32", ne=ne), new_tensor("f32", ne=ne)
    found = compute(any_backend, getattr(ops, f"{gate}_split")(a, b), {a: x, b: y})
    f = np.maximum(x, 0) if gate == "reglu" else x / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(found.reshape(x.shape), f * y, rtol=2e-6, atol=1e-7)
