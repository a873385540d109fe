"""SlotPool: slots for tasks of several event loops and threads; first come, first served."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from functools import partial

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from support import in_a_thread

import aggml
from aggml.process.threads import new_thread
from aggml.stream.slot_pool import SlotPool


async def test_a_slot_is_a_number_and_comes_back() -> None:
    pool = SlotPool(2)
    assert {await pool.take(), await pool.take()} == {0, 1}
    assert pool.free == 0
    pool.give(1)
    assert await pool.take() == 1


async def test_a_wanted_slot_is_taken_if_it_is_free() -> None:
    pool = SlotPool(3)
    assert await pool.take(2) == 2
    assert await pool.take(2) in {0, 1}


@pytest.mark.long(cases=1)
async def test_tasks_are_served_in_the_order_in_which_they_came() -> None:
    pool, order = SlotPool(1), list[int]()
    slot = await pool.take()
    async with anyio.create_task_group() as tasks:

        async def wait(i: int) -> None:
            async with pool.slot():
                order.append(i)
                await checkpoint()

        for i in range(20):
            tasks.start_soon(wait, i)
            await anyio.wait_all_tasks_blocked()
        pool.give(slot)
    assert order == list(range(20))


async def test_a_cancelled_wait_takes_no_slot() -> None:
    pool = SlotPool(1)
    async with pool.slot():
        for _ in range(100):
            with anyio.move_on_after(0):
                await pool.take()
        assert len(pool._queue) < 10  # tasks that have left do not stay in the queue
    assert await pool.take() == 0


async def test_a_slot_that_comes_with_a_cancellation_is_given_back() -> None:
    pool = SlotPool(1)
    slot = await pool.take()
    scope = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            with scope:
                await pool.take()

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        pool.give(slot)
        scope.cancel()
    # Whether the task or the cancellation was first, no slot is lost.
    assert pool.free == (1 if scope.cancelled_caught else 0)


@pytest.mark.parametrize("there", ["asyncio", "trio"])
async def test_a_task_is_woken_from_another_loop_and_thread(there: str) -> None:
    pool = SlotPool(1)
    slot = await pool.take()
    ready, got = threading.Event(), list[int]()

    async def take() -> None:
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                got.append(await pool.take())

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            ready.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, lambda: anyio.run(take, backend=there))
        await anyio.to_thread.run_sync(ready.wait)
        pool.give(slot)
    assert got == [0]


def test_many_threads_share_a_lock() -> None:
    pool, inside, most = SlotPool(1), 0, 0

    async def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            async with pool.slot():
                inside += 1
                most = max(most, inside)
                await checkpoint()
                inside -= 1

    def run() -> None:
        loops = ["asyncio", "trio"]
        threads = [
            new_thread(partial(anyio.run, work, backend=loops[i % 2]), f"work {i}")
            for i in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    in_a_thread(run)
    assert most == 1
    assert pool.free == 1


def test_a_task_whose_loop_was_closed_gets_no_slot() -> None:
    pool = SlotPool(1)
    taken = asyncio.run(pool.take())
    loop = asyncio.new_event_loop()
    task = loop.create_task(pool.take())
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    pool.give(taken)
    assert pool.free == 1
    setattr(task, "_log_destroy_pending", False)  # noqa: B010 asyncio would log it
    del task
    gc.collect()
    assert pool.free == 1


def test_a_child_of_a_fork_is_told_that_it_cannot_wait() -> None:
    pool = SlotPool(1)
    child = os.fork()
    if not child:
        try:
            asyncio.run(pool.take())
        except aggml.InvalidState:
            os._exit(17)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


async def test_a_pool_needs_a_slot() -> None:
    with pytest.raises(aggml.InvalidArgument, match="slots is 0"):
        SlotPool(0)
