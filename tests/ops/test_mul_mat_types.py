"""mul_mat of quantized rows: every type, few and many columns, against numpy on floats of the rows.

Not here: the recorded calls (test_recorded.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from corpus_loader import nmse, type_table
from ops.computing import compute

import aggml
from aggml import DType, new_tensor, ops

TYPES = [row["name"] for row in type_table() if row["is_quantized"] and row["vec_dot_type"]]
# The error of rounding columns to 8 bits per 32 elements. It is 3e-5 for normally distributed
# columns.
BOUND = 1e-4


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 8, 9, 40, 70])
def test_against_numpy(type_name: str, columns: int, backend: aggml.Backend) -> None:
    dtype = DType.parse(type_name)
    # Kernels take 64 elements of k at a time, and rows in pairs: here half of that and one row are
    # left over. Panels, for many columns, have 32 rows.
    k, rows = 736 if dtype.blck_size == 32 else 768, 5 if columns < 40 else 37
    rng = np.random.default_rng(columns)
    # Groups of 16 elements differ much in size, so that using a wrong scale would be noticed.
    weights = rng.standard_normal((rows, k), np.float32) * (1 + np.arange(k) // 16 % 5)
    blocks = aggml.quantize(weights.astype(np.float32), dtype, np.ones(k, np.float32))
    x = rng.standard_normal((columns, k), np.float32) * (1 + np.arange(k) // 32 % 3)
    x = x.astype(np.float32)
    a, b = new_tensor(dtype, ne=(k, rows)), new_tensor("f32", ne=(k, columns))

    found = compute(backend, ops.mul_mat(a, b), {a: blocks, b: x})

    read = aggml.dequantize(blocks, dtype, ne=(k, rows)).astype(np.float64)
    assert nmse(x.astype(np.float64) @ read.T, found.astype(np.float64)) <= BOUND


@pytest.mark.parametrize("columns", [1, 8, 33, 200])
def test_rows_of_one_scale(columns: int, backend: aggml.Backend) -> None:
    """Kernels may leave a scale that all blocks of a row share out of their loops."""
    k, rows = 736, 101  # three panels and a part of one; two blocks of k and a part of one
    rng = np.random.default_rng(columns)
    weights = rng.standard_normal((rows, k), np.float32)
    weights *= np.arange(1, rows + 1, dtype=np.float32)[:, None]
    shared = aggml.quantize(weights, "q8_0").reshape(rows, -1, DType.Q8_0.type_size)
    shared[:40, :, :2] = shared[:40, :1, :2]  # all of the first panel, eight rows of the second
    shared[96:, :8, :2] = shared[96:, :1, :2]  # of the last the first block of k only
    x = rng.standard_normal((columns, k), np.float32)
    a, b = new_tensor("q8_0", ne=(k, rows)), new_tensor("f32", ne=(k, columns))

    found = compute(backend, ops.mul_mat(a, b), {a: shared.reshape(rows, -1), b: x})

    read = aggml.dequantize(shared.reshape(rows, -1), "q8_0").astype(np.float64)
    assert nmse(x.astype(np.float64) @ read.T, found.astype(np.float64)) <= BOUND
