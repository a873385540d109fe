"""The public Stream: what a device written in Python is built from."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import N, holding, placed, ramp, sum_on
from waiting import until

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.devices.cpu import CPUBackend


@pytest.fixture
def stream() -> Iterator[aggml.Stream]:
    made = aggml.Stream("mine", pool=aggml.ThreadPool(1))
    yield made
    while made.native.release():
        pass
    made.abort()
    last = made.mark() if not made.closed else None
    made.close()
    assert last is None or last.wait(60)


async def test_copy_fill_and_run_plan(stream: aggml.Stream, cpu: CPUBackend) -> None:
    a, b = placed(cpu, name="a"), placed(cpu, name="b")
    y = ops.add(a, b)
    cpu.alloc([y])
    plan = aggml.compile_plan(Graph(y))
    out = np.empty(N, np.float32)
    stream.copy(a, ramp())
    stream.copy(b, a)
    stream.run_plan(plan)
    stream.copy(out, y)
    filled = stream.fill(a, 255)
    await filled
    assert np.array_equal(out, 2 * ramp())
    back = np.empty(N, np.float32)
    await stream.copy(back, a)
    assert np.isnan(back).all()
    assert "0 queued, idle" in repr(stream)


async def test_compile_plan_over_memory_that_the_caller_names(stream: aggml.Stream) -> None:
    a, b = aggml.new_tensor("f32", ne=(N,)), aggml.new_tensor("f32", ne=(N,))
    y = ops.add(a, b)
    memory = {a: ramp(), b: ramp(start=1), y: np.zeros(N, np.float32)}
    plan = aggml.compile_plan(Graph(y), addresses=lambda t: memory[t].ctypes.data)
    await stream.run_plan(plan)
    assert np.array_equal(memory[y], 2 * ramp() + 1)
    assert "1 steps" in repr(plan)
    assert "add" in str(plan)


def test_compile_plan_of_what_has_no_memory() -> None:
    a = aggml.new_tensor("f32", ne=(N,), name="nowhere")
    with pytest.raises(aggml.NotAllocated, match="nowhere"):
        aggml.compile_plan(Graph(ops.add(a, a)))


async def test_delay_occupies_no_thread() -> None:
    """20 delays are under way at once on one thread, which can still serve another stream."""
    pool = aggml.ThreadPool(1)
    streams = [aggml.Stream(f"s{i}", pool=pool) for i in range(20)]
    delays = [s.delay(1000) for s in streams]
    with anyio.fail_after(60):
        await until(lambda: all(d.times.started is not None for d in delays))
        await aggml.Stream("another", pool=pool).mark()
    assert not any(d.done() for d in delays)
    for delay in delays:
        delay.abort()
        with pytest.raises(aggml.Aborted):
            await delay


async def test_delay_lasts_as_long_as_was_asked_for(stream: aggml.Stream) -> None:
    begin = time.perf_counter()
    delay = stream.delay(0.05)
    await delay
    assert time.perf_counter() - begin >= 0.05
    assert delay.times.done is not None
    assert delay.times.done >= begin + 0.05


async def test_delay_keeps_the_order(stream: aggml.Stream) -> None:
    first = stream.mark()
    delay = stream.delay(0.01)
    last = stream.mark()
    await last
    assert delay.times.done is not None
    assert last.times.started is not None
    assert delay.times.done <= last.times.started
    assert first.done()


async def test_call_runs_on_a_python_thread_in_order(stream: aggml.Stream) -> None:
    seen: list[int] = []
    threads: set[int] = set()

    def note(i: int) -> int:
        seen.append(i)
        threads.add(threading.get_ident())
        return i * i

    futures = [stream.call(note, i) for i in range(50)]
    assert await aggml.gather(*futures) == [i * i for i in range(50)]
    assert seen == list(range(50))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_call_that_raises_fails_its_future_and_poisons(
    stream: aggml.Stream, cpu: CPUBackend
) -> None:
    a, b = holding(cpu, ramp()), holding(cpu, ramp(start=1))
    cause = KeyError("no such thing")

    def broken() -> None:
        raise cause

    called = stream.call(broken, writes=[a])
    out, other = np.empty(N, np.float32), np.empty(N, np.float32)
    behind, fine = stream.copy(out, a), stream.copy(other, b)
    for future in (called, behind):
        with pytest.raises(aggml.AggmlError) as caught:
            await future
        assert caught.value.__cause__ is cause
    await fine
    assert np.array_equal(other, ramp(start=1))


async def test_a_call_that_reads_what_failed_does_not_run(
    stream: aggml.Stream, cpu: CPUBackend
) -> None:
    a = placed(cpu)
    cause = ValueError("x")
    ran: list[bool] = []
    stream.fail(cause, writes=[a])
    called = stream.call(ran.append, True, reads=[a])
    with pytest.raises(aggml.AggmlError) as caught:
        await called
    assert caught.value.__cause__ is cause
    assert ran == []


async def test_an_aborted_call_does_not_run(stream: aggml.Stream) -> None:
    ran: list[int] = []
    with stream.hold():
        first, second = stream.call(ran.append, 1), stream.call(ran.append, 2)
        first.abort()
    with pytest.raises(aggml.Aborted):
        await first
    await second
    assert ran == [2]


async def test_a_call_may_enqueue_on_other_streams_and_wait_there(
    stream: aggml.Stream, cpu: CPUBackend
) -> None:
    s = sum_on(cpu)

    def compute() -> float:
        run = s.run(cpu, ramp(), ramp())
        assert run.wait(60)
        return float(run.result()[3])

    assert await stream.call(compute) == 6


async def test_wait_for_a_stream_a_future_and_an_event(
    stream: aggml.Stream, cpu: CPUBackend
) -> None:
    event = cpu.device.event()
    with cpu.stream.hold():
        future = cpu.synchronize()
        cpu.record(event)
        waits = [stream.wait(future), stream.wait(event), stream.wait(cpu.stream)]
        await wait_all_tasks_blocked()
        assert not any(w.done() for w in waits)
    await aggml.gather(*waits)


async def test_hold_nests_and_counts(stream: aggml.Stream) -> None:
    with stream.hold():
        with stream.hold():
            mark = stream.mark()
        await wait_all_tasks_blocked()
        assert not mark.done()
        assert stream.pending == 1
    await mark
    assert stream.pending == 0


async def test_what_runs_when_a_hold_begins_goes_on(stream: aggml.Stream) -> None:
    delay = stream.delay(0.01)
    while delay.times.started is None:
        await anyio.lowlevel.checkpoint()
    with stream.hold():
        await delay


async def test_closed_streams_refuse(stream: aggml.Stream, cpu: CPUBackend) -> None:
    a = holding(cpu, ramp())
    with stream.hold():
        mark = stream.mark()
        stream.close()
        for call in (
            lambda: stream.copy(a, ramp()),
            lambda: stream.fill(a, 0),
            lambda: stream.delay(1),
            lambda: stream.call(int),
            lambda: stream.fail(ValueError()),
            stream.mark,
        ):
            with pytest.raises(aggml.InvalidState, match="closed"):
                call()
    await mark


@pytest.mark.parametrize("n", [0, -1, 513])
def test_pools_have_1_to_512_threads(n: int) -> None:
    with pytest.raises(aggml.InvalidArgument, match=f"n_threads={n}"):
        aggml.ThreadPool(n)


async def test_a_call_that_was_aborted_lets_go_of_its_function(stream: aggml.Stream) -> None:
    class Function:
        def __call__(self) -> None:
            raise AssertionError

    function = Function()
    alive = weakref.ref(function)
    with stream.hold():
        called = stream.call(function)
        called.abort()
    with pytest.raises(aggml.Aborted):
        await called
    del function, called
    await stream.call(lambda: None)
    gc.collect()
    assert alive() is None
