"""Many submissions: the memory of process, device and stream must not grow.

The test makes 2,000 submissions, ``make soak-cuda`` makes 100,000, on the fake driver, or with
``ON=gpu`` on a GPU. Not here: failures (test_faults.py).
"""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest

import aggml
from aggml import Graph, ops
from aggml.errors import Aborted

if TYPE_CHECKING:
    from aggml.devices.cuda import CUDADevice

N = int(os.environ.get("AGGML_SOAK", "2000"))
WIDTH = 64
#: Bytes that the allocators of libc and Python may keep: not more after 100,000 submissions than
#: after 1,000.
SLACK = 8 << 20


def resident() -> int:
    """Bytes of the process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def ramp(start: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(WIDTH, dtype=np.float32) + np.float32(start % 1000)


class Work:
    """A graph and a few tensors, and operations on them."""

    def __init__(self, be: aggml.Backend) -> None:
        self.be = be
        self.x, self.b, self.t = (
            aggml.new_tensor("f32", ne=(WIDTH,), name=name) for name in ("x", "b", "t")
        )
        y = ops.mul(ops.add(self.x, self.b), self.b)
        self.graph = Graph(y)
        self.y = y
        be.alloc([self.t])
        self.strided = aggml.new_tensor("f32", ne=(WIDTH, 8), name="strided")
        be.alloc([self.strided])
        self.part = ops.view_2d(self.strided, WIDTH // 4, 8, self.strided.nb[1], 16)

    async def once(self, i: int) -> None:
        """One round of eight submissions; some are given up, some aborted."""
        be, ones = self.be, np.ones(WIDTH, np.float32)
        starts = range(i, i + 6)
        futures = [be.run(self.graph, {self.x: ramp(k), self.b: ones}, self.y) for k in starts]
        futures[2].abort()
        # gives up waiting: the run is aborted, as this was its last waiter
        with anyio.move_on_after(0):
            await futures[3]
        be.memset(self.t, 0)
        be.set(self.part, np.full((8, WIDTH // 4), i % 7, np.float32), copy=True)
        got = be.get(self.part)
        for k, future in zip(starts, futures, strict=True):
            try:
                result = await future
            except Aborted:
                continue
            assert (result == ramp(k) + 1).all()
        assert (await got == i % 7).all()


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_memory_stays_where_it_was(device: CUDADevice, anyio_backend: str) -> None:
    # after so many submissions: bytes resident, operations kept
    levels: list[tuple[int, int, int]] = []
    async with device.backend() as be:
        work = Work(be)
        await be.prepare(work.graph)
        step = max(N // 20, 1000)
        done = 0
        while done < N:
            for i in range(step // 8):
                await work.once(done + 8 * i)
            done += step // 8 * 8
            await be.synchronize()
            be.stream.native.release_finished()
            gc.collect()
            levels.append((done, resident(), be.stream.native.kept))
    for submissions, size, kept in levels:
        print(f"{submissions} submissions: {size / (1 << 20):.1f} MiB resident, {kept} kept")  # noqa: T201 the figures
    first, last = levels[0], levels[-1]
    assert last[1] - first[1] <= SLACK, levels
    assert last[2] <= first[2], levels
