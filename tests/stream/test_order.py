"""Order: in a stream, events between streams, copies across backends, waits without a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import holding, placed, ramp, sum_on

import aggml
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.devices.cpu import CPUBackend, CPUDevice
    from aggml.devices.sim import SimBackend


async def test_operations_of_one_backend_run_in_the_order_submitted(be: aggml.Backend) -> None:
    s, twin = sum_on(be), placed(be)
    with be.stream.hold():
        be.set(s.a, ramp())
        be.memset(s.b, 0)
        be.graph_compute(s.graph)
        first = be.get(s.y)
        be.copy(s.y, s.b)
        be.graph_compute(s.graph)
        second = be.get(s.y)
        be.copy(s.y, twin)
        be.memset(s.y, 0)
        third, fourth = be.get(s.y), be.get(twin)
    await be.synchronize()
    for future, wanted in ((first, 1), (second, 2), (third, 0), (fourth, 2)):
        assert np.array_equal(await future, wanted * ramp())


async def test_set_borrows_its_source_and_copy_snapshots_it(be: aggml.Backend) -> None:
    a, b = placed(be, name="a"), placed(be, name="b")
    x = ramp()
    with be.stream.hold():
        be.set(a, x)
        be.set(b, x, copy=True)
        x += 1
    assert np.array_equal(await be.get(a), ramp() + 1)
    assert np.array_equal(await be.get(b), ramp())


# -- events


async def test_an_event_never_recorded_counts_as_reached(
    be: aggml.Backend, other: aggml.Backend
) -> None:
    event = be.device.event()
    assert event.done()
    assert event.wait(0)
    assert "never recorded" in repr(event)
    await event
    await other.wait(event)


async def test_wait_holds_later_work_until_the_mark(
    be: aggml.Backend, other: aggml.Backend
) -> None:
    a = holding(be, ramp())
    event = be.device.event()
    with be.stream.hold():
        be.memset(a, 0)
        recorded = be.record(event)
        be.set(a, ramp(start=9))
        before = other.get(a)
        waited = other.wait(event)
        behind = other.get(a)
        await before
        await wait_all_tasks_blocked()
        assert not any(x.done() for x in (waited, behind, event, recorded))
        assert "pending" in repr(event)
        assert not event.wait(0)
    await behind
    assert recorded.done()
    assert event.done()
    assert "reached" in repr(event)
    await event


async def test_recording_again_moves_the_mark_for_later_waiters_only(
    be: aggml.Backend, other: aggml.Backend
) -> None:
    event = be.device.event()
    third = be.device.backend()
    await be.record(event)
    other.wait(event)
    early = other.synchronize()
    with be.stream.hold():
        be.record(event)  # does not change a wait that was queued before
        await early
        third.wait(event)
        late = third.synchronize()
        await wait_all_tasks_blocked()
        assert not late.done()
    await late
    await third.aclose()


async def test_events_across_devices(sim: SimBackend, cpu: CPUBackend) -> None:
    """Both directions: the CPU waits for the simulated device, which waits for the CPU."""
    s = sum_on(sim)
    there, back = sim.device.event(), cpu.device.event()
    with sim.hold():
        sim.set(s.a, ramp())
        sim.record(there)
        cpu.wait(there)
        cpu.record(back)
        sim.wait(back)
        end = sim.get(s.a)
        await wait_all_tasks_blocked()
        assert not back.done()
    assert np.array_equal(await end, ramp())
    assert back.done()


async def test_a_backend_waits_for_a_future_of_another(
    be: aggml.Backend, other: aggml.Backend
) -> None:
    a = holding(be, ramp())
    with be.stream.hold():
        future = be.memset(a, 0)
        other.wait(future)
        got = other.get(a)
        await wait_all_tasks_blocked()
        assert not got.done()
    assert not (await got).any()


async def test_waiting_for_ones_own_event_changes_nothing(be: aggml.Backend) -> None:
    event = be.device.event()
    be.record(event)
    await be.wait(event)
    await event


async def test_wait_for_a_failed_future_is_order_not_failure(
    be: aggml.Backend, other: aggml.Backend
) -> None:
    a = holding(other, ramp())
    with be.stream.hold():
        failed = be.stream.fail(ValueError("x"))
        other.wait(failed)
        got = other.get(a)
    assert np.array_equal(await got, ramp())
    assert failed.exception() is not None


async def test_one_pool_thread_serves_a_stream_that_waits_for_another(
    cpu_device: CPUDevice,
) -> None:
    pool = aggml.ThreadPool(1)
    async with cpu_device.backend(pool=pool) as first, cpu_device.backend(pool=pool) as second:
        s = sum_on(second)
        event = second.device.event()
        with second.stream.hold():
            second.record(event)
            waiting = first.wait(event)
            behind = first.synchronize()
            await wait_all_tasks_blocked()
        with anyio.fail_after(60):
            assert np.array_equal(await s.run(second, ramp(), ramp()), 2 * ramp())
            await waiting
            await behind


async def test_a_ring_of_waiting_streams_on_one_thread(cpu_device: CPUDevice) -> None:
    """20 streams, each waiting for the one before: more than there are threads, all at once."""
    pool = aggml.ThreadPool(1)
    backends = [cpu_device.backend(pool=pool) for _ in range(20)]
    with backends[0].stream.hold():
        mark = backends[0].synchronize()
        for be in backends[1:]:
            be.wait(mark)
            mark = be.synchronize()
        await wait_all_tasks_blocked()
        assert not mark.done()
    with anyio.fail_after(60):
        await mark
    for be in backends:
        await be.aclose()


# -- copies across backends


def pair(kind: str) -> tuple[aggml.Backend, aggml.Backend]:
    """(source, target) on the devices that ``kind`` names."""
    sim, second, cpu = SimDevice("SIM"), SimDevice("SIM2"), aggml.get_device("CPU")
    opened: dict[str, Callable[[], tuple[aggml.Backend, aggml.Backend]]] = {
        "cpu to cpu": lambda: (cpu.backend(), cpu.backend()),
        "cpu to sim": lambda: (cpu.backend(), sim.backend()),
        "sim to cpu": lambda: (sim.backend(), cpu.backend()),
        "sim to the same sim": lambda: (sim.backend(), sim.backend()),
        "sim to another sim": lambda: (sim.backend(), second.backend()),
    }
    return opened[kind]()


KINDS = ["cpu to cpu", "cpu to sim", "sim to cpu", "sim to the same sim", "sim to another sim"]


@pytest.mark.parametrize("kind", KINDS)
async def test_copy_across(kind: str) -> None:
    first, second = pair(kind)
    async with first, second:
        src, dst = holding(first, ramp(), "src"), holding(second, 0 * ramp(), "dst")
        await first.copy(src, dst, to=second)
        assert np.array_equal(await second.get(dst), ramp())


@pytest.mark.parametrize("held", ["first", "second"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_copy_comes_after_all_before_and_before_all_after_on_both(
    kind: str, held: str
) -> None:
    first, second = pair(kind)
    async with first, second:
        src, dst = holding(first, ramp(), "src"), holding(second, 0 * ramp(), "dst")
        still = first if held == "first" else second
        with still.stream.hold():
            first.set(src, ramp(start=1))  # before the copy, on the source
            before = second.get(dst)  # before the copy, on the target
            copied = first.copy(src, dst, to=second)
            # after the copy: these values must not be copied
            after_first = first.set(src, ramp(start=2))
            after = second.get(dst)
            after_second = second.memset(dst, 0)
            if held == "second":
                await wait_all_tasks_blocked()
            for future in (copied, after_first, after, after_second):
                assert not future.done()  # nor are those on the stream that is not held
        await copied
        assert not (await before).any()
        assert np.array_equal(await after, ramp(start=1))
        assert not (await second.get(dst)).any()
        assert np.array_equal(await first.get(src), ramp(start=2))


@pytest.mark.parametrize("kind", KINDS)
async def test_copies_in_both_directions_at_once_do_not_deadlock(kind: str) -> None:
    first, second = pair(kind)
    async with first, second:
        a, b = holding(first, ramp(), "a"), holding(second, ramp(start=100), "b")
        c, d = placed(first, name="c"), placed(second, name="d")
        with anyio.fail_after(60):
            for _ in range(100):
                first.copy(a, d, to=second)
                second.copy(b, c, to=first)
            assert np.array_equal(await first.get(c), ramp(start=100))
            assert np.array_equal(await second.get(d), ramp())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failed_copy_across_poisons_its_target_alone(kind: str) -> None:
    first, second = pair(kind)
    async with first, second:
        src, dst = placed(first, name="src"), holding(second, ramp(), "dst")
        bystander = holding(second, ramp(start=3), "bystander")
        cause = ValueError("no source")
        first.stream.fail(cause, writes=[src])
        copied, got = first.copy(src, dst, to=second), second.get(dst)
        for future in (copied, got):
            with pytest.raises(aggml.AggmlError) as caught:
                await future
            assert caught.value.__cause__ is cause
        assert np.array_equal(await second.get(bystander), ramp(start=3))
        await second.set(dst, ramp())
        assert np.array_equal(await second.get(dst), ramp())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_copy_across_inside_a_batch(kind: str) -> None:
    first, second = pair(kind)
    async with first, second:
        src, dst = holding(first, ramp(), "src"), holding(second, 0 * ramp(), "dst")
        for opened in (first, second):
            with opened.batch():
                first.set(src, ramp(start=1)) if opened is first else second.memset(dst, 0)
                copied = first.copy(src, dst, to=second)
                assert not copied.done()
            await copied
        assert np.array_equal(await second.get(dst), ramp(start=1))


@pytest.mark.parametrize("kind", ["cpu to cpu", "sim to the same sim"])
async def test_a_copy_of_a_tensor_to_itself_orders_both_backends(kind: str) -> None:
    first, second = pair(kind)
    async with first, second:
        a = holding(first, ramp())
        with first.stream.hold():
            first.set(a, ramp(start=1))
            copied = first.copy(a, a, to=second)
            after = second.get(a)
            await wait_all_tasks_blocked()
            assert not copied.done()
            assert not after.done()
        await copied
        assert np.array_equal(await after, ramp(start=1))
