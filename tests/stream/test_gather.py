"""gather and as_completed: order, failures, cancellation, Futures of several streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import assert_checkpoint, holding, ramp, sum_on

import aggml

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend


async def test_gather_keeps_the_order_given(be: aggml.Backend, other: aggml.Backend) -> None:
    s, t = sum_on(be), holding(other, ramp(start=5))
    with be.stream.hold():
        slow, fast = s.run(be, ramp(), ramp()), other.get(t)
        await fast
    values = await aggml.gather(slow, fast, slow)
    assert np.array_equal(values[0], 2 * ramp())
    assert np.array_equal(values[1], ramp(start=5))
    assert values[2] is values[0]


async def test_gather_of_what_is_done_is_a_checkpoint(be: aggml.Backend) -> None:
    futures = [be.synchronize(), be.synchronize()]
    await be.synchronize()
    with assert_checkpoint():
        assert await aggml.gather(*futures) == [None, None]


async def test_gather_raises_the_first_failure_at_once(sim: SimBackend, cpu: CPUBackend) -> None:
    s = sum_on(sim)
    with sim.hold():
        slow = s.run(sim, ramp(), ramp())
        broken = cpu.stream.fail(ValueError("broken"))
        with anyio.fail_after(60), pytest.raises(aggml.AggmlError, match="broken"):
            await aggml.gather(slow, broken)
        assert not slow.done()
    assert np.array_equal(await slow, 2 * ramp())  # the other Futures go on


async def test_as_completed_yields_in_the_order_of_completion(
    sim: SimBackend, cpu: CPUBackend
) -> None:
    t, u = holding(sim, ramp()), holding(cpu, ramp())
    seen: list[aggml.Future[object]] = []
    sim.hold()
    late, early = sim.get(t), cpu.get(u)
    async for future in aggml.as_completed([late, early, late]):
        seen.append(future)
        if future is early:
            sim.release()
    assert seen == [early, late]


async def test_as_completed_hands_out_failures_as_futures(be: aggml.Backend) -> None:
    good, bad = be.stream.mark(), be.stream.fail(KeyError("k"))
    errors = [future.exception() async for future in aggml.as_completed([good, bad])]
    assert errors[0] is None
    assert isinstance(errors[1], aggml.AggmlError)


async def test_every_step_of_as_completed_is_a_checkpoint(be: aggml.Backend) -> None:
    futures = [be.stream.mark() for _ in range(3)]
    await be.synchronize()
    completed = aiter(aggml.as_completed(futures))
    for _ in range(3):
        with assert_checkpoint():
            await anext(completed)
    with pytest.raises(StopAsyncIteration):
        await anext(completed)


async def test_leaving_as_completed_early_aborts_nothing(be: aggml.Backend) -> None:
    s = sum_on(be)
    first = be.stream.mark()
    await first
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        async for future in aggml.as_completed([run, first]):
            assert future is first
            break
        assert not run.done()
        assert run._waiters == 0  # leaving the loop early ends its wait for the others
    assert np.array_equal(await run, 2 * ramp())


@pytest.mark.parametrize("how", ["gather", "as_completed"])
async def test_cancelled_they_abort_runs_that_nobody_else_waits_for(
    be: aggml.Backend, how: str
) -> None:
    s = sum_on(be)

    async def wait(futures: list[aggml.Future[object]]) -> None:
        if how == "gather":
            await aggml.gather(*futures)
        else:
            async for _ in aggml.as_completed(futures):
                pass

    with be.stream.hold():
        set_ = be.set(s.a, ramp(start=1))
        alone, shared = s.run(be, ramp(), ramp()), s.run(be, ramp(), ramp())
        async with anyio.create_task_group() as tasks:
            waiting = anyio.CancelScope()

            async def wait_all() -> None:
                with waiting:
                    await wait([set_, alone, shared])

            async def wait_shared() -> None:
                assert np.array_equal(await shared, 2 * ramp())

            tasks.start_soon(wait_all)
            tasks.start_soon(wait_shared)
            await wait_all_tasks_blocked()
            waiting.cancel()
            await wait_all_tasks_blocked()
            be.stream.native.release()
    await set_
    with pytest.raises(aggml.Aborted):
        await alone


async def test_a_failure_in_gather_aborts_nothing(be: aggml.Backend, cpu: CPUBackend) -> None:
    s = sum_on(be)
    broken = cpu.stream.fail(ValueError("broken"))
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        with pytest.raises(aggml.AggmlError):
            await aggml.gather(broken, run)
    assert np.array_equal(await run, 2 * ramp())


@pytest.mark.parametrize("how", ["gather", "as_completed", "await", "shield"])
async def test_a_refused_wait_aborts_nothing(be: aggml.Backend, how: str) -> None:
    """gather refuses a Future of an open batch. The run beside it must not be aborted."""
    s = sum_on(be)

    async def wait(run: aggml.Future[object], queued_later: aggml.Future[object]) -> None:
        if how == "gather":
            await aggml.gather(run, queued_later)
        elif how == "as_completed":
            await anext(aiter(aggml.as_completed([run, queued_later])))
        else:
            await (queued_later if how == "await" else queued_later.shield())

    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        with be.batch():
            queued_later = be.get(s.a)
            with pytest.raises(aggml.InvalidState, match="batch"):
                await wait(run, queued_later)
        assert run._waiters == 0
    assert np.array_equal(await run, 2 * ramp())
    await queued_later


def test_waiting_without_a_loop_aborts_nothing(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        run = s.run(be, ramp(), ramp())
        for awaitable in (run, run.shield(), aggml.gather(run)):
            with pytest.raises((aggml.InvalidState, RuntimeError)):
                awaitable.__await__().send(None)
        assert run._waiters == 0
    assert np.array_equal(run.get(60), 2 * ramp())


async def test_what_is_no_future_is_refused() -> None:
    async def coroutine() -> None: ...

    left = coroutine()
    with pytest.raises(aggml.InvalidHandle, match="coroutine"):
        await aggml.gather(left)  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidHandle, match="42"):
        aggml.as_completed([42])  # type: ignore[arg-type]
    left.close()


async def test_what_is_no_future_is_refused_by_the_name_of_the_function(be: aggml.Backend) -> None:
    future = be.get(holding(be, ramp()))
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((future, 5), r"^\[gather\] 5 is no Future$"),
        (([future],), r"^\[gather\] \[<Future .* is no Future: call gather\(\*futures\)$"),
    ]
    for given, said in cases:
        with pytest.raises(aggml.InvalidHandle, match=said):
            await aggml.gather(*given)
    wrong: list[Any] = [future, 5, None]
    for one in wrong:
        with pytest.raises(
            aggml.InvalidHandle, match=r"^\[as_completed\] .* is no list of Futures$"
        ):
            aggml.as_completed(one)
    with pytest.raises(aggml.InvalidHandle, match=r"^\[as_completed\] None is no Future$"):
        aggml.as_completed([future, None])  # type: ignore[list-item]
    assert np.array_equal(await future, ramp())
