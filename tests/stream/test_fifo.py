"""FifoLock and FifoSemaphore: tasks of several loops and threads, first come, first served."""

from __future__ import annotations

import asyncio
import gc
import threading
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from support import in_threads

from aggml.stream.fifo import FifoLock, FifoSemaphore

PATIENCE_S = 60


@pytest.mark.long(cases=1)
async def test_first_come_first_served() -> None:
    lock = FifoLock()
    order: list[int] = []

    async def client(i: int) -> None:
        async with lock:
            order.append(i)

    async with anyio.create_task_group() as tasks, lock:
        assert lock.locked()
        for i in range(8):
            tasks.start_soon(client, i)
            await wait_all_tasks_blocked()
        assert order == []
    assert order == [*range(8)]
    assert not lock.locked()


async def test_so_many_places_and_no_more() -> None:
    places = FifoSemaphore(3)
    inside = most = 0

    async def client() -> None:
        nonlocal inside, most
        async with places:
            inside += 1
            most = max(most, inside)
            await anyio.lowlevel.checkpoint()
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(client)
    assert most == 3
    assert len(places.free) == 3


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("which", [(0,), (0, 1), (1,), (0, 1, 2)])
async def test_a_waiter_that_is_cancelled_leaves_the_line(which: tuple[int, ...]) -> None:
    lock = FifoLock()
    order: list[int] = []
    scopes = [anyio.CancelScope() for _ in range(4)]

    async def client(i: int) -> None:
        with scopes[i]:
            async with lock:
                order.append(i)

    async with anyio.create_task_group() as tasks:
        await lock.acquire()
        for i in range(4):
            tasks.start_soon(client, i)
            await wait_all_tasks_blocked()
        lock.release()  # the first one is woken, and cancelled before it runs
        for i in which:
            scopes[i].cancel()
    assert order == [i for i in range(4) if i not in which]
    assert not lock.locked()


async def test_who_came_later_does_not_overtake() -> None:
    lock = FifoLock()
    order: list[str] = []

    async def waits() -> None:
        async with lock:
            order.append("waited")

    async with anyio.create_task_group() as tasks:
        await lock.acquire()
        tasks.start_soon(waits)
        await wait_all_tasks_blocked()
        lock.release()
        assert not lock.acquire_nowait()
        async with lock:
            order.append("came later")
    assert order == ["waited", "came later"]


@pytest.mark.parametrize("loops", [("asyncio",), ("trio",), ("asyncio", "trio")])
def test_tasks_of_several_loops(loops: tuple[str, ...]) -> None:
    lock = FifoLock()
    count = inside = 0

    async def client() -> None:
        nonlocal count, inside
        for _ in range(20):
            async with lock:
                inside += 1
                await anyio.lowlevel.checkpoint()
                assert inside == 1
                count += 1
                inside -= 1

    async def clients() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(client)

    in_threads([partial(anyio.run, clients, backend=loops[i % len(loops)]) for i in range(4)])
    assert count == 4 * 3 * 20


def test_a_loop_that_was_closed_while_a_task_waits_does_not_hold_the_others_up() -> None:
    lock = FifoLock()
    loop = asyncio.new_event_loop()
    task = loop.create_task(lock.acquire())

    async def hold() -> None:
        await lock.acquire()

    asyncio.run(hold())
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    assert not task.done()
    loop.close()

    async def waits() -> None:
        async with lock:
            pass

    def release() -> None:
        lock.release()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waits)
            await wait_all_tasks_blocked()
            release()

    in_threads([partial(anyio.run, main)])
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_waiter_that_is_dropped_leaves_the_line_whoever_collects_it() -> None:
    lock = FifoLock()

    async def main() -> None:
        await lock.acquire()
        waiter: Any = lock.acquire()
        for _ in range(2):  # the checkpoint, then asleep
            waiter.send(None)
        cycle = [waiter]
        cycle.append(cycle)
        del waiter, cycle
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        lock.release()
        with anyio.fail_after(PATIENCE_S):
            async with lock:
                pass

    in_threads([partial(anyio.run, main)])
    assert not lock.locked()
