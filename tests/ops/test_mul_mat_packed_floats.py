"""Products of weights of f32, f16 and bf16 that are packed: for matrix tiles, or bf16 in lanes.

Not here: quantized weights, writes to weights, limits of memory (test_mul_mat_packed.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.packed import (
    BF16_FROM,
    PACKS_BF16,
    TILES,
    TILES_OF_BF16,
    K,
    M,
    Product,
    device,
    floats,
    most_packed,
    nmse,
)

import aggml
from aggml import BufferUsage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def backend() -> AsyncIterator[aggml.Backend]:
    async with device().backend(n_threads=2) as backend:
        yield backend


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("m", "k", "n"), [(M, K, 32), (100, 7, 70), (301, 557, 45)])
async def test_panels_are_kept_for_many_columns(
    backend: aggml.Backend, dtype: str, m: int, k: int, n: int
) -> None:
    """Panels are the layout that matrix tiles read. Kept ones give the bits of temporary ones."""
    x, old, new = floats(n, k, seed=3), floats(m, k, seed=4), floats(m, k, seed=5)
    new[m - 1, k - 1] = np.inf  # a number that is no sum of bf16 terms
    kept = Product(backend, dtype, n, BufferUsage.WEIGHTS, m, k)
    made = Product(backend, dtype, n, BufferUsage.ANY, m, k)
    for weights in (old, new):
        held: Any = weights.astype(np.float16 if dtype == "f16" else np.float32)
        if dtype == "bf16":
            held = aggml.quantize(weights, dtype).view(np.uint16)
        for product in (kept, made):
            await backend.set(product.w, held)
        found, expected = await kept.run(x), await made.run(x)
        in_lanes = (
            PACKS_BF16 and not TILES and dtype == "bf16" and k % 32 == 0 and n <= most_packed(dtype)
        )
        assert (kept.packed, made.packed) == (TILES_OF_BF16 or in_lanes, 0)
        if not in_lanes:  # it rounds columns, and adds up in another order than a panel
            assert np.array_equal(found, expected, equal_nan=True)
        assert nmse(found[:, :-1], x @ weights[:-1].T) < 1e-4


@pytest.mark.parametrize("k", [32, 96, 1056])
async def test_weights_of_bf16_are_packed_from_some_columns_on(
    backend: aggml.Backend, k: int
) -> None:
    """From 5 on with AVX-512 on AMD's CPUs, from 3 on with AVX2. Elsewhere they are not packed."""
    x = floats(49, k, seed=9)
    held = aggml.quantize(floats(M, k, seed=10), "bf16").view(np.uint16)
    weights = (held.astype(np.uint32) << 16).view(np.float32).reshape(M, k)
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 48, 49):
        product = Product(backend, "bf16", n, BufferUsage.WEIGHTS, M, k)
        await backend.set(product.w, held)
        found = await product.run(x[:n])
        if PACKS_BF16:
            assert product.packed == (BF16_FROM <= n <= most_packed("bf16"))
        assert nmse(found, x[:n] @ weights.T) < 1e-5  # the kernel may round the columns to bf16
