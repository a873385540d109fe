"""Transfers to a device: experts that ids name, pageable memory, memory that is freed.

Not here: which calls wait (test_off_the_loop.py), promises of every device (test_conformance.py).
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.cuda.fake_driver import all_kernels
from waiting import until

import aggml
from aggml import Graph, Scheduler, ops
from aggml.devices.cuda import CUDADevice, driver
from aggml.errors import OutOfBounds
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from devices.cuda.fake_driver import Fake

N, SIZE = 12, 40  # each matrix has 40 floats


class Stack:
    """Matrices on the host and on the device, and expert numbers in host memory."""

    def __init__(self, be: aggml.Backend, *, pinned: bool, used: int = 4) -> None:
        self.be = be
        host = be.device.host_buffer_type
        assert host is not None
        cpu = aggml.get_device("CPU").buffer_type
        self.src = aggml.new_tensor("f32", ne=(SIZE, 1, N))
        self.dst = aggml.new_tensor("f32", ne=(SIZE, 1, N))
        self.ids = aggml.new_tensor("i32", ne=(used,))
        self.numbers = aggml.new_tensor("i32", ne=(used,))  # on the device
        be.alloc([self.dst, self.numbers])
        (host if pinned else cpu).alloc_tensors([self.src])
        host.alloc_tensors([self.ids])
        self.values = np.arange(N * SIZE, dtype=np.float32).reshape(N, 1, SIZE)
        self.put(self.src, self.values)

    def put(self, tensor: aggml.Tensor, values: Any) -> None:
        """Write to host memory; `set` accepts only tensors on the device."""
        self.be.stream.copy(tensor, values.reshape(tensor.ne[::-1]))

    async def check(self, *named: int) -> None:
        """Check that of the matrices, all -1 before, just these have been copied."""
        found = await self.be.get(self.dst)
        crossed = [e for e in range(N) if (found[e] == self.values[e]).all()]
        assert crossed == sorted(named)
        assert (np.delete(found, crossed, axis=0) == -1).all()

    def clear(self) -> None:
        self.be.set(self.dst, np.full_like(self.values, -1))


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
async def test_only_named_matrices_cross(be: aggml.Backend, pinned: bool) -> None:
    stack = Stack(be, pinned=pinned)
    for ids in ([0, 1, 2, 7], [N - 1, 0, 0, 5], [3, 3, 3, 3]):
        stack.clear()
        stack.put(stack.ids, np.array(ids, np.int32))
        await be._copy_experts(stack.src, stack.dst, stack.ids)
        await stack.check(*set(ids))


async def test_numbers_that_a_copy_before_it_brings_are_waited_for(
    be: aggml.Backend, other: aggml.Backend, fake: Fake
) -> None:
    stack = Stack(be, pinned=True)
    # the numbers come from the same stream, or from another one that is waited for
    for carrier in (be, other):
        stack.clear()
        be.set(stack.numbers, np.array([1, 4, 9, 4], np.int32))
        stack.put(stack.ids, np.zeros(4, np.int32))
        await be.synchronize()
        with fake.held():
            copied = carrier._copy(stack.numbers, stack.ids)
            if carrier is other:
                event = be.device.event()
                carrier.record(event)
                be.wait(event)
            crossed = be._copy_experts(stack.src, stack.dst, stack.ids)
            assert not copied.done()
        await crossed
        await stack.check(1, 4, 9)


async def test_a_number_without_a_matrix_fails_the_copy_and_nothing_else(
    be: aggml.Backend,
) -> None:
    stack = Stack(be, pinned=True)
    stack.clear()
    stack.put(stack.ids, np.array([1, N, 2, 3], np.int32))
    with pytest.raises(OutOfBounds, match="expert 12 of 12"):
        await be._copy_experts(stack.src, stack.dst, stack.ids)
    stack.clear()
    stack.put(stack.ids, np.array([1, 0, 2, 3], np.int32))
    await be._copy_experts(stack.src, stack.dst, stack.ids)
    await stack.check(0, 1, 2, 3)


async def test_the_scheduler_sends_the_experts_of_a_batch_alone() -> None:
    try:
        driver.probe()
    except driver.Missing as missing:
        pytest.skip(str(missing))
    device = CUDADevice(driver.facts(0), all_kernels())
    k, m, experts, used, tokens = 32, 8, 16, 2, 32
    rng = np.random.default_rng(2)
    w = aggml.new_tensor("f32", ne=(k, m, experts), name="w")
    x = aggml.new_tensor("f32", ne=(k, 1, tokens), name="x").set_input()
    ids = aggml.new_tensor("i32", ne=(used, tokens), name="ids").set_input()
    y = ops.mul_mat_id(w, x, ids)
    graph = Graph(y)
    weights = rng.standard_normal((experts, m, k)).astype(np.float32)
    async with device.backend() as be, aggml.get_device("CPU").backend(n_threads=1) as cpu:
        cpu.alloc([w], usage="weights")
        await cpu.set(w, weights)
        sched = Scheduler([be, cpu], op_offload=True)
        for named in ([3, 4], [0, 15], [7, 8]):
            picks = rng.choice(named, (tokens, used)).astype(np.int32)
            values = rng.standard_normal((tokens, 1, k)).astype(np.float32)
            with aggml.trace() as trace:
                out = await sched.run(graph, {x: values, ids: picks}, y)
            expected = np.einsum("tumk,tk->tum", weights[picks], values[:, 0])
            np.testing.assert_allclose(out, expected, rtol=1e-2, atol=1e-2)
            assert sched.get_tensor_backend(y) is be
            copied = [e.nbytes for e in trace.events if e.operation == "copy"]
            assert max(copied) == 2 * 4 * k * m
        sched.close()


async def test_pageable_memory_is_gathered_by_several_threads(be: aggml.Backend) -> None:
    rng = np.random.default_rng(4)
    flat = rng.integers(0, 1 << 30, 5 << 20).astype(np.int32)  # 20 MiB
    strided = rng.integers(0, 1 << 30, (3, 900, 2, 1300)).astype(np.int32)[:, ::2, :, 100:]
    for values in (flat, strided):
        t = aggml.new_tensor("i32", ne=values.shape[::-1])
        be.alloc([t])
        for _ in range(3):
            be.memset(t, 0)
            await be.set(t, values)
            assert (await be.get(t) == values).all()
    if (os.cpu_count() or 1) > 1:
        assert _native.cuda_hands() > 0


async def _soon(holds: Callable[[], object]) -> None:
    """Wait until it holds; garbage is collected before each look."""

    def looks() -> object:
        gc.collect()
        return holds()

    await until(looks)


async def test_pinned_memory_is_freed_beside_the_streams(device: CUDADevice, fake: Fake) -> None:
    t = aggml.new_tensor("f32", ne=(16,))
    async with device.backend() as be:
        be.alloc([t])
        await be.memset(t, 0)
        kind = device.host_buffer_type
        assert kind is not None
        with fake.slow("cuMemFreeHost"):
            buffer = kind.alloc_buffer(4096)
            del buffer
            await _soon(lambda: fake.inside("cuMemFreeHost") == 1)
            for i in range(5):  # meanwhile the streams of the device go on
                await be.set(t, np.full(16, i, np.float32))
                assert (await be.get(t) == i).all()
        await _soon(lambda: fake.calls("cuMemFreeHost") >= 1)


async def test_a_device_that_goes_takes_its_pool_along(fake: Fake) -> None:
    from devices.cuda.fake_driver import SimpleKernels

    await _soon(lambda: fake.counter("pools") == 0)  # pools of earlier tests
    device = CUDADevice(driver.facts(0), SimpleKernels())
    t = aggml.new_tensor("f32", ne=(1024,))
    async with device.backend() as be:
        be.alloc([t])
        await be.memset(t, 0)
        assert fake.counter("pools") == 1
    del be, t, device
    await _soon(lambda: fake.counter("pools") == 0)
