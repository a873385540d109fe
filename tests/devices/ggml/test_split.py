"""Weights whose rows a library divides between its devices: results, reading back, refusals.

On the fake backend; of ggml's own backends CUDA and SYCL have such memory. Not here: formats into
which a library packs weights (test_packed.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from devices.ggml import builds, fakes

import aggml
from aggml import Graph, ops

N, ROWS = 64, 40


@pytest.mark.parametrize("shares", [(), (1, 3), (0, 1)])
@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
async def test_a_product_of_divided_weights(dtype: str, shares: tuple[float, ...]) -> None:
    device = fakes.device()
    values = np.random.default_rng(1).standard_normal((ROWS, N)).astype(np.float32)
    rows = np.random.default_rng(2).standard_normal((5, N)).astype(np.float32)
    raw = values if dtype == "f32" else aggml.quantize(values, dtype)
    got = []
    async with device.backend() as be:
        for kind in (device.buffer_type, device.split_buffer_type(shares)):
            w, x = aggml.new_tensor(dtype, ne=(N, ROWS)), aggml.new_tensor("f32", ne=(N, 5))
            y = ops.mul_mat(w, x)
            graph = Graph(y)
            memory = kind.alloc_tensors([w])
            be.alloc([x])
            be.alloc_graph(graph)
            await be.set(w, raw)
            got.append(await be.run(graph, {x: rows}, y))
            # again, with the plan made by the first run
            got.append(await be.run(graph, {x: rows}, y))
            assert np.array_equal(await be.get(w), raw)
            assert memory.size >= w.nbytes
    assert all(np.array_equal(found, got[0]) for found in got)


async def test_the_same_shares_are_the_same_memory() -> None:
    device = fakes.device()
    assert device.split_buffer_type((1, 1)) is device.split_buffer_type((2, 2))
    assert device.split_buffer_type((1, 1)) is not device.split_buffer_type((1, 2))
    with pytest.raises(aggml.InvalidArgument):
        device.split_buffer_type((-1, 1))


async def test_two_tensors_of_one_buffer() -> None:
    """The library knows each of them separately."""
    device = fakes.device()
    tensors = [aggml.new_tensor("f32", ne=(N, ROWS)) for _ in range(2)]
    memory = device.split_buffer_type().alloc_tensors(tensors)
    async with device.backend() as be:
        for k, w in enumerate(tensors):
            await be.set(w, np.full((ROWS, N), k + 1, np.float32))
        for k, w in enumerate(tensors):
            assert np.all(await be.get(w) == k + 1)
    assert memory.size


async def test_what_is_not_divided_is_refused() -> None:
    device = fakes.device()
    w, ids = aggml.new_tensor("f32", ne=(N, ROWS)), aggml.new_tensor("i32", ne=(2,))
    memory = device.split_buffer_type().alloc_tensors([w])
    graph = Graph(ops.get_rows(w, ids))
    async with device.backend() as be:
        be.alloc([ids])
        be.alloc_graph(graph)
        with pytest.raises(aggml.Unsupported, match="does not run"):
            be.graph_compute(graph)
        with pytest.raises(aggml.AggmlError, match="no tensor begins there"):
            await be.set(w, np.zeros(4, np.uint8), offset=4, size=4)
        with pytest.raises(aggml.Unsupported, match="written whole"):
            await be.memset(w, 0)
    assert memory.size


def test_a_library_without_such_memory_is_told() -> None:
    with pytest.raises(aggml.Unsupported, match="cannot divide rows"):
        builds.device("CPU").split_buffer_type()
