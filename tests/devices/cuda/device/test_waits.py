"""Waits between CUDA streams of one process: the device waits, and no thread of the host.

Not here: waits between a CUDA stream and one of the CPU (test_streams.py), the scheduler
(test_scheduling.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from waiting import until

import aggml
from aggml import Graph, ops
from aggml.errors import AggmlError

if TYPE_CHECKING:
    from devices.cuda.fake_driver import Fake, SimpleKernels

    from aggml.devices.cuda import CUDADevice

N = 16


def _ramp(start: float = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(N, dtype=np.float32) + np.float32(start)


def _vector(name: str) -> aggml.Tensor:
    return aggml.new_tensor("f32", ne=(N,), name=name)


def _launched(fake: Fake, n: int) -> bool:
    return fake.calls("cuLaunchKernel") == n


async def test_what_follows_a_wait_is_issued_while_the_other_stream_still_works(
    device: CUDADevice, fake: Fake
) -> None:
    async with device.backend() as be, device.backend() as second:
        x, y = _vector("x"), _vector("y")
        first, then = Graph(ops.add(x, x)), Graph(ops.mul(y, y))
        await be.prepare(first)
        await second.prepare(then)
        await be.set(x, _ramp())
        await second.set(y, _ramp())
        await be.graph_compute(first)
        await second.graph_compute(then)
        for _ in range(20):
            both = fake.calls("cuLaunchKernel") + 2
            with fake.held():
                future = be.graph_compute(first)
                second.wait(future)
                last = second.graph_compute(then)
                await until(partial(_launched, fake, both))
                assert not future.done()
                assert not last.done()
            await last
            assert future.done()
    assert fake.calls("cuStreamWaitEvent") > 0


async def test_chains_of_waits_give_the_numbers_of_their_order(device: CUDADevice) -> None:
    backends = [device.backend() for _ in range(3)]
    t = _vector("t")
    backends[0].alloc([t])
    graphs = [Graph(ops.cpy(ops.add(t, t), t)) for _ in backends]
    for be, graph in zip(backends, graphs, strict=True):
        await be.prepare(graph)
    for _ in range(5):
        await backends[0].set(t, _ramp(1))
        future = backends[0].graph_compute(graphs[0])
        for i in range(1, 9):
            backends[i % 3].wait(future)
            future = backends[i % 3].graph_compute(graphs[i % 3])
        backends[0].wait(future)
        assert (await backends[0].get(t) == _ramp(1) * 2**9).all()
    for be in backends:
        await be.aclose()


async def test_memory_of_the_host_that_another_stream_fills_is_read_when_it_is_there(
    device: CUDADevice, fake: Fake
) -> None:
    """Threads of the host, not the device, copy pageable memory, so they have to wait."""
    async with device.backend() as be, device.backend() as second:
        a, b = _vector("a"), _vector("b")
        be.alloc([a])
        second.alloc([b])
        for i in range(10):
            between = np.zeros(N, np.float32)
            with fake.held():
                be.set(a, _ramp(i), copy=True)
                down = be.get(a, between)
                second.wait(down)
                up = second.set(b, between)
            await up
            assert (await second.get(b) == _ramp(i)).all()


async def test_a_failure_of_the_other_stream_reaches_what_reads_its_result(
    device: CUDADevice, simple: SimpleKernels, fake: Fake
) -> None:
    """The failure is known only when it is settled: by then the device has run later operations."""
    table = aggml.new_tensor("f32", ne=(N, 4), name="table")
    ids = aggml.new_tensor("i32", ne=(1,), name="ids")
    rows = ops.get_rows(table, ids)
    async with device.backend() as be, device.backend() as second:
        first = Graph(rows)
        await be.prepare(first)
        copy = _vector("copy")
        second.alloc([copy])
        await be.set(table, np.ones((4, N), np.float32))
        for index, good in ((1, True), (7, False), (2, True)):
            await be.set(ids, np.array([index], np.int32))
            future = be.graph_compute(first)
            second.wait(future)
            copied = second.copy(ops.view_1d(rows, N, 0), copy)
            if good:
                await copied
                assert (await second.get(copy) == 1).all()
                continue
            with pytest.raises(AggmlError):
                await future
            with pytest.raises(AggmlError, match=r"outside 0\.\.3"):
                await copied


_TWO = """
import sys; sys.path.insert(0, {tests!r})
import anyio, numpy as np
from devices.cuda.fake_driver import Fake, SimpleKernels
fake = Fake()
import aggml
from aggml.devices.cuda import CUDAFamily

async def main():
    family = CUDAFamily(SimpleKernels())
    one, two = (d.backend() for d in family.devices)
    x = np.arange(64, dtype=np.float32)
    a, b = (aggml.new_tensor("f32", ne=(64,)) for _ in "ab")
    one.alloc([a]); two.alloc([b])
    await one.set(a, x)
    await one.copy(a, b, to=two)
    waits = fake.calls("cuStreamWaitEvent")
    for i in range(20):
        with fake.held():
            one.memset(a, i)
            copied = one.copy(a, b, to=two)
            two.memset(b, 0, offset=4, size=4)
            with anyio.fail_after(60):
                while fake.calls("cuMemsetD8Async") < 2 * i + 2: await anyio.sleep(0.001)
            assert not copied.done()
        got = (await two.get(b)).view(np.uint8)
        assert (got[:4] == i).all() and (got[4:8] == 0).all() and (got[8:] == i).all()
    assert fake.calls("cuStreamWaitEvent") > waits
    await one.aclose(); await two.aclose()
anyio.run(main)
"""


def test_streams_of_two_devices_wait_for_each_other_on_the_devices(fake: Fake) -> None:
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-c", _TWO.format(tests=str(root / "tests"))],
        env=os.environ | {"FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_JITTER_US": "100"},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
