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


@pytest.mark.parametrize("swapped", [False, True])
def test_an_odd_row_has_no_halves(swapped: bool) -> None:
    a = new_tensor("f32", ne=(67, 40), name="a")
    with pytest.raises(aggml.LayoutMismatch, match=r"\[reglu\] .*67 is odd.*a f32 \[67, 40\]"):
        ops.glu(a, "reglu", swapped)


@pytest.mark.parametrize("gate", ["reglu", "swiglu"])
def test_a_result_that_takes_half_an_l3(gate: str, any_backend: aggml.Backend) -> None:
    ne = (4097, 1024)
    x, y = np.random.default_rng(8).normal(size=(2, 1024, 4097)).astype(np.float32)
    a, b = new_tensor("f32", ne=ne), new_tensor("f32", ne=ne)
    found = compute(any_backend, getattr(ops, f"{gate}_split")(a, b), {a: x, b: y})
    f = np.maximum(x, 0) if gate == "reglu" else x / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(found.reshape(x.shape), f * y, rtol=2e-6, atol=1e-7)
