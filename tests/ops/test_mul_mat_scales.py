"""Products of quantized rows with columns of any magnitude, each compared with its exact result.

Columns become bytes with a scale. In ggml that scale is an f16 for types with blocks of 32, so
columns below some 1e-3 become inexact, those below some 1e-6 zero, and those from 8e6 on NaN.

Here: packed weights, rows as they lie, experts. Not here: columns that are not finite
(test_mul_mat_types.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ops.packed import F32, TYPES, Product, floats, quantized

import aggml
from aggml import BufferUsage, Graph, new_tensor, ops

pytestmark = pytest.mark.anyio

M, K = 33, 512
SHARE = 2e-4  # of the power of an exact column: ten times what bytes of 8 bits lose
COLUMNS = (1, 3, 8, 17, 33, 200)  # few, some, many: other kernels


def magnitudes(n: int) -> F32:
    """From 1e-30 to 1e30, and the ends of what an f16 can hold at the first and the last places."""
    ends = np.array([1e-6, 1e-3, 1e5, 1e7, 1e-8, 3e-5], np.float32)
    return np.concatenate([ends, np.logspace(-30, 30, 200, dtype=np.float32)])[:n]


def exact(blocks: Any, dtype: str, x: F32) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = aggml.dequantize(blocks, dtype).astype(np.float64)
    return x.astype(np.float64) @ rows.reshape(-1, x.shape[-1]).T


def assert_near(found: F32, wanted: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    power = np.sum(wanted**2, axis=-1)
    lost = np.sum((found.astype(np.float64) - wanted) ** 2, axis=-1) / power
    assert np.all(lost < SHARE), f"column {np.argmax(lost)} lost {np.max(lost):.2g} of its power"


@pytest.mark.long(cases=23)
@pytest.mark.parametrize("usage", [BufferUsage.WEIGHTS, BufferUsage.ANY])
@pytest.mark.parametrize("dtype", TYPES)
async def test_columns_of_any_magnitude(
    backend: aggml.Backend, dtype: str, usage: BufferUsage
) -> None:
    blocks = quantized(floats(M, K, seed=1), dtype)
    for n in COLUMNS:
        x = floats(n, K, seed=n) * magnitudes(n)[:, None]
        product = Product(backend, dtype, n, usage, M, K)
        await backend.set(product.w, blocks)
        assert_near(await product.run(x), exact(blocks, dtype, x))


@pytest.mark.parametrize("dtype", ["q8_0", "q4_1", "q4_K", "iq2_xs"])
async def test_experts_and_columns_of_any_magnitude(backend: aggml.Backend, dtype: str) -> None:
    experts = 2
    blocks = quantized(floats(experts, M, K, seed=1), dtype)
    for n in COLUMNS:
        x = floats(n, K, seed=n) * magnitudes(n)[:, None]
        w = new_tensor(dtype, ne=(K, M, experts), name="w").set_input()
        columns = new_tensor("f32", ne=(K, 1, n), name="x").set_input()
        ids = new_tensor("i32", ne=(1, n), name="ids").set_input()
        y = ops.mul_mat_id(w, columns, ids)
        graph = Graph(y)
        backend.alloc_graph(graph)
        chosen = np.arange(n, dtype=np.int32)[:, None] % experts
        inputs = {w: blocks, columns: x[:, None], ids: chosen}
        found = np.asarray(await backend.run(graph, inputs, y)).reshape(n, M)
        both = np.stack([exact(blocks[e], dtype, x) for e in range(experts)])
        assert_near(found, both[chosen[:, 0], np.arange(n)])
