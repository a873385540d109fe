"""OrderTests: work of one stream in order, events between streams, batches, back-pressure.

No test sleeps: they hold streams and let them go. Not here: copies between devices (copies.py).
"""

from __future__ import annotations

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import aggml
from aggml.testing.fixtures import DeviceFixtures, N, place, place_array, ramp, sum_on

__all__ = ["OrderTests"]


class OrderTests(DeviceFixtures):
    """The rules of docs/async.md, sections "Operations and futures" and "Order"."""

    async def test_operations_run_in_the_order_submitted(self, be: aggml.Backend) -> None:
        a, b = place(be, name="a"), place(be, name="b")
        with be.stream.hold():
            got = []
            for k in range(20):
                be.set(a, ramp(start=k), copy=True)
                be.copy(a, b)
                be.memset(a, 0)
                got.append((be.get(a), be.get(b)))
            assert not any(x.done() or y.done() for x, y in got)
        for k, (zero, value) in enumerate(got):
            assert not (await zero).any()
            assert np.array_equal(await value, ramp(start=k))

    async def test_nothing_waits_at_the_call(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        event = be.device.event()
        with be.stream.hold():
            futures = [
                be.set(s.a, ramp()),
                be.set(s.b, ramp()),
                be.graph_compute(s.graph),
                be.get(s.y),
                s.run(be, ramp(), ramp()),
                be.record(event),
                be.synchronize(),
            ]
            assert be.pending >= len(futures)
            assert not any(f.done() for f in futures)
            assert not event.done()
            with pytest.raises(aggml.InvalidState):
                futures[3].result()
        for future in futures:
            await future
        assert be.pending == 0

    async def test_a_future_can_be_awaited_again(self, be: aggml.Backend) -> None:
        got = be.get(place_array(be, ramp()))
        for _ in range(3):
            assert np.array_equal(await got, ramp())
        assert got.done()
        assert got.exception() is None
        assert got.result() is await got
        times = got.times
        assert times.done is not None
        assert times.started is not None
        assert times.submitted <= times.started <= times.done

    async def test_an_event_orders_two_streams(
        self, be: aggml.Backend, other: aggml.Backend
    ) -> None:
        tensor, event = place_array(be, 0 * ramp()), be.device.event()
        with be.stream.hold():
            be.set(tensor, ramp())
            be.record(event)
            other.wait(event)
            got = other.get(tensor)
            await anyio.lowlevel.checkpoint()
            assert not got.done()
            assert not event.done()
        assert np.array_equal(await got, ramp())
        await event
        assert event.done()
        assert event.wait(0)

    async def test_an_event_never_recorded_counts_as_reached(self, be: aggml.Backend) -> None:
        event = be.device.event()
        assert event.done()
        await event
        await be.wait(event)

    async def test_recording_again_leaves_earlier_waits_alone(
        self, be: aggml.Backend, other: aggml.Backend
    ) -> None:
        event, tensor = be.device.event(), place_array(other, ramp())
        await be.record(event)
        other.wait(event)
        with be.stream.hold():
            be.record(event)
            assert np.array_equal(await other.get(tensor), ramp())  # waits for the first recording
            other.wait(event)
            got = other.get(tensor)
            await anyio.lowlevel.checkpoint()
            assert not got.done()
        assert np.array_equal(await got, ramp())

    async def test_waiting_for_a_future_of_another_stream(
        self, be: aggml.Backend, other: aggml.Backend
    ) -> None:
        tensor = place_array(be, 0 * ramp())
        with be.stream.hold():
            written = be.set(tensor, ramp())
            other.wait(written)
            got = other.get(tensor)
        assert np.array_equal(await got, ramp())

    async def test_streams_are_independent(self, be: aggml.Backend, other: aggml.Backend) -> None:
        mine, theirs = place_array(be, ramp()), place_array(other, ramp(start=1))
        with be.stream.hold():
            waiting = be.get(mine)
            assert np.array_equal(await other.get(theirs), ramp(start=1))
            assert not waiting.done()
        await waiting

    async def test_many_streams_that_wait_for_each_other(self, device: aggml.Device) -> None:
        """Streams wait for each other in a long chain: a wait must not occupy a thread."""
        backends = [device.backend() for _ in range(8)]
        tensor = place(backends[0])
        event = device.event()
        with backends[0].stream.hold():
            for k in range(40):
                be = backends[k % 8]
                be.wait(event)
                be.set(tensor, ramp(start=k), copy=True)
                be.record(event)
        with anyio.fail_after(10):
            await event
        assert np.array_equal(await backends[0].get(tensor), ramp(start=39))
        for be in backends:
            await be.aclose()

    async def test_a_batch_is_one_step(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        with be.batch():
            be.set(s.a, ramp())
            be.set(s.b, ramp())
            computed = be.graph_compute(s.graph)
            got = be.get(s.y)
            ran = s.run(be, ramp(start=1), ramp())
            assert be.pending == 0
            assert not got.done()
        assert np.array_equal(await got, 2 * ramp())
        assert np.array_equal(await ran, 2 * ramp() + 1)
        await computed

    async def test_a_batch_whose_body_raises_does_nothing(self, be: aggml.Backend) -> None:
        tensor = place_array(be, ramp())
        futures = []

        def give_up() -> None:
            with be.batch():
                futures.append(be.memset(tensor, 0))
                raise KeyError

        with pytest.raises(KeyError):
            give_up()
        with pytest.raises(aggml.Aborted):
            await futures[0]
        assert np.array_equal(await be.get(tensor), ramp())

    async def test_back_pressure(self, device: aggml.Device) -> None:
        async with device.backend(max_queued=2) as be:
            tensor = place(be)
            with be.stream.hold():
                for _ in range(2):
                    await be.ready()
                    be.memset(tensor, 0)
                with anyio.move_on_after(0) as scope:
                    await be.ready()
                assert scope.cancelled_caught
            with anyio.fail_after(10):
                await be.ready()
            await be.set(tensor, ramp())

    async def test_synchronize_stands_for_all(self, be: aggml.Backend) -> None:
        tensor = place(be, (N,))
        futures = [be.set(tensor, ramp(start=k), copy=True) for k in range(10)]
        await be.synchronize()
        assert all(f.done() for f in futures)
        assert be.pending == 0
