"""Many at once: tasks, futures in flight, threads; and memory that stays flat afterwards."""

from __future__ import annotations

import gc
import linecache
import os
import threading
import tracemalloc
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from support import holding, ramp, sum_on
from waiting import until

import aggml
from aggml import ops
from aggml.process.threads import new_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from conftest import AnyDevice

    from aggml.devices.cpu import CPUDevice


async def test_200_tasks_run_one_graph_at_once(be: aggml.Backend) -> None:
    s = sum_on(be)
    right = 0

    async def client(i: int) -> None:
        nonlocal right
        for k in range(5):
            x = ramp(start=100 * i + k)
            assert np.array_equal(await s.run(be, x, ramp()), x + ramp())
            right += 1

    async with anyio.create_task_group() as tasks:
        for i in range(200):
            tasks.start_soon(client, i)
    assert right == 1000
    assert be.pending == 0


async def test_200_tasks_by_hand_without_an_await_in_between(be: aggml.Backend) -> None:
    s = sum_on(be)

    async def client(i: int) -> None:
        x = ramp(start=i)
        be.set(s.a, x)
        be.set(s.b, x)
        be.graph_compute(s.graph)
        assert np.array_equal(await be.get(s.y), 2 * x)

    async with anyio.create_task_group() as tasks:
        for i in range(200):
            tasks.start_soon(client, i)


@pytest.mark.long(cases=1)
async def test_who_waits_for_a_run_is_woken_whatever_is_queued_behind_it() -> None:
    """Behind it: a plan that threads share, a plan of one chunk, an aborted plan, or nothing."""
    rng = np.random.default_rng(0)
    async with aggml.get_device("CPU").backend(n_threads=2) as be:
        wide, narrow = aggml.new_tensor("f32", ne=(256, 512)), aggml.new_tensor("f32", ne=(300,))
        product = ops.mul_mat(wide, ops.sqr(wide))
        line = ops.sum(ops.exp(ops.sqr(narrow)))
        big, small = rng.normal(size=(512, 256)), rng.normal(size=(300,))
        big, small = big.astype(np.float32), small.astype(np.float32)
        graphs = [(aggml.Graph(product), wide, big, product)]
        graphs += [(aggml.Graph(line), narrow, small, line)]
        for graph, *_ in graphs:
            await be.prepare(graph)
        for _ in range(24):
            which = rng.integers(0, 2, 5)
            runs = [be.run(graphs[k][0], {graphs[k][1]: graphs[k][2]}, graphs[k][3]) for k in which]
            given_up = int(rng.integers(-1, 5))
            if given_up >= 0:
                runs[given_up].abort()
            with anyio.fail_after(60):
                for i, (k, run) in enumerate(zip(which, runs, strict=True)):
                    try:
                        got = await run
                    except aggml.Aborted:
                        assert i == given_up
                        continue
                    wanted = (big**2 @ big.T) if k == 0 else np.exp(small**2).sum()
                    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-2)


async def test_threads_and_loops_share_one_backend(be: aggml.Backend) -> None:
    """Two event loops and two plain threads use one graph."""
    s = sum_on(be)
    finished: list[str] = []

    async def loop(name: str) -> None:
        for i in range(100):
            x = ramp(start=i)
            assert np.array_equal(await s.run(be, x, x), 2 * x)
        finished.append(name)

    def script(name: str) -> None:
        for i in range(100):
            x = ramp(start=i)
            run = s.run(be, x, x)
            assert run.wait(60)
            assert np.array_equal(run.result(), 2 * x)
        finished.append(name)

    def own_loop(name: str) -> None:
        anyio.run(loop, name, backend=name)

    threads = [new_thread(partial(own_loop, n), n) for n in ("asyncio", "trio")]
    threads += [threading.Thread(target=script, args=(n,), daemon=True) for n in ("one", "two")]
    for thread in threads:
        thread.start()
    await loop("here")
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join, 60)
    assert sorted(finished) == ["asyncio", "here", "one", "trio", "two"]


def resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def steady(work: Callable[[], Awaitable[None]], be: aggml.Backend) -> int:
    """Bytes of Python memory that two more rounds of ``work`` leave behind.

    The cache of source lines is cleared, so that it does not count. In debug mode asyncio reads
    the source for each stack that makes a future. How many make one varies: an operation that is
    already done needs none.
    """
    await work()
    await work()
    be.stream.native.release_finished()
    gc.collect()
    linecache.clearcache()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await work()
        await work()
        be.stream.native.release_finished()
        gc.collect()
        linecache.clearcache()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        assert be.stream.native.kept == 0
        assert be.pending == 0


@pytest.mark.long(cases=1)
async def test_10000_futures_in_flight_awaited_by_100_tasks(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())

    async def work() -> None:
        with be.stream.hold():
            futures = [be.get(tensor) for _ in range(10_000)]
            assert be.pending == 10_000
            resolved = 0

            async def waiter(k: int) -> None:
                nonlocal resolved
                for future in futures[k::100]:
                    value = await future
                    assert value[3] == 3
                    resolved += 1

            async with anyio.create_task_group() as tasks:
                for k in range(100):
                    tasks.start_soon(waiter, k)
                await anyio.lowlevel.checkpoint()
                be.stream.native.release()
        assert resolved == 10_000

    rss = 0
    for _ in range(2):
        await work()
        rss = rss or resident()
    await until(lambda: not be.stream.native.kept)  # a worker that falls asleep has them dropped
    assert resident() - rss < 16 << 20


@pytest.mark.long(cases=1)
async def test_runs_leave_no_memory_behind(be: aggml.Backend) -> None:
    s = sum_on(be)
    x = ramp()

    async def work() -> None:
        for _ in range(300):
            await s.run(be, x, x)

    assert await steady(work, be) < 16_000


@pytest.mark.long(cases=1)
async def test_cancelled_waits_and_aborted_runs_leave_no_memory_behind(be: aggml.Backend) -> None:
    s = sum_on(be)
    x = ramp()

    async def work() -> None:
        for _ in range(50):
            with be.stream.hold():
                with anyio.move_on_after(0):
                    await s.run(be, x, x)
                with anyio.move_on_after(0):
                    await be.get(s.a)
        be.stream.fail(ValueError("unseen"))
        with pytest.raises(ExceptionGroup):
            await be.synchronize()

    assert await steady(work, be) < 16_000


@pytest.mark.long(cases=1)
async def test_backends_graphs_and_buffers_come_and_go(
    device: AnyDevice, be: aggml.Backend
) -> None:
    free = device.memory()[0]

    async def work() -> None:
        for _ in range(10):
            async with device.backend() as passing:
                s = sum_on(passing, 1 << 16)
                x = ramp(1 << 16)
                assert np.array_equal(await s.run(passing, x, x), 2 * x)

    assert await steady(work, be) < 20_000
    gc.collect()
    if device.name == "SIM":
        assert device.memory()[0] == free


async def test_file_descriptors_do_not_grow(be: aggml.Backend, cpu_device: CPUDevice) -> None:
    """Two per loop, none per Future, stream or backend; a loop that is gone has closed its two.

    One wakes the loop, one tells workers where its thread is.
    """
    tensor = holding(be, ramp())

    async def other_loop() -> None:
        assert np.array_equal(await be.get(tensor), ramp())

    def round_() -> None:
        for name in ("asyncio", "trio"):
            anyio.run(other_loop, backend=name)
        with cpu_device.backend() as passing, passing.stream.hold():
            assert not passing.synchronize().wait(0.001)

    await anyio.to_thread.run_sync(round_)
    with be.stream.hold(), anyio.move_on_after(0.001):
        await be.get(tensor)  # makes this loop's own two descriptors
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await anyio.to_thread.run_sync(round_)
        with be.stream.hold(), anyio.move_on_after(0.001):
            await be.get(tensor)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
