"""Linear systems: many columns, zeros on the diagonal, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.computing import compute, floats

from aggml import InvalidArgument, LayoutMismatch, new_tensor, ops

if TYPE_CHECKING:
    import aggml


def test_many_columns(any_backend: aggml.Backend) -> None:
    a, b = new_tensor("f32", ne=(70, 70, 2)), new_tensor("f32", ne=(45, 70, 2))
    x = np.tril(floats(2, 70, 70, seed=1)) * 0.1 + 2 * np.eye(70, dtype=np.float32)
    y = floats(2, 70, 45, seed=2)
    result = compute(any_backend, ops.solve_tri(a, b), {a: x, b: y})[0]
    assert np.allclose(x @ result, y, atol=1e-4)


def test_a_zero_on_the_diagonal_fails(any_backend: aggml.Backend) -> None:
    a, b = new_tensor("f32", ne=(3, 3, 2)), new_tensor("f32", ne=(2, 3, 2))
    x = np.stack([np.eye(3, dtype=np.float32)] * 2)
    x[1, 2, 2] = 0
    with pytest.raises(InvalidArgument, match="element 2 of the diagonal of matrix 1 is 0"):
        compute(any_backend, ops.solve_tri(a, b), {a: x, b: np.ones((2, 3, 2), np.float32)})


def test_refused() -> None:
    a, b = new_tensor("f32", ne=(3, 3)), new_tensor("f32", ne=(2, 4))
    with pytest.raises(LayoutMismatch):
        ops.solve_tri(a, b)
