"""Backpressure: pending, ready; first come, first served."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import Array, holding, in_threads, ramp, sum_on

import aggml

if TYPE_CHECKING:
    from conftest import AnyDevice


async def test_enqueuing_never_waits_and_pending_counts(device: AnyDevice) -> None:
    async with device.backend(max_queued=1) as be:
        a = holding(be, ramp())
        with be.stream.hold():
            assert be.pending == 0
            futures = [be.get(a) for _ in range(100)]
            assert be.pending == 100
        await aggml.gather(*futures)
        assert be.pending == 0


async def test_without_a_limit_ready_returns(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    with be.stream.hold():
        for _ in range(50):
            be.get(a)
        await be.ready()


@pytest.mark.long(cases=1)
async def test_ready_admits_first_come_first_served(device: AnyDevice) -> None:
    async with device.backend(max_queued=2) as be:
        s = sum_on(be)
        order: list[int] = []
        runs: list[aggml.Future[Array]] = []

        async def client(i: int) -> None:
            await be.ready()
            order.append(i)
            runs.append(s.run(be, ramp(start=i), ramp()))

        async with anyio.create_task_group() as tasks:
            with be.stream.hold():
                for i in range(8):
                    tasks.start_soon(client, i)
                    await wait_all_tasks_blocked()
                assert order == [0, 1]
        assert order == list(range(8))
        for i, run in enumerate(runs):
            assert np.array_equal(await run, 2 * ramp() + i)


async def test_run_and_a_batch_count_as_one(device: AnyDevice) -> None:
    async with device.backend(max_queued=3) as be:
        s = sum_on(be)
        with be.stream.hold():
            s.run(be, ramp(), ramp())
            with be.batch():
                be.set(s.a, ramp())
                be.set(s.b, ramp())
                be.graph_compute(s.graph)
                be.get(s.y)
            with anyio.fail_after(60):
                await be.ready()
            be.get(s.a)
            with anyio.move_on_after(0.01) as scope:
                await be.ready()
            assert scope.cancelled_caught


@pytest.mark.long(cases=1)
async def test_admitted_counts_as_pending(device: AnyDevice) -> None:
    async with device.backend(max_queued=2) as be:
        a = holding(be, ramp())
        order: list[int] = []
        go_on = anyio.Event()

        async def client(i: int) -> None:
            await be.ready()
            order.append(i)
            await go_on.wait()  # holds a slot, and has not submitted yet
            assert np.array_equal(await be.get(a), ramp())

        async with anyio.create_task_group() as tasks:
            for i in range(4):
                tasks.start_soon(client, i)
                await wait_all_tasks_blocked()
            assert order == [0, 1]
            go_on.set()
        assert order == [0, 1, 2, 3]


async def test_a_cancelled_waiter_gives_its_place_up(device: AnyDevice) -> None:
    async with device.backend(max_queued=1) as be:
        a = holding(be, ramp())
        order: list[str] = []
        scopes = {name: anyio.CancelScope() for name in "abc"}

        async def client(name: str) -> None:
            with scopes[name]:
                await be.ready()
                order.append(name)
                await be.get(a)

        async with anyio.create_task_group() as tasks:
            with be.stream.hold():
                be.get(a)
                for name in "abc":
                    tasks.start_soon(client, name)
                    await wait_all_tasks_blocked()
                scopes["a"].cancel()
                scopes["b"].cancel()
                await wait_all_tasks_blocked()
        assert order == ["c"]


async def test_cancelling_waiters_at_random_never_blocks_the_rest(
    device: AnyDevice, rng: np.random.Generator
) -> None:
    async with device.backend(max_queued=2) as be:
        s = sum_on(be)
        served = 0

        async def client(i: int) -> None:
            nonlocal served
            x = ramp(start=i)
            with anyio.move_on_after(float(rng.random()) * 2e-3):
                await be.ready()
                assert np.array_equal(await s.run(be, x, x).shield(), 2 * x)
                served += 1

        async with anyio.create_task_group() as tasks:
            for i in range(100):
                tasks.start_soon(client, i)
        with anyio.fail_after(60):
            await be.ready()
            assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())


async def test_a_refused_submission_gives_its_place_back(device: AnyDevice) -> None:
    """A submission that raises for misuse must give back the slot that it took."""
    async with device.backend(max_queued=1) as be:
        a = holding(be, ramp())
        for _ in range(3):
            with anyio.fail_after(60):
                await be.ready()
            with pytest.raises(aggml.LayoutMismatch):
                be.set(a, ramp(3))
        with anyio.fail_after(60):
            await be.ready()
        assert np.array_equal(await be.get(a), ramp())


async def test_a_task_that_ends_gives_its_place_back(device: AnyDevice) -> None:
    async with device.backend(max_queued=1) as be:
        a = holding(be, ramp())

        async def admitted_and_gone() -> None:
            await be.ready()

        async def waits() -> None:
            await be.ready()
            assert np.array_equal(await be.get(a), ramp())

        with anyio.fail_after(60):
            for _ in range(3):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(admitted_and_gone)
                    await wait_all_tasks_blocked()
                    tasks.start_soon(waits)


async def test_a_place_may_be_used_by_a_task_that_was_started_for_it(device: AnyDevice) -> None:
    async with device.backend(max_queued=1) as be:
        a = holding(be, ramp())
        got = 0

        async def get() -> None:
            nonlocal got
            assert np.array_equal(await be.get(a), ramp())
            got += 1

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    await be.ready()
                    tasks.start_soon(get)
        assert got == 10


@pytest.mark.parametrize("how", ["task ends", "asks again", "refused"])
async def test_the_first_waiter_hears_that_a_place_was_given_up(
    device: AnyDevice, how: str
) -> None:
    """The first one also waits for the oldest submission, which lasts until the test says so."""
    async with device.backend(max_queued=2) as be:
        a = holding(be, ramp())
        leave, came = anyio.Event(), anyio.Event()

        async def admitted() -> None:
            await be.ready()
            await leave.wait()
            if how == "asks again":
                await be.ready()

        async def waits() -> None:
            await be.ready()
            came.set()

        async with anyio.create_task_group() as tasks:
            with be.stream.hold():
                be.get(a)
                first = be._admission
                mine = await first.admit() if how == "refused" else None
                if how != "refused":
                    tasks.start_soon(admitted)
                await wait_all_tasks_blocked()
                tasks.start_soon(waits)
                await wait_all_tasks_blocked()
                assert not came.is_set()
                if mine is not None:
                    first.give_up(mine)
                leave.set()
                with anyio.fail_after(60):
                    await came.wait()


def test_tasks_of_several_loops_wait_for_one_backend(device: AnyDevice) -> None:
    """Each thread has a loop of its own; nobody starves, and the limit holds."""
    be = device.backend(max_queued=2)
    a = holding(be, ramp())
    got: list[int] = []

    async def client(i: int) -> None:
        for _ in range(10):
            await be.ready()
            assert np.array_equal(await be.get(a), ramp())
            got.append(i)

    async def clients(thread: int) -> None:
        async with anyio.create_task_group() as tasks:
            for i in range(4):
                tasks.start_soon(client, 4 * thread + i)

    def work(thread: int) -> None:
        anyio.run(clients, thread, backend=("asyncio", "trio")[thread % 2])

    in_threads([partial(work, thread) for thread in range(4)])
    assert sorted(got) == sorted([*range(16)] * 10)
    be.close()


@pytest.mark.parametrize("bad", [0, -1])
def test_max_queued_is_positive(device: AnyDevice, bad: int) -> None:
    with pytest.raises(aggml.InvalidArgument, match=f"max_queued={bad}"):
        device.backend(max_queued=bad)
