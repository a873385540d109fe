"""Batches: one step against other threads, what is refused inside, a body that raises."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import holding, placed, ramp, sum_on

import aggml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.devices.cpu import CPUBackend


@pytest.fixture
def stream() -> Iterator[aggml.Stream]:
    made = aggml.Stream("mine")
    yield made
    last = made.mark()
    made.close()
    assert last.wait(60)


async def test_a_batch_is_enqueued_at_its_end(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.batch():
        futures = [be.set(s.a, ramp()), be.set(s.b, ramp()), be.graph_compute(s.graph)]
        got, ran = be.get(s.y), s.run(be, ramp(start=1), ramp())
        assert be.pending == 0
        assert not any(f.done() for f in (*futures, got, ran))
        assert "open batch" in repr(got)
    assert np.array_equal(await got, 2 * ramp())
    assert np.array_equal(await ran, 2 * ramp() + 1)
    await aggml.gather(*futures)


async def test_an_empty_batch(be: aggml.Backend) -> None:
    with be.batch():
        pass
    assert be.pending == 0


async def test_a_batch_is_one_step_against_other_threads(be: aggml.Backend) -> None:
    """Two threads each set and read back; no operation of the other thread comes in between."""
    a = placed(be)
    wrong: list[float] = []

    def work(value: float) -> None:
        x = np.full(a.ne[0], value, np.float32)
        for _ in range(300):
            with be.batch():
                be.set(a, x)
                got = be.get(a)
            assert got.wait(60)
            if not np.array_equal(got.result(), x):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(v,)) for v in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    assert wrong == []


async def test_another_thread_enqueues_freely_meanwhile(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    got: list[bool] = []
    with be.batch():
        inside = be.get(a)
        thread = threading.Thread(target=lambda: got.append(be.get(a).wait(60)))
        thread.start()
        thread.join()
    assert got == [True]
    await inside


async def test_waiting_for_one_of_its_futures_inside_is_refused(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    with be.batch():
        future = be.get(a)
        with pytest.raises(aggml.InvalidState, match="batch"):
            await future
        with pytest.raises(aggml.InvalidState, match="batch"):
            await future.shield()
        with pytest.raises(aggml.InvalidState, match="batch"):
            future.wait(60)
        with pytest.raises(aggml.InvalidState, match="batch"):
            await aggml.gather(future)
        for look in (future.result, future.exception):
            with pytest.raises(aggml.InvalidState):
                look()
        with pytest.raises(aggml.InvalidState, match="batch"):
            future.add_done_callback(print)
    assert np.array_equal(await future, ramp())


async def test_another_task_of_the_thread_is_refused_meanwhile(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    seen: list[BaseException] = []
    futures: list[aggml.Future[Any]] = []

    async def intrude() -> None:
        for call in (
            lambda: be.get(a),
            lambda: be.set(a, ramp()),
            be.synchronize,
            be.batch().__enter__,
        ):
            try:
                call()
            except aggml.InvalidState as error:
                seen.append(error)

    async with anyio.create_task_group() as tasks:
        with be.batch():
            futures.append(be.get(a))
            tasks.start_soon(intrude)
            await wait_all_tasks_blocked()
    assert len(seen) == 4
    assert np.array_equal(await futures[0], ramp())
    assert np.array_equal(await be.get(a), ramp())


async def test_batches_do_not_nest(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    with be.batch():
        outer = be.get(a)
        with pytest.raises(aggml.InvalidState, match="batch"), be.batch():
            pass
        second = be.get(a)
    await outer
    await second


async def test_if_the_body_raises_nothing_is_enqueued(be: aggml.Backend) -> None:
    s = sum_on(be)
    be.set(s.a, ramp())
    await be.synchronize()
    event = be.device.event()
    futures: list[aggml.Future[Any]] = []
    with pytest.raises(ZeroDivisionError), be.batch():  # noqa: PT012 the body is what is tested
        futures += [be.memset(s.a, 0), s.run(be, ramp(), ramp()), be.record(event), be.get(s.a)]
        raise ZeroDivisionError
    assert be.pending == 0
    for future in futures:
        assert future.done()
        with pytest.raises(aggml.Aborted, match="batch"):
            await future
        with pytest.raises(aggml.Aborted):
            await future.shield()
        assert isinstance(future.exception(), aggml.Aborted)
        assert future.wait(0)
        assert "failed" in repr(future)
    assert np.array_equal(await be.get(s.a), ramp())
    assert event.done()  # as before the batch: the aborted batch never recorded it
    called = anyio.Event()
    futures[0].add_done_callback(lambda _: called.set())
    with anyio.fail_after(60):
        await called.wait()


async def test_misuse_inside_raises_at_the_call_and_spoils_nothing_else(be: aggml.Backend) -> None:
    a = placed(be)
    with be.batch():
        be.set(a, ramp())
        with pytest.raises(aggml.LayoutMismatch):
            be.set(a, ramp(3))
        got = be.get(a)
    assert np.array_equal(await got, ramp())


async def test_a_batch_of_a_closed_backend(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    be.close()
    with pytest.raises(aggml.InvalidState, match="closed"):
        be.batch()
    with pytest.raises(aggml.InvalidState, match="closed"):
        be.get(a)


async def test_a_backend_closed_inside_its_batch(be: aggml.Backend) -> None:
    a = holding(be, ramp())
    futures: list[aggml.Future[Any]] = []
    with pytest.raises(aggml.InvalidState, match="closed"), be.batch():  # noqa: PT012 as above
        futures.append(be.get(a))
        be.close()
    with pytest.raises(aggml.Aborted):
        await futures[0]


async def test_events_inside_a_batch(be: aggml.Backend, other: aggml.Backend) -> None:
    a = holding(be, ramp())
    event = be.device.event()
    with be.batch():
        be.memset(a, 0)
        be.record(event)
        be.wait(event)  # an event of the same batch: the order of the stream suffices
        with pytest.raises(aggml.InvalidState, match="batch"):
            # the record is not queued before the batch ends, so there is nothing to wait for
            other.wait(event)
    other.wait(event)
    assert not (await other.get(a)).any()


async def test_waiting_in_the_stream_for_a_run_of_the_same_batch(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.batch():
        run = s.run(be, ramp(), ramp())
        be.wait(run)
        got = be.get(s.y)
    assert np.array_equal(await got, 2 * ramp())


async def test_two_backends_in_batches_of_one_thread(be: aggml.Backend, cpu: CPUBackend) -> None:
    a, b = holding(be, ramp()), holding(cpu, ramp(start=1))
    with be.batch(), cpu.batch():
        first, second = be.get(a), cpu.get(b)
        with pytest.raises(aggml.InvalidState, match="batch"):
            be.copy(a, b, to=cpu)
    assert np.array_equal(await first, ramp())
    assert np.array_equal(await second, ramp(start=1))


async def test_abort_inside_an_open_batch_is_harmless(be: aggml.Backend) -> None:
    s = sum_on(be)
    with be.batch():
        run = s.run(be, ramp(), ramp())
        run.abort()
    try:
        assert np.array_equal(await run, 2 * ramp())
    except aggml.Aborted:
        assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())


async def test_calls_of_python_in_a_batch(stream: aggml.Stream) -> None:
    seen: list[str] = []
    with stream.batch():
        first = stream.call(seen.append, "first")
        between = stream.delay(0)
        stream.call(seen.append, "second")
        second = stream.call(lambda: len(seen))
        assert seen == []
        with pytest.raises(aggml.InvalidState):
            first.wait(0)
    assert await second == 2
    assert first.done()
    assert between.done()
    assert seen == ["first", "second"]


async def test_a_call_in_a_batch_that_is_given_up_never_runs(stream: aggml.Stream) -> None:
    called = []

    def give_up() -> None:
        with stream.batch():
            called.append(stream.call(pytest.fail, "ran"))
            raise KeyError

    with pytest.raises(KeyError):
        give_up()
    with pytest.raises(aggml.Aborted):
        await called[0]
    await stream.call(lambda: None)


async def test_what_a_call_in_a_batch_raises(stream: aggml.Stream) -> None:
    def fail() -> None:
        raise LookupError("lost")

    with stream.batch():
        failing = stream.call(fail)
        after = stream.call(lambda: "well")
    with pytest.raises(aggml.DeviceError) as caught:
        await failing
    assert isinstance(caught.value.__cause__, LookupError)
    assert await after == "well"
