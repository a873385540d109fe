"""The gradient of get_rows: that it is the transpose; wrong indices; refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import compute, floats

from aggml import LayoutMismatch, OutOfBounds, new_tensor, ops

if TYPE_CHECKING:
    import aggml


def test_it_is_the_transpose_of_get_rows(any_backend: aggml.Backend) -> None:
    table, ids = new_tensor("f32", ne=(600, 5)), new_tensor("i32", ne=(7,))
    grad, like = new_tensor("f32", ne=(600, 7)), new_tensor("f32", ne=(600, 5))
    x, g = floats(5, 600, seed=1), floats(7, 600, seed=2)
    at = np.array([4, 0, 4, 2, 2, 2, 1], np.int32)
    expected = np.zeros((5, 600))
    np.add.at(expected, at, g)
    actual = compute(any_backend, ops.get_rows_back(grad, ids, like), {grad: g, ids: at})
    assert np.allclose(actual[0, 0], expected, atol=1e-5)
    rows = compute(any_backend, ops.get_rows(table, ids), {table: x, ids: at})
    assert np.vdot(rows, g) == pytest.approx(np.vdot(x, actual), rel=1e-5)


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_out_of_range_fails(index: int, any_backend: aggml.Backend) -> None:
    grad, ids, like = (new_tensor(t, ne=ne) for t, ne in _OPERANDS)
    node = ops.get_rows_back(grad, ids, like)
    values = {grad: floats(2, 4, seed=1), ids: np.array([0, index], np.int32)}
    with pytest.raises(OutOfBounds, match=f"index {index} at position 1"):
        compute(any_backend, node, values)


_OPERANDS = [("f32", (4, 2)), ("i32", (2,)), ("f32", (4, 5))]


def test_refused() -> None:
    grad, ids, like = (new_tensor(t, ne=ne) for t, ne in _OPERANDS)
    with pytest.raises(LayoutMismatch):
        ops.get_rows_back(like, ids, grad)
