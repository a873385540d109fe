"""Cancelling awaits: by scope, timeout, asyncio itself, at random points; what is aborted then."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import numpy as np
import pytest
import trio
from anyio import wait_all_tasks_blocked
from support import Array, holding, on_trio, placed, ramp, sum_on

import aggml

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aggml.devices.sim import SimBackend, SimDevice


async def cancelled(awaitable: Awaitable[object], how: str) -> None:
    """Await in a task of its own until it blocks, then cancel the task."""
    scope = anyio.CancelScope()

    async def wait() -> None:
        with scope:
            await awaitable

    if how == "scope":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await wait_all_tasks_blocked()
            scope.cancel()
    elif how == "timeout":
        with anyio.move_on_after(0.001):
            await awaitable
    elif how == "deadline passed":
        with anyio.move_on_after(0):
            await awaitable
    elif on_trio():
        with trio.move_on_after(0.001):
            await awaitable
    else:
        task = asyncio.ensure_future(wait())
        await wait_all_tasks_blocked()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


ASYNCIO = pytest.mark.parametrize("anyio_backend", [("asyncio", {"debug": True})], ids=["asyncio"])
HOW = ["scope", "timeout", "deadline passed", "native"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "what", ["set", "get", "memset", "copy", "graph_compute", "synchronize", "record"]
)
async def test_cancelling_an_await_abandons_the_wait_never_the_work(
    be: aggml.Backend, what: str, how: str
) -> None:
    s, twin = sum_on(be), placed(be)
    be.set(s.a, ramp())
    be.set(s.b, ramp())
    await be.synchronize()
    start: dict[str, Callable[[], aggml.Future[object]]] = {
        "set": lambda: be.set(s.a, ramp(start=1)),
        "get": lambda: be.get(s.a),
        "memset": lambda: be.memset(s.a, 0),
        "copy": lambda: be.copy(s.a, twin),
        "graph_compute": lambda: be.graph_compute(s.graph),
        "synchronize": be.synchronize,
        "record": lambda: be.record(be.device.event()),
    }
    with be.stream.hold():
        future = start[what]()
        await cancelled(future, how)
        assert not future.done()
    await future  # a cancelled wait leaves the operation intact
    wanted = {"set": ramp(start=1), "memset": 0 * ramp()}.get(what, ramp())
    assert np.array_equal(await be.get(s.a), wanted)
    if what == "copy":
        assert np.array_equal(await be.get(twin), ramp())
    if what == "graph_compute":
        assert np.array_equal(await be.get(s.y), 2 * ramp())


@pytest.mark.parametrize("how", HOW)
async def test_run_is_aborted_when_its_only_waiter_is_cancelled(
    be: aggml.Backend, how: str
) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        await cancelled(run, how)
        assert not run.done()  # the abort is carried out when the stream reaches the run
    with pytest.raises(aggml.Aborted):
        await run
    assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())


@pytest.mark.long(cases=1)
async def test_run_goes_on_while_somebody_waits(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                assert np.array_equal(await run, 2 * ramp())

            tasks.start_soon(wait)
            await wait_all_tasks_blocked()
            for _ in range(3):
                await cancelled(run, "scope")
            be.stream.native.release()


@pytest.mark.long(cases=1)
async def test_run_is_aborted_by_the_last_of_several(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(cancelled, run, "scope")
    with pytest.raises(aggml.Aborted):
        await run


async def test_a_run_that_was_never_awaited_is_not_aborted(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        s.run(be, ramp(), ramp())  # its Future is dropped
        behind = be.get(s.y)
        await cancelled(behind, "scope")
    assert np.array_equal(await behind, 2 * ramp())


@pytest.mark.parametrize("how", HOW)
async def test_a_shielded_wait_never_aborts(be: aggml.Backend, how: str) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        await cancelled(run.shield(), how)
    assert np.array_equal(await run, 2 * ramp())
    assert np.array_equal(await run.shield(), 2 * ramp())


async def test_a_shielded_waiter_counts_as_a_waiter(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                assert np.array_equal(await run.shield(), 2 * ramp())

            tasks.start_soon(wait)
            await wait_all_tasks_blocked()
            await cancelled(run, "scope")
            be.stream.native.release()


async def test_a_callback_counts_as_a_waiter(be: aggml.Backend) -> None:
    s = sum_on(be)
    called = anyio.Event()
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        run.add_done_callback(lambda _: called.set())
        await cancelled(run, "scope")
    with anyio.fail_after(60):
        await called.wait()
    assert np.array_equal(run.result(), 2 * ramp())


async def test_a_wait_that_runs_out_is_no_cancellation(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        assert not run.wait(0)
        await wait_all_tasks_blocked()
    assert np.array_equal(await run, 2 * ramp())


async def test_a_thread_in_wait_counts_as_a_waiter(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, run.wait, 10)
            while run._waiters == 0:
                await anyio.lowlevel.checkpoint()
            await cancelled(run, "scope")
            be.stream.native.release()
    assert np.array_equal(await run, 2 * ramp())


async def test_an_aborted_run_spoils_nothing_for_the_one_behind_it(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        first, second = s.run(be, ramp(), ramp()), s.run(be, ramp(start=1), ramp())
        await cancelled(first, "scope")
    assert np.array_equal(await second, 2 * ramp() + 1)
    with pytest.raises(aggml.Aborted):
        await first


async def test_cancelled_wait_for_an_event(be: aggml.Backend) -> None:
    event = be.device.event()
    with be.stream.hold():
        be.record(event)
        with anyio.move_on_after(0.001):
            await event
        assert not event.done()
    await event


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("round_", range(5))
async def test_cancelling_at_random_points_leaves_all_healthy(
    sim_device: SimDevice, sim: SimBackend, seed: int, round_: int
) -> None:
    """200 tasks of mixed work, the device takes its time; each is cancelled at a random step."""
    dice = random.Random(seed + round_)
    sim_device.latency = 2e-5
    s, weights = sum_on(sim), holding(sim, ramp(start=100), "weights")
    good = 0

    async def client(i: int) -> None:
        nonlocal good
        x = ramp(start=i)
        with anyio.CancelScope() as scope:
            tasks.start_soon(canceller, scope, dice.randrange(30))
            kind = dice.randrange(4)
            if kind == 0:
                assert np.array_equal(await sim.get(weights), ramp(start=100))
            elif kind == 1:
                assert np.array_equal((await aggml.gather(s.run(sim, x, x)))[0], 2 * x)
            elif kind == 2:
                with anyio.move_on_after(dice.random() * 2e-4):
                    assert np.array_equal(await s.run(sim, x, x), 2 * x)
            else:
                assert np.array_equal(await s.run(sim, x, x), 2 * x)
                await sim.synchronize()
            good += 1

    async def canceller(scope: anyio.CancelScope, steps: int) -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        if not on_trio() and dice.random() < 0.3:
            await anyio.sleep(dice.random() * 1e-3)  # at random, so that any state is met
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        for i in range(200):
            tasks.start_soon(client, i)
    with anyio.fail_after(60):
        await sim.synchronize()
        assert np.array_equal(await s.run(sim, ramp(), ramp(start=1)), 2 * ramp() + 1)
        assert np.array_equal(await sim.get(weights), ramp(start=100))
    assert sim.pending == 0


@ASYNCIO
async def test_native_cancellation_of_random_tasks(sim: SimBackend, seed: int) -> None:
    """As the test above, but the tasks are plain asyncio tasks, which anyio does not know."""
    dice = random.Random(seed)
    s = sum_on(sim)

    async def client(i: int) -> None:
        x = ramp(start=i)
        try:
            assert np.array_equal(await s.run(sim, x, x), 2 * x)
        except asyncio.CancelledError:
            if dice.random() < 0.5:  # a task may go on after its cancellation
                assert np.array_equal(await s.run(sim, x, x), 2 * x)
            raise

    tasks = [asyncio.ensure_future(client(i)) for i in range(100)]
    for task in dice.sample(tasks, 70):
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(r is None or isinstance(r, asyncio.CancelledError) for r in results), results
    assert np.array_equal(await s.run(sim, ramp(), ramp()), 2 * ramp())


@ASYNCIO
async def test_wait_for_of_asyncio(be: aggml.Backend) -> None:
    s = sum_on(be)

    async def run() -> None:
        await s.run(be, ramp(), ramp())

    with be.stream.hold(), pytest.raises(TimeoutError):
        await asyncio.wait_for(run(), 0.001)
    assert np.array_equal(
        await asyncio.wait_for(_awaited(s.run(be, ramp(), ramp())), 10), 2 * ramp()
    )


async def _awaited(future: aggml.Future[Array]) -> Array:
    return await future
