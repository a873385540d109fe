"""Pools on a simulated machine: 64 cores, two and four NUMA nodes, slow cores, too many threads.

Here: results, placement, streams that many threads submit to. Not here: which thread wakes which,
and which thread takes which chunk (tests/native/runtime_many_cores.c, runtime_cores.c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from machines import desktop, machine

import aggml
from aggml import Graph, ops
from aggml.native import _native

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from support import Array

    from aggml.devices.cpu import CPUDevice


async def check_same_bits(
    cpu_device: CPUDevice, threads: int, pretended: AbstractContextManager[None], seed: int
) -> None:
    """A graph on one thread, and on so many threads of a pretended machine."""
    rng = np.random.default_rng(seed)
    w, x = aggml.new_tensor("q8_0", ne=(256, 700)), aggml.new_tensor("f32", ne=(256, 9))
    y = ops.soft_max(ops.add(ops.mul_mat(w, x), ops.sqr(ops.mul_mat(w, x))))
    graph = Graph(y)
    blocks = aggml.quantize(rng.normal(size=(700, 256)).astype(np.float32), "q8_0")
    columns = rng.normal(size=(9, 256)).astype(np.float32)

    async def compute(be: aggml.Backend) -> Array:
        be.alloc([w], usage="weights")
        await be.set(w, blocks)
        placed = be.alloc_graph(graph)
        results = [await be.run(graph, {x: columns}, y) for _ in range(5)]
        assert all(np.array_equal(results[0], other) for other in results)
        placed.close()
        assert w.buffer is not None
        w.buffer.unplace(w)
        return results[0]

    async with cpu_device.backend(n_threads=1) as one:
        expected = await compute(one)
    with pretended, aggml.ThreadPool(threads) as pool:
        async with cpu_device.backend(pool=pool) as many:
            assert np.array_equal(await compute(many), expected)


@pytest.mark.parametrize(("threads", "banks"), [(12, 1), (40, 2), (64, 4)])
async def test_graphs_give_the_same_bits_on_any_number_of_cores(
    cpu_device: CPUDevice, threads: int, banks: int, seed: int
) -> None:
    await check_same_bits(cpu_device, threads, machine(threads, banks), seed)


@pytest.mark.parametrize(("usable", "threads"), [("14-17", 3), ("0,2,4,6,16-19", 8), ("0-31", 24)])
async def test_graphs_give_the_same_bits_on_fast_and_slow_cores(
    cpu_device: CPUDevice, tmp_path: Path, usable: str, threads: int, seed: int
) -> None:
    pretended = desktop(tmp_path, usable)
    await check_same_bits(cpu_device, threads, pretended, seed)


async def test_many_streams_over_many_banks_keep_their_order(cpu_device: CPUDevice) -> None:
    """Copies along a chain of backends, from several tasks; each value arrives."""
    n, rounds = 12, 20
    with machine(32, 4), aggml.ThreadPool(24) as pool:
        backends = [cpu_device.backend(pool=pool) for _ in range(n)]
        tensors = [aggml.new_tensor("f32", ne=(64,)) for _ in range(n)]
        for be, tensor in zip(backends, tensors, strict=True):
            be.alloc([tensor])

        async def client(number: int) -> None:
            value = np.full(64, number, np.float32)
            for _ in range(rounds):
                with backends[0].batch():
                    backends[0].set(tensors[0], value, copy=True)
                for i in range(1, n):
                    backends[i - 1].copy(tensors[i - 1], tensors[i], to=backends[i])
                got = await backends[-1].get(tensors[-1])
                assert (got == got[0]).all()

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(client, number)
        for be in backends:
            await be.aclose()


def test_weights_are_placed_by_parts_where_there_are_several_banks() -> None:
    memory = _native.Memory(1 << 20, 64)
    with machine(128, 2):
        assert _native.banks() == 2
        assert _native.place(memory.address, 1 << 20) == 2
        assert _native.place(memory.address, 100) == 0
    assert _native.place(memory.address, 1 << 20) in (0, _native.banks())
