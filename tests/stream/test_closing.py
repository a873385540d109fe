"""Backends that close: new work is refused, queued work is finished, waiting tasks are woken.

Not here: objects that are dropped while work needs them (test_lifetime.py).
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import assert_checkpoint, holding, ramp, sum_on

import aggml

if TYPE_CHECKING:
    from conftest import AnyDevice


async def test_close_refuses_new_work_and_lets_the_queue_run_dry(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        be.close()
        be.close()
        assert be.closed
        with pytest.raises(aggml.InvalidState, match="closed"):
            be.get(s.a)
    assert np.array_equal(await run, 2 * ramp())
    with pytest.raises(aggml.InvalidState, match="closed"):
        be.alloc_graph(s.graph)


async def test_aclose_waits_and_may_be_called_by_several_tasks(be: aggml.Backend) -> None:
    s = sum_on(be)
    closed = 0
    be.stream.native.hold()
    run = s.run(be, ramp(), ramp())

    async def close() -> None:
        nonlocal closed
        await be.aclose()
        assert run.done()
        closed += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        tasks.start_soon(close)
        await wait_all_tasks_blocked()
        assert be.closed
        assert closed == 0
        be.stream.native.release()
    assert closed == 2
    with assert_checkpoint():
        await be.aclose()
    assert np.array_equal(await run, 2 * ramp())


async def test_tasks_that_wait_survive_a_close_by_another_task(be: aggml.Backend) -> None:
    s = sum_on(be)
    got: list[object] = []

    async def wait() -> None:
        got.append(await run)

    async with anyio.create_task_group() as tasks:
        with be.stream.hold():
            run = s.run(be, ramp(), ramp())
            tasks.start_soon(wait)
            await wait_all_tasks_blocked()
            be.close()
        await be.aclose()
    assert np.array_equal(got[0], 2 * ramp())  # type: ignore[arg-type]


async def test_async_with_left_by_an_exception_aborts_queued_graphs(device: AnyDevice) -> None:
    be = device.backend()
    s = sum_on(be)
    be.stream.native.hold()
    copied, run, delay = be.set(s.a, ramp()), s.run(be, ramp(), ramp()), be.stream.delay(1000)

    async def release() -> None:
        await anyio.wait_all_tasks_blocked()  # until the task below waits for the end of the stream
        be.stream.native.release()

    async with anyio.create_task_group() as tasks:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 the body is what is tested
            async with be:
                tasks.start_soon(release)
                raise ZeroDivisionError
    assert be.closed
    await copied  # operations other than graphs and delays are finished
    for future in (run, delay):
        with pytest.raises(aggml.Aborted):
            await future


async def test_async_with_left_in_peace_drains(device: AnyDevice) -> None:
    async with device.backend() as be:
        s = sum_on(be)
        be.stream.delay(0.01)
        run = s.run(be, ramp(), ramp())
    assert run.done()
    assert np.array_equal(run.result(), 2 * ramp())


async def test_aclose_is_shielded_from_scopes(device: AnyDevice) -> None:
    be = device.backend()
    a = holding(be, ramp())
    with be.stream.hold():
        got = be.get(a)
        threading.Timer(0.02, be.stream.native.release).start()
        be.stream.native.hold()
        with anyio.CancelScope() as scope:
            scope.cancel()
            be.stream.native.release()
            await be.aclose()
            assert got.done()
        be.stream.native.hold()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"debug": True})], ids=["asyncio"])
async def test_a_native_cancel_ends_the_wait_but_not_the_close(device: AnyDevice) -> None:
    be = device.backend()
    a = holding(be, ramp())
    with be.stream.hold():
        got = be.get(a)
        task = asyncio.ensure_future(be.aclose())
        await wait_all_tasks_blocked()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert be.closed
        assert not got.done()
    assert np.array_equal(await got, ramp())
    await be.aclose()


def test_with_closes_and_waits_in_a_script(device: AnyDevice) -> None:
    with device.backend() as be:
        s = sum_on(be)
        be.stream.delay(0.01)
        run = s.run(be, ramp(), ramp())
    assert run.done()
    assert be.closed
    assert np.array_equal(run.result(), 2 * ramp())


async def test_with_in_a_loop_does_not_block_it(device: AnyDevice) -> None:
    with device.backend() as be:
        a = holding(be, ramp())
        be.stream.native.hold()
        got = be.get(a)
    assert be.closed
    assert not got.done()
    be.stream.native.release()
    assert np.array_equal(await got, ramp())
