"""set_rows: rows written into a tensor of integers."""

from __future__ import annotations

import numpy as np
import pytest
from ops.computing import compute

import aggml
from aggml import new_tensor, ops


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_rows_put_among_integers_are_truncated(kind: str, any_backend: aggml.Backend) -> None:
    a, b = new_tensor("i32", ne=(5, 4)), new_tensor(kind, ne=(5, 2))
    c = new_tensor("i64", ne=(2,))
    rows = np.array([[1.9, -1.9, 0, np.nan, np.inf], [7, -7.5, 0.5, 2048, -np.inf]])
    table = np.arange(20, dtype=np.int32).reshape(4, 5)
    values = {a: table, b: rows.astype(aggml.DType.parse(kind).numpy), c: np.array([3, 1])}
    expected = table.copy()
    least = np.iinfo(np.int32).min
    expected[3], expected[1] = [1, -1, 0, least, least], [7, -7, 0, 2048, least]
    found = compute(any_backend, ops.set_rows(a, b, c), values)
    assert np.array_equal(found.reshape(4, 5), expected)
