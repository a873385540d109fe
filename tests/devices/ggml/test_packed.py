"""Weights in a format that the library packs for its kernels (CPU_REPACK): results and refusals.

Not here: plain memory (test_conformance.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from devices.ggml import builds

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    from aggml.devices.ggml.packed import PackedType

N, ROWS = 256, 64


def packed() -> PackedType:
    """The packed format of ggml's CPU."""
    found = builds.device("CPU").packed_buffer_types
    if not found:
        pytest.skip("this build of ggml-cpu packs no weights on this processor")
    return found[0]


def _weights(dtype: str) -> tuple[aggml.Tensor, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    values = np.random.default_rng(1).standard_normal((ROWS, N)).astype(np.float32)
    return aggml.new_tensor(dtype, ne=(N, ROWS)), aggml.quantize(values, dtype)


@pytest.mark.parametrize("dtype", ["q4_0", "q4_K"])
async def test_a_product_of_packed_weights(dtype: str) -> None:
    kind = packed()
    rows = np.random.default_rng(2).standard_normal((5, N)).astype(np.float32)
    got = []
    async with builds.device("CPU").backend(n_threads=2) as be:
        for buffer_type in (be.device.buffer_type, kind):
            w, raw = _weights(dtype)
            x = aggml.new_tensor("f32", ne=(N, 5))
            y = ops.mul_mat(w, x)
            graph = Graph(y)
            memory = buffer_type.alloc_tensors([w])
            be.alloc([x])
            be.alloc_graph(graph)
            await be.set(w, raw)
            got.append(await be.run(graph, {x: rows}, y))
            assert memory.size
    plain, found = got
    assert float(np.sum((found - plain) ** 2) / np.sum(plain**2)) < 1e-10


async def test_packed_weights_are_not_read_back_nor_filled() -> None:
    kind = packed()
    w, raw = _weights("q4_0")
    memory = kind.alloc_tensors([w])
    async with builds.device("CPU").backend(n_threads=2) as be:
        await be.set(w, raw)
        with pytest.raises(aggml.Unsupported, match="not read back"):
            await be.get(w)
        with pytest.raises(aggml.Unsupported, match="written whole"):
            await be.memset(w, 0)
        assert memory.size


async def test_ops_that_do_not_know_the_format_are_refused() -> None:
    kind = packed()
    w, _ = _weights("q4_0")
    memory = kind.alloc_tensors([w])
    rows = aggml.new_tensor("i32", ne=(2,))
    graph = Graph(ops.get_rows(w, rows))
    async with builds.device("CPU").backend(n_threads=2) as be:
        be.alloc([rows])
        be.alloc_graph(graph)
        with pytest.raises(aggml.Unsupported, match="does not run"):
            be.graph_compute(graph)
    assert memory.size


def test_types_that_are_not_packed_are_refused() -> None:
    kind = packed()
    plain = aggml.new_tensor("f32", ne=(N, ROWS))
    with pytest.raises(aggml.Unsupported, match="the library cannot pack"):
        kind.alloc_tensors([plain])
    assert plain.placement is None
