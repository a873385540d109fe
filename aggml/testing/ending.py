"""EndingTests: abort, cancel, close, and drop references while operations are in flight.

Not here: failures of the work itself (failure.py).
"""

from __future__ import annotations

import gc

import anyio
import numpy as np
import pytest

import aggml
from aggml.testing.fixtures import DeviceFixtures, place, place_array, ramp, sum_on

__all__ = ["EndingTests"]


class EndingTests(DeviceFixtures):
    """The rules of docs/async.md, sections "Cancellation" and "Lifetime"."""

    async def test_an_aborted_run_leaves_the_next_one_healthy(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        with be.stream.hold():
            aborted = s.run(be, ramp(), ramp())
            later = s.run(be, ramp(start=1), ramp())
            aborted.abort()
            aborted.abort()  # a second time is harmless
        with pytest.raises(aggml.Aborted):
            await aborted
        assert np.array_equal(await later, 2 * ramp() + 1)

    async def test_what_reads_an_aborted_graph_fails(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        be.set(s.a, ramp())
        be.set(s.b, ramp())
        with be.stream.hold():
            computed, got = be.graph_compute(s.graph), be.get(s.y)
            computed.abort()
        for future in (computed, got):
            with pytest.raises(aggml.Aborted):
                await future
        be.graph_compute(s.graph)
        assert np.array_equal(await be.get(s.y), 2 * ramp())

    async def test_the_last_waiter_takes_its_run_along(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        with be.stream.hold():
            run = s.run(be, ramp(), ramp())
            with anyio.move_on_after(0) as scope:
                await run
            assert scope.cancelled_caught
        with pytest.raises(aggml.Aborted):
            await run
        assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())

    async def test_a_shielded_run_goes_on(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        with be.stream.hold():
            run = s.run(be, ramp(), ramp())
            with anyio.move_on_after(0):
                await run.shield()
        assert np.array_equal(await run, 2 * ramp())

    async def test_a_cancelled_get_is_only_abandoned(self, be: aggml.Backend) -> None:
        tensor = place_array(be, ramp())
        with be.stream.hold():
            got = be.get(tensor)
            with anyio.move_on_after(0) as scope:
                await got
            assert scope.cancelled_caught
            assert not got.done()
        assert np.array_equal(await got, ramp())

    async def test_leaving_awaits_what_is_queued(self, device: aggml.Device) -> None:
        async with device.backend() as be:
            tensor = place(be)
            be.set(tensor, ramp())
            got = be.get(tensor)
        assert got.done()
        assert np.array_equal(got.result(), ramp())
        assert be.closed
        assert be.pending == 0

    async def test_leaving_by_an_exception_aborts_graphs(self, device: aggml.Device) -> None:
        runs = []

        async def leave() -> None:
            async with device.backend() as be:
                s = sum_on(be)
                be.stream.delay(60)
                runs.append(s.run(be, ramp(), ramp()))
                raise KeyError

        with anyio.fail_after(10), pytest.raises(KeyError):
            await leave()
        with pytest.raises(aggml.Aborted):
            await runs[0]

    async def test_a_closed_backend_refuses_everything(self, device: aggml.Device) -> None:
        be = device.backend()
        s = sum_on(be)
        tensor, spare, event = place(be), aggml.new_tensor("f32", ne=(4,)), device.event()
        await be.aclose()
        be.close()
        await be.aclose()
        assert be.closed
        for call in (
            lambda: be.set(tensor, ramp()),
            lambda: be.get(tensor),
            lambda: be.memset(tensor, 0),
            lambda: be.copy(tensor, tensor),
            lambda: be.graph_compute(s.graph),
            lambda: s.run(be, ramp(), ramp()),
            lambda: be.record(event),
            lambda: be.wait(event),
            lambda: be.alloc([spare]),
            lambda: be.batch(),
        ):
            with pytest.raises(aggml.InvalidState):
                call()
        async with device.backend() as another:  # the device lives on
            await another.set(tensor, ramp())

    async def test_closing_does_not_wait(self, device: aggml.Device) -> None:
        be = device.backend()
        tensor = place(be)
        with be.stream.hold():
            written = be.set(tensor, ramp())
            be.close()
            assert not written.done()
        await written
        await be.aclose()

    async def test_references_may_be_dropped_at_any_time(self, device: aggml.Device) -> None:
        be = device.backend()
        s = sum_on(be)
        x = ramp()
        with be.stream.hold():
            got = s.run(be, x, x)
            be.close()
            del s, x, be
            gc.collect()
        gc.collect()
        with anyio.fail_after(10):
            assert np.array_equal(await got, 2 * ramp())

    async def test_futures_may_be_dropped(self, be: aggml.Backend) -> None:
        tensor = place(be)
        for k in range(200):
            be.set(tensor, ramp(start=k), copy=True)
            be.get(tensor)
        assert np.array_equal(await be.get(tensor), ramp(start=199))

    async def test_an_event_outlives_its_backend(self, device: aggml.Device) -> None:
        event = device.event()
        async with device.backend() as be:
            be.record(event)
        del be
        gc.collect()
        await event
        async with device.backend() as another:
            await another.wait(event)

    async def test_many_open_and_close(self, device: aggml.Device) -> None:
        for k in range(20):
            async with device.backend() as be:
                tensor = place_array(be, ramp(start=k))
                assert np.array_equal(await be.get(tensor), ramp(start=k))
