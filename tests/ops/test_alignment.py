"""Operands that begin at any element give the bits of aligned ones: all types, instruction sets.

Here: leafs in memory of the caller, products and conversions of them. Not here: which memory is
accepted (tensor/test_exchange.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ops.computing import floats

import aggml
from aggml import DType, Graph, ops

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]
K, ROWS = 512, 48


def placed(
    x: Array,
    dtype: DType,
    ne: tuple[int, ...],
    offset: int,
    usage: aggml.BufferUsage = aggml.BufferUsage.ANY,
) -> aggml.Tensor:
    """A tensor with these contents that begins ``offset`` bytes after a multiple of 256."""
    room = aggml.empty(x.nbytes + offset, np.uint8)
    room[offset:] = x.reshape(-1).view(np.uint8)
    tensor = aggml.new_tensor(dtype, ne)
    # buffer_from_host refuses memory at an odd address, which is mostly a mistake. The buffer
    # begins one byte before it.
    odd = offset % 2
    buffer = aggml.get_device("CPU").buffer_from_host(room[offset - odd :])
    buffer.place(tensor, odd)
    buffer.usage = usage
    assert tensor.address is not None
    assert tensor.address % 256 == offset
    return tensor


def blocks(dtype: DType, seed: int) -> Array:
    x = np.random.default_rng(seed).normal(size=(ROWS, K)).astype(np.float32)
    if dtype.numpy is not None:
        return (8 * x).astype(dtype.numpy)
    weights = np.ones(K, np.float32)
    return aggml.quantize(x, dtype, weights)


def results(be: aggml.Backend, make: Callable[[int], list[aggml.Tensor]]) -> list[list[Array]]:
    """The nodes' results for operands at a multiple of 256 bytes, and one element beyond it."""
    found = []
    for far in (0, 1):
        ends = make(far)
        graph = Graph(*ends)
        be.alloc_graph(graph)
        run = be.run(graph, None, ends)
        assert run.wait(60)
        found.append(run.result())
    return found


def same(found: list[list[Array]]) -> None:
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@pytest.mark.parametrize("usage", [aggml.BufferUsage.ANY, aggml.BufferUsage.WEIGHTS])
@pytest.mark.parametrize(
    "dtype", [t for t in DType if t not in {DType.Q8_1, DType.Q8_K}], ids=lambda t: t.type_name
)
def test_weights_may_begin_at_any_block(
    backend: aggml.Backend, dtype: DType, usage: aggml.BufferUsage
) -> None:
    """Rows, products with 1, 5 and 40 columns, and conversions give the same bits."""
    data = blocks(dtype, 1)

    def make(far: int) -> list[aggml.Tensor]:
        w = placed(data, dtype, (K, ROWS), far * dtype.alignment, usage)
        if dtype in {DType.I8, DType.I16, DType.I64, DType.F64}:
            return [ops.cont(ops.view_2d(w, K // 2, ROWS, w.nb[1], dtype.type_size))]
        rows = placed(np.array([3, 1, 47, 3], np.int32), DType.I32, (4,), far * 4)
        ends = [ops.get_rows(w, rows)]
        if dtype is DType.I32:
            return ends
        for n in (1, 5, 40):
            x = placed(floats(n, K, seed=n), DType.F32, (K, n), far * 4)
            ends.append(ops.mul_mat(w, x))
        return [*ends, ops.cast(w, "f32")]

    same(results(backend, make))


def test_activations_may_begin_at_any_element(backend: aggml.Backend) -> None:
    """Kernels that read and write vectors: sums, norms, soft_max, rope, attention, copies."""

    def make(far: int) -> list[aggml.Tensor]:
        def leaf(seed: int, *shape: int, dtype: str = "f32") -> aggml.Tensor:
            kind = DType.parse(dtype)
            x = floats(*shape, seed=seed).astype(kind.numpy)
            return placed(x, kind, shape[::-1], far * kind.alignment)

        x, y = leaf(1, 3, 5, 67), leaf(2, 3, 5, 67)
        h = leaf(3, 3, 5, 67, dtype="f16")
        q = leaf(4, 4, 9, 64)
        k, v = leaf(5, 2, 33, 64, dtype="f16"), leaf(6, 2, 33, 64, dtype="f16")
        pos = placed(np.arange(4, dtype=np.int32), DType.I32, (4,), far * 4)
        return [
            ops.add(x, y),
            ops.mul(x, y),
            ops.add(h, y),
            ops.silu(x),
            ops.rms_norm(x, 1e-5),
            ops.soft_max(x),
            ops.sum_rows(x),
            ops.cont(ops.permute(x, 2, 0, 1, 3)),
            ops.cast(h, "f32"),
            ops.cast(x, "bf16"),
            ops.rope(q, pos, 64, "neox"),
            ops.flash_attn_ext(q, k, v, None, 0.125),
            ops.swiglu_split(x, y),
            ops.argsort(x),
        ]

    same(results(backend, make))


def test_results_may_be_written_to_any_element(backend: aggml.Backend) -> None:
    """Nodes that write into another tensor's memory; cpy and set_rows into a cache."""

    def make(far: int) -> list[aggml.Tensor]:
        x = placed(floats(6, 67, seed=1), DType.F32, (67, 6), 0)
        zeros = np.zeros((9, 67), np.float32)
        whole = placed(zeros[:6], DType.F32, (67, 6), far * 4)
        half = placed(zeros[:6].astype(np.float16), DType.F16, (67, 6), far * 2)
        cache = placed(zeros.astype(np.float16), DType.F16, (67, 9), far * 2)
        to = placed(np.array([8, 0, 3, 1, 2, 5]), DType.I64, (6,), far * 8)
        y = placed(floats(6, 67, seed=2), DType.F32, (67, 6), far * 4)
        return [
            ops.cpy(x, whole),
            ops.cpy(x, half),
            ops.set_rows(cache, x, to),
            ops.add_inplace(y, x),
        ]

    same(results(backend, make))
