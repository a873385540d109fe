"""Futures passed where asyncio expects coroutines: create_task, TaskGroup, wait, gather, run."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import holding, ramp, sum_on, without_collector

import aggml

if TYPE_CHECKING:
    from conftest import AnyDevice

pytestmark = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"debug": True})], ids=["asyncio"]
)


async def test_create_task(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        # each task awaits the run in its own way through `Future.__await__`
        tasks = [asyncio.create_task(run) for _ in range(3)]
        await wait_all_tasks_blocked()
        assert not any(task.done() for task in tasks)
    values = await asyncio.gather(*tasks, run)
    assert all(value is values[0] for value in values)
    assert np.array_equal(values[0], 2 * ramp())
    assert await asyncio.create_task(run) is values[0]  # a Future that is done works, too


async def test_a_task_group(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(be.get(tensor)) for _ in range(3)]
    assert all(np.array_equal(task.result(), ramp()) for task in tasks)


async def test_wait_takes_tasks_and_names_them(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    with pytest.raises(TypeError, match="use tasks explicitly"):
        await asyncio.wait([be.get(tensor)])  # type: ignore[type-var]
    with be.stream.hold():
        tasks = [asyncio.create_task(be.get(tensor)) for _ in range(2)]
        done, pending = await asyncio.wait(tasks, timeout=0.001)
        assert not done
        assert pending == set(tasks)
    done, pending = await asyncio.wait(tasks)
    assert done == set(tasks)


async def test_a_failed_future_fails_its_task(be: aggml.Backend) -> None:
    task = asyncio.create_task(be.stream.fail(ValueError("broken")))
    with pytest.raises(aggml.AggmlError, match="broken"):
        await task


async def test_cancelling_the_last_task_aborts_a_run(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        first, second = asyncio.create_task(run), asyncio.create_task(run)
        await wait_all_tasks_blocked()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not second.done()
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
    with pytest.raises(aggml.Aborted):
        await run


async def test_a_task_that_is_cancelled_before_it_began(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        task = asyncio.create_task(run)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    # the run was not aborted: a task that never began never was its waiter
    assert np.array_equal(await run, 2 * ramp())


async def test_a_task_leaves_no_cycle(be: aggml.Backend) -> None:
    future = be.stream.mark()
    gone = weakref.ref(future)
    await asyncio.create_task(future)
    with without_collector():
        del future
        await asyncio.sleep(0)
        assert gone() is None


async def test_wait_for_shield_and_as_completed(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    assert np.array_equal(await asyncio.wait_for(be.get(tensor), 60), ramp())
    assert np.array_equal(await asyncio.shield(be.get(tensor)), ramp())
    for done in asyncio.as_completed([be.get(tensor), be.get(tensor)]):
        assert np.array_equal(await done, ramp())


async def test_closing_one_does_nothing(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    with be.stream.hold():
        future = be.get(tensor)
        future.close()
    assert np.array_equal(await future, ramp())


async def test_a_loop_that_runs_one(device: AnyDevice) -> None:
    be = device.backend()

    def script() -> None:
        assert asyncio.run(be.synchronize()) is None

    await asyncio.to_thread(script)
    be.close()
