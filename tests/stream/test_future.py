"""Future: state, awaiting from anywhere, abort, times, repr.

Not here: callbacks (test_callbacks.py), gather, cancellation, failure.
"""

from __future__ import annotations

import operator
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import Array, assert_checkpoint, holding, placed, ramp, sum_on

import aggml
from aggml.process.threads import new_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend


async def test_it_can_be_awaited_twice(be: aggml.Backend) -> None:
    future = be.get(holding(be, ramp()))
    first, second = await future, await future
    assert first is second
    assert np.array_equal(first, ramp())


async def test_several_tasks_await_one_future(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    got: list[Array] = []

    async def wait(future: aggml.Future[Array]) -> None:
        got.append(await future)

    async with anyio.create_task_group() as tasks:
        with be.stream.hold():
            future = be.get(tensor)
            for _ in range(10):
                tasks.start_soon(wait, future)
            await wait_all_tasks_blocked()
            assert got == []
    assert len(got) == 10
    assert all(g is got[0] for g in got)


@pytest.mark.parametrize("second", ["asyncio", "trio"])
async def test_loops_in_two_threads_await_one_future(be: aggml.Backend, second: str) -> None:
    tensor = holding(be, ramp())
    waiting = threading.Event()
    got: list[Array] = []

    async def elsewhere(future: aggml.Future[Array]) -> None:
        async with anyio.create_task_group() as tasks:

            async def tell() -> None:
                await wait_all_tasks_blocked()
                waiting.set()

            tasks.start_soon(tell)
            got.append(await future)

    be.stream.native.hold()
    future = be.get(tensor)
    thread = new_thread(lambda: anyio.run(elsewhere, future, backend=second), "elsewhere")
    thread.start()
    async with anyio.create_task_group() as tasks:

        async def here() -> None:
            got.append(await future)

        tasks.start_soon(here)
        await wait_all_tasks_blocked()
        assert await anyio.to_thread.run_sync(waiting.wait, 10)
        assert got == []
        be.stream.native.release()
    await anyio.to_thread.run_sync(thread.join, 60)
    assert len(got) == 2
    assert all(np.array_equal(g, ramp()) for g in got)


async def test_pending_is_invalid_state_and_never_blocks(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    with be.stream.hold():
        future = be.get(tensor)
        assert not future.done()
        with pytest.raises(aggml.InvalidState, match="get"):
            future.result()
        with pytest.raises(aggml.InvalidState, match="get"):
            future.exception()
    await future
    assert future.done()
    assert future.exception() is None
    assert np.array_equal(future.result(), ramp())


@pytest.mark.parametrize(
    "what",
    ["set", "get", "memset", "copy", "graph_compute", "run", "synchronize", "record", "accept"],
)
async def test_every_await_is_a_checkpoint_also_when_done(be: aggml.Backend, what: str) -> None:
    s = sum_on(be)
    twin = placed(be)
    x, event = ramp(), be.device.event()
    start: dict[str, Callable[[], aggml.Future[Any]]] = {
        "set": lambda: be.set(s.a, x),
        "get": lambda: be.get(s.a),
        "memset": lambda: be.memset(s.a, 0),
        "copy": lambda: be.copy(s.a, twin),
        "graph_compute": lambda: be.graph_compute(s.graph),
        "run": lambda: s.run(be, x, x),
        "synchronize": be.synchronize,
        "record": lambda: be.record(event),
        "accept": lambda: be.accept(s.a),
    }
    future = start[what]()
    with assert_checkpoint():
        await future
    assert future.done()
    with assert_checkpoint():
        await future
    with assert_checkpoint():
        await event
    with assert_checkpoint():
        await future.shield()


async def test_failures_are_raised_after_a_checkpoint(be: aggml.Backend) -> None:
    future = be.stream.fail(ValueError("broken"))
    for _ in range(2):
        with assert_checkpoint(), pytest.raises(aggml.AggmlError):
            await future


async def test_empty_gather_ready_and_prepare_are_checkpoints(be: aggml.Backend) -> None:
    s = sum_on(be)
    with assert_checkpoint():
        await be.ready()
    with assert_checkpoint():
        await be.prepare(s.graph)
    with assert_checkpoint():
        await be.reserve(0)
    with assert_checkpoint():
        await aggml.gather()


def test_wait_needs_no_loop(be: aggml.Backend) -> None:
    s = sum_on(be)
    future = s.run(be, ramp(), ramp())
    assert future.wait()
    assert future.wait(0)
    assert np.array_equal(future.result(), 2 * ramp())


def test_wait_tells_when_time_ran_out(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.stream.hold():
        future = s.run(be, ramp(), ramp())
        assert not future.wait(0)
        assert not future.wait(0.02)
        assert not future.wait(-1)
    assert future.wait(60)
    assert np.array_equal(future.result(), 2 * ramp())  # the timeout cancelled nothing


@pytest.mark.parametrize("timeout", ["1", b"1", [1], object(), 1j, np.ones(2)])
def test_a_timeout_that_is_no_number_is_refused(be: aggml.Backend, timeout: Any) -> None:
    with be.stream.hold():
        future = sum_on(be).run(be, ramp(), ramp())
        for wait in (future.wait, future.get):
            with pytest.raises(aggml.InvalidHandle, match=r"^\[Future\] timeout=.* is no number"):
                wait(timeout)
    assert future.wait(60)
    with pytest.raises(aggml.InvalidHandle):
        future.get(timeout)


def test_a_timeout_that_is_nan_is_refused(be: aggml.Backend) -> None:
    with be.stream.hold():
        future = sum_on(be).run(be, ramp(), ramp())
        for wait in (future.wait, future.get):
            with pytest.raises(aggml.InvalidArgument, match="timeout=nan"):
                wait(float("nan"))


@pytest.mark.parametrize("timeout", [1e300, float("inf"), 10**400, np.float32(60), np.int64(60)])
def test_a_long_timeout_waits_until_done(be: aggml.Backend, timeout: Any) -> None:
    tensor = holding(be, ramp())
    be.stream.native.hold()
    future = be.get(tensor)
    releaser = threading.Thread(target=be.stream.native.release)
    releaser.start()
    assert np.array_equal(future.get(timeout), ramp())
    releaser.join()


def test_wait_lets_other_threads_run(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    be.stream.native.hold()
    future = be.get(tensor)
    releaser = threading.Thread(target=be.stream.native.release)
    releaser.start()  # this thread gets the GIL only if the wait below releases it
    assert future.wait(60)
    releaser.join()


def test_many_threads_wait_for_one_future(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    results: list[bool] = []
    with be.stream.hold():
        future = be.get(tensor)
        threads = [
            threading.Thread(target=lambda: results.append(future.wait(60))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


async def test_await_outside_of_a_loop_says_so(be: aggml.Backend) -> None:
    future = be.synchronize()
    await future
    raised: list[BaseException] = []

    def step() -> None:
        try:
            future.__await__().send(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert isinstance(raised[0], aggml.InvalidState)
    assert "wait()" in str(raised[0])


# -- abort, times, repr


async def test_abort_is_done_in_its_turn_and_later_work_goes_on(sim: SimBackend) -> None:
    s = sum_on(sim)
    with sim.hold():
        before = sim.set(s.a, ramp())
        sim.set(s.b, ramp())
        computed = sim.graph_compute(s.graph)
        after = sim.get(s.a)
        computed.abort()
        await wait_all_tasks_blocked()
        assert not computed.done()
    await before
    with pytest.raises(aggml.Aborted):
        await computed
    assert np.array_equal(await after, ramp())
    with pytest.raises(aggml.Aborted):
        await sim.get(s.y)
    await sim.graph_compute(s.graph)
    assert np.array_equal(await sim.get(s.y), 2 * ramp())


async def test_abort_ends_a_delay_early(be: aggml.Backend) -> None:
    delay = be.stream.delay(1000)
    after = be.stream.mark()
    await wait_all_tasks_blocked()
    delay.abort()
    with anyio.fail_after(60), pytest.raises(aggml.Aborted):
        await delay
    await after


async def test_abort_of_what_is_done_changes_nothing(be: aggml.Backend) -> None:
    s = sum_on(be)
    future = s.run(be, ramp(), ramp())
    await future
    future.abort()
    assert np.array_equal(await future, 2 * ramp())
    assert np.array_equal(await be.get(s.y), 2 * ramp())


async def test_abort_stops_a_running_plan_between_its_nodes(cpu: CPUBackend) -> None:
    n = 1 << 20
    a = aggml.new_tensor("f32", ne=(n,), name="a")
    y = a
    for _ in range(1000):  # about 100 ms of work on a machine of 2025
        y = aggml.ops.add(y, a)
    graph = aggml.Graph(y)
    cpu.alloc_graph(graph)
    future = cpu.graph_compute(graph)
    while future.times.started is None:
        await anyio.lowlevel.checkpoint()
    future.abort()
    with pytest.raises(aggml.Aborted):
        await future
    with pytest.raises(aggml.Aborted):
        await cpu.get(y)
    await cpu.set(a, np.zeros(n, np.float32))
    await cpu.graph_compute(graph)
    assert not (await cpu.get(y)).any()


async def test_times_are_seconds_of_perf_counter_in_order(be: aggml.Backend) -> None:
    s = sum_on(be)
    before = time.perf_counter()
    with be.stream.hold():
        future = s.run(be, ramp(), ramp())
        times = future.times
        assert times.started is None
        assert times.done is None
        assert before <= times.submitted <= time.perf_counter()
    await future
    after = time.perf_counter()
    submitted, started, done = future.times
    assert started is not None
    assert done is not None
    assert before <= submitted <= started <= done <= after
    assert future.times._fields == ("submitted", "started", "done")


async def test_times_and_error_stay_after_much_later_work(be: aggml.Backend) -> None:
    failed = be.stream.fail(KeyError("early"))
    times = (await _outcome(failed), failed.times)
    tensor = holding(be, ramp())
    for _ in range(300):  # far more than a block of the ring of operations holds
        be.get(tensor)
    await be.synchronize()
    assert failed.times == times[1]
    with pytest.raises(aggml.AggmlError) as caught:
        failed.result()
    assert isinstance(caught.value.__cause__, KeyError)


async def _outcome(future: aggml.Future[object]) -> BaseException | None:
    try:
        await future
    except aggml.AggmlError as error:
        return error
    return None


async def test_repr_shows_state(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    with be.stream.hold():
        future = be.get(tensor)
        assert repr(future) == "<Future get, pending>"
        assert "1 queued" in repr(be)
    await future
    assert repr(future) == "<Future get, done>"
    assert be.device.name in repr(be)
    assert "0 queued, idle" in repr(be)
    failed = be.stream.fail(ValueError("x"))
    assert failed.wait(60)
    assert repr(failed) == "<Future fail, failed>"
    failed.exception()
    be.close()
    assert "closed" in repr(be)


#: What somebody writes who has forgotten an await.
FORGOTTEN: dict[str, Callable[[Any], object]] = {
    "sum": lambda f: f + 1,
    "sum on the right": lambda f: 1 + f,
    "sum with an array": lambda f: np.ones(3, np.float32) + f,
    "product": lambda f: f @ np.ones(3, np.float32),
    "negative": operator.neg,
    "power": lambda f: f**2,
    "order": lambda f: f < 1,
    "element": lambda f: f[0],
    "slice": lambda f: f[1:, None],
    "assignment": lambda f: operator.setitem(f, 0, 1),
    "membership": lambda f: 1 in f,
    "iteration": list,
    "length": len,
    "number": float,
    "integer": int,
    "index": lambda f: [1, 2, 3][f],
    "array": np.asarray,
    "array of a type": lambda f: np.array(f, np.float32),
    "sum by numpy": np.sum,
    "function of numpy": np.exp,
    "loop of numpy": lambda f: np.concatenate([f, f]),
}


@pytest.mark.parametrize("use", FORGOTTEN.values(), ids=FORGOTTEN)
async def test_a_forgotten_await_is_named(be: aggml.Backend, use: Callable[[Any], object]) -> None:
    future = be.get(holding(be, ramp()))
    with pytest.raises(aggml.InvalidHandle, match=r"get.*await it, or block for it with get\(\)"):
        use(future)
    await future


async def test_an_attribute_of_the_value_asks_for_an_await(be: aggml.Backend) -> None:
    future: Any = be.get(holding(be, ramp()))
    with pytest.raises(AttributeError, match=r"no attribute 'shape'.*await it"):
        future.shape.index(1)
    assert not hasattr(future, "mean")
    assert not hasattr(future, "__wrapped__")
    assert future
    assert await future is future.result()
