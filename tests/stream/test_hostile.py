"""Exceptions whose own methods fail, raised wherever aggml calls foreign code: nothing hangs."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hostile import HOSTILE, Broken
from support import N, holding, ramp

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimDevice
from aggml.stream.call_thread import join_callers

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from aggml.devices.cpu import CPUBackend

PATIENCE_S = 60


def call(be: Any, problem: BaseException) -> aggml.Future[Any]:
    def fails() -> None:
        raise problem

    return be.stream.call(fails)  # type: ignore[no-any-return]


def custom(be: Any, problem: BaseException) -> aggml.Future[Any]:
    def fails(*_: object) -> None:
        raise problem

    a = aggml.new_tensor("f32", ne=(N,), name="a")
    y = ops.map_custom1(a, fails, 1, None)
    graph = Graph(y)
    be.alloc_graph(graph)
    return be.run(graph, {a: ramp()}, y)  # type: ignore[no-any-return]


def fail(be: Any, problem: BaseException) -> aggml.Future[Any]:
    return be.stream.fail(problem)  # type: ignore[no-any-return]


def lose(be: Any, problem: BaseException) -> aggml.Future[Any]:
    with be.stream.hold():
        future = be.stream.delay(0)
        be.stream.lose(problem)
    return future  # type: ignore[no-any-return]


def simulate(be: Any, problem: BaseException) -> aggml.Future[Any]:
    device = SimDevice("SIM")
    sim = device.backend()
    a = holding(sim, ramp())
    device.fail_at(0, "transfer", problem)
    return sim.get(a)


ENDS_THE_LOOP = ("KeyboardInterrupt", "SystemExit")
WAYS = [call, custom, fail, lose, simulate]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HOSTILE)
async def test_work_fails_with_the_exception_as_its_cause_and_later_work_goes_on(
    cpu: CPUBackend, name: str, way: Callable[[Any, BaseException], aggml.Future[Any]]
) -> None:
    problem = HOSTILE[name]()
    be = cpu if way is not lose else cpu.device.backend(n_threads=1)
    future = way(be, problem)
    assert future.wait(PATIENCE_S), "hangs"
    with pytest.raises(aggml.AggmlError) as caught:
        await future
    assert caught.value.__cause__ is problem
    assert type(caught.value).__module__ == "aggml.errors" or name.startswith("ours")
    assert "[" in str(caught.value) or name.startswith("ours")
    assert "failed" in repr(future)
    if way is not lose:
        assert await be.stream.call(lambda: 7) == 7
    be.close()


@pytest.mark.parametrize("name", HOSTILE)
async def test_failures_that_nobody_saw_are_reported(cpu: CPUBackend, name: str) -> None:
    call(cpu, HOSTILE[name]()).wait(PATIENCE_S)
    with pytest.raises(ExceptionGroup) as caught:
        await cpu.synchronize()
    assert len(caught.value.exceptions) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_failures_that_nobody_saw_are_logged_at_the_end(
    cpu: CPUBackend, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    call(cpu, HOSTILE[name]()).wait(PATIENCE_S)
    cpu.close()
    assert "nobody saw" in caplog.text


@pytest.mark.parametrize("name", [n for n in HOSTILE if n not in ENDS_THE_LOOP])
async def test_a_callback_that_raises_leaves_other_callbacks_and_waits(
    cpu: CPUBackend, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    problem = HOSTILE[name]()
    called = anyio.Event()
    begun = 0

    def fails(_: object) -> None:
        nonlocal begun
        begun += 1
        raise problem

    with cpu.stream.hold():
        future = cpu.stream.delay(0)
        future.add_done_callback(fails)
        future.add_done_callback(lambda _: called.set())
        later = cpu.stream.call(lambda: 7)
    with anyio.fail_after(PATIENCE_S):
        await called.wait()
        assert await later == 7
        called = anyio.Event()
        future.add_done_callback(fails)  # it is done: the loop calls soon
        future.add_done_callback(lambda _: called.set())
        await called.wait()
    assert begun == 2
    assert "failed" in caplog.text


async def test_a_callback_and_a_log_handler_that_raise_leave_other_callbacks(
    cpu: CPUBackend,
) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise Broken

    def fails(_: object) -> None:
        raise Broken

    handler = Handler()
    logging.getLogger("aggml").addHandler(handler)
    try:
        called = anyio.Event()
        with cpu.stream.hold():
            future = cpu.stream.delay(0)
            future.add_done_callback(fails)
            future.add_done_callback(lambda _: called.set())
        with anyio.fail_after(PATIENCE_S):
            await called.wait()
        cpu.stream.fail(Broken()).wait(PATIENCE_S)
        await cpu.aclose()  # which logs the failure that nobody saw
    finally:
        logging.getLogger("aggml").removeHandler(handler)


def test_what_failed_keeps_no_variable_of_the_function_alive(cpu: CPUBackend) -> None:
    class Kept:
        pass

    for name, make in HOSTILE.items():
        kept = Kept()
        gone = weakref.ref(kept)
        problem = make()

        def fails(thing: object = kept, problem: BaseException = problem) -> None:
            raise problem

        future = cpu.stream.call(fails)
        assert future.wait(PATIENCE_S)
        del fails, kept
        cpu.stream.call(int).get()
        cpu.stream.native.release_finished()
        gc.collect()
        assert gone() is None, name


def test_a_text_that_is_no_unicode_may_name_a_node_that_fails(cpu: CPUBackend) -> None:
    def fails(*_: object) -> None:
        raise ValueError("\udc80")

    a = aggml.new_tensor("f32", ne=(N,), name="a")
    y = ops.map_custom1(a, fails, 1, None)
    graph = Graph(y)
    cpu.alloc_graph(graph)
    array: np.ndarray[Any, Any] = ramp()
    future = cpu.run(graph, {a: array}, y)
    assert future.wait(PATIENCE_S)
    with pytest.raises(aggml.DeviceError, match=r"udc80"):
        future.result()


def test_threads_that_still_run_a_function_at_exit_are_waited_for_together() -> None:
    now = 100.0

    class Stuck(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            nonlocal now
            assert timeout is not None
            now += timeout

    join_callers([Stuck() for _ in range(50)], 2.0, lambda: now)
    assert now == 102.0
