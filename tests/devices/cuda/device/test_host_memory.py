"""Transfers between host memory and a CUDA device: any strides, pageable, pinned, registered.

Not here: promises of every device (test_conformance.py), other transfers (test_transfers.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from devices.cuda.small_graphs import turns, vector
from support import ramp

import aggml
from aggml import ops

if TYPE_CHECKING:
    from devices.cuda.fake_driver import Fake

    from aggml.devices.cuda import CUDADevice


async def test_pageable_memory_never_reaches_the_driver(device: CUDADevice, fake: Fake) -> None:
    big = aggml.new_tensor("f32", ne=(1000, 3000), name="big")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 1000)).astype(np.float32)
    async with device.backend() as be:
        be.alloc([big])
        fake.reset_counts()
        with fake.marked(), fake.held():
            sent, got = be.set(big, x), be.get(big)
            await turns()
            assert not sent.done()
        assert (await got == x).all()
        assert fake.counter("pageable") == 0
        assert fake.calls("cuMemcpyHtoDAsync") == -(-x.nbytes // (1 << 20))  # pieces of 1 MiB


@pytest.mark.parametrize("case", ["rows", "columns", "reversed", "broadcast", "offset view"])
async def test_arrays_of_any_strides(device: CUDADevice, case: str) -> None:
    rng = np.random.default_rng(1)
    t = aggml.new_tensor("f32", ne=(700, 600), name="t")
    x = rng.standard_normal((600, 700)).astype(np.float32)
    async with device.backend() as be:
        be.alloc([t])
        if case == "rows":
            wide = np.zeros((600, 900), np.float32)
            wide[:, :700] = x
            await be.set(t, wide[:, :700])
        elif case == "columns":
            await be.set(t, np.asfortranarray(x))
        elif case == "reversed":
            await be.set(t, x[::-1, ::-1])
            x = x[::-1, ::-1].copy()
        elif case == "broadcast":
            x = np.broadcast_to(x[0], x.shape)
            await be.set(t, x)
        else:
            await be.set(t, x)
            view = ops.view_2d(t, 100, 50, t.nb[1] * 3, 400)
            turned = ops.transpose(view)
            assert (await be.get(view) == x[:150:3, 100:200]).all()
            assert (await be.get(turned) == x[:150:3, 100:200].T).all()
            await be.set(turned, np.ones((100, 50), np.float32))
            x[:150:3, 100:200] = 1
        assert (await be.get(t) == x).all()
        out = np.zeros((700, 600), np.float32).T[:, ::-1]
        assert (await be.get(t, out) == x).all()


@pytest.mark.parametrize(("source", "target"), [(0, 1000), (1000, 0)])
async def test_a_copy_onto_a_neighbour_that_it_overlaps(
    device: CUDADevice, source: int, target: int
) -> None:
    n = 700_000  # more than a piece of the ring of pinned memory
    t = vector("t", n + 1000)
    x = ramp(n + 1000)
    async with device.backend() as be:
        be.alloc([t])
        await be.set(t, x)
        await be.copy(ops.view_1d(t, n, 4 * source), ops.view_1d(t, n, 4 * target))
        expected = x.copy()
        expected[target : target + n] = x[source : source + n]
        assert (await be.get(t) == expected).all()


async def test_pinned_memory_is_copied_as_it_lies(device: CUDADevice) -> None:
    host = device.host_buffer_type
    assert host is not None
    assert host.name == "CUDA_Host"
    assert host.is_host
    pinned, t = vector("pinned"), vector("t")
    buffer = host.alloc_tensors([pinned])
    cpu = aggml.get_device("CPU").backend()
    async with device.backend() as be, cpu:
        be.alloc([t])
        await cpu.set(pinned, ramp())
        await cpu.copy(pinned, t, to=be)
        assert (await be.get(t) == ramp()).all()
        await be.memset(t, 0)
        await be.copy(t, pinned, to=cpu)
        assert (await cpu.get(pinned) == 0).all()
    buffer.close()


async def test_registered_memory_needs_no_staging(device: CUDADevice, fake: Fake) -> None:
    x = np.arange(1 << 20, dtype=np.float32)
    t = vector("t", 1 << 20)
    async with device.backend() as be:
        be.alloc([t])
        with device.register_host(x):
            fake.reset_counts()
            await be.set(t, x)
            assert fake.calls("cuMemcpyHtoDAsync") == 1
        assert (await be.get(t) == x).all()
