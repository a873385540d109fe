"""FailureTests: misuse raises at the call; whatever reads the result of a failed operation fails.

Not here: aborting and closing (ending.py).
"""

from __future__ import annotations

import numpy as np
import pytest

import aggml
from aggml import Graph, ops
from aggml.testing.fixtures import DeviceFixtures, N, place, place_array, ramp, sum_on

__all__ = ["FailureTests"]


class FailureTests(DeviceFixtures):
    """The rules of docs/async.md, section "Failure"."""

    def test_misuse_raises_at_the_call(self, be: aggml.Backend, cpu: aggml.Backend) -> None:
        t, nowhere = place(be), aggml.new_tensor("f32", ne=(N,))
        x = ramp()
        for kind, call in (
            (aggml.NotAllocated, lambda: be.set(nowhere, x)),
            (aggml.NotAllocated, lambda: be.get(nowhere)),
            (aggml.NotAllocated, lambda: be.memset(nowhere, 0)),
            (aggml.LayoutMismatch, lambda: be.set(t, x[:-1])),
            (aggml.LayoutMismatch, lambda: be.set(t, x.astype(np.float64))),
            (aggml.LayoutMismatch, lambda: be.get(t, shape=(3,))),
            (aggml.OutOfBounds, lambda: be.set(t, x, offset=4)),
            (aggml.OutOfBounds, lambda: be.get(t, offset=0, size=4 * N + 1)),
            (aggml.OutOfBounds, lambda: be.memset(t, 0, offset=1 << 62, size=1 << 62)),
            (aggml.OutOfBounds, lambda: be.get(t, offset=-1)),
            (aggml.InvalidArgument, lambda: be.memset(t, 256)),
            (aggml.InvalidHandle, lambda: be.set("t", x)),  # type: ignore[arg-type]
            (aggml.InvalidHandle, lambda: be.record(t)),  # type: ignore[arg-type]
            (aggml.InvalidHandle, lambda: be.wait(3)),  # type: ignore[arg-type]
            (aggml.InvalidHandle, lambda: be.alloc_graph(t)),  # type: ignore[arg-type]
            (aggml.AlreadyAllocated, lambda: be.alloc([t])),
            (aggml.InvalidArgument, lambda: be.alloc([ops.view_1d(nowhere, 2, 0)])),
        ):
            with pytest.raises(kind):
                call()
        if not be.device.supports_buffer_type(cpu.buffer_type):
            with pytest.raises(aggml.InvalidArgument):
                be.get(place(cpu))
        if not cpu.device.supports_buffer_type(be.buffer_type):
            with pytest.raises(aggml.InvalidArgument):
                cpu.get(t)
        assert be.pending == cpu.pending == 0
        assert nowhere.placement is None

    async def test_what_reads_a_failed_write_fails_with_the_same_cause(
        self, be: aggml.Backend, other: aggml.Backend
    ) -> None:
        tensor, lost = place_array(be, ramp()), LookupError("lost")
        failed = be.stream.fail(lost, writes=[tensor], operation="set")
        got = be.get(tensor)
        for future in (failed, got):
            with pytest.raises(aggml.AggmlError) as caught:
                await future
            assert caught.value.__cause__ is lost
        elsewhere = other.get(tensor)
        with pytest.raises(aggml.AggmlError):
            await elsewhere
        healthy = place_array(be, ramp())
        assert np.array_equal(await be.get(healthy), ramp())

    async def test_a_full_write_cures(self, be: aggml.Backend) -> None:
        for cure in ("set", "memset", "copy", "accept"):
            tensor, source = place_array(be, ramp()), place_array(be, ramp(start=2))
            failed = be.stream.fail(LookupError("lost"), writes=[tensor])
            with pytest.raises(aggml.AggmlError):
                await failed
            if cure == "set":
                be.set(tensor, ramp(start=2))
            elif cure == "memset":
                be.memset(tensor, 0)
            elif cure == "copy":
                be.copy(source, tensor)
            else:
                be.accept(tensor)
            wanted = {"memset": 0 * ramp(), "accept": ramp()}.get(cure, ramp(start=2))
            assert np.array_equal(await be.get(tensor), wanted), cure

    async def test_a_write_in_part_cures_nothing(self, be: aggml.Backend) -> None:
        tensor = place_array(be, ramp())
        failed = be.stream.fail(LookupError("lost"), writes=[tensor])
        be.set(tensor, ramp(2), offset=0)
        got = be.get(tensor)
        for future in (failed, got):
            with pytest.raises(aggml.AggmlError):
                await future

    async def test_a_graph_that_reads_poison_does_not_run(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        lost = LookupError("lost")
        be.set(s.a, ramp())
        be.set(s.b, ramp())
        await be.graph_compute(s.graph)
        failed = be.stream.fail(lost, writes=[s.a])
        computed, got = be.graph_compute(s.graph), be.get(s.y)
        for future in (failed, computed, got):
            with pytest.raises(aggml.AggmlError) as caught:
                await future
            assert caught.value.__cause__ is lost
        # run() sets the failed input anew, and computes the result anew: both are valid again
        assert np.array_equal(await s.run(be, ramp(start=1), ramp()), 2 * ramp() + 1)

    async def test_synchronize_tells_what_nobody_saw(self, be: aggml.Backend) -> None:
        tensor, lost = place(be), LookupError("lost")
        be.stream.fail(lost, writes=[tensor])
        with pytest.raises(ExceptionGroup) as caught:
            await be.synchronize()
        assert [e.__cause__ for e in caught.value.exceptions] == [lost]
        await be.synchronize()

    async def test_a_graph_that_is_not_placed_is_refused(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        fresh = Graph(ops.add(s.a, s.b))
        with pytest.raises(aggml.NotAllocated):
            be.graph_compute(fresh)
        be.alloc_graph(fresh)
        with pytest.raises(aggml.AlreadyAllocated):
            be.alloc_graph(fresh)

    async def test_a_graph_belongs_to_who_placed_it(
        self, be: aggml.Backend, other: aggml.Backend
    ) -> None:
        s = sum_on(be)
        with pytest.raises(aggml.InvalidState):
            other.graph_compute(s.graph)

    async def test_a_lost_device_fails_everything(self, device: aggml.Device) -> None:
        be = device.backend()
        tensor = place(be)
        gone = OSError("unplugged")
        with be.stream.hold():
            queued = [be.set(tensor, ramp()), be.get(tensor)]
            be.stream.lose(gone)
        for future in queued:
            with pytest.raises(aggml.AggmlError) as caught:
                await future
            assert caught.value.__cause__ is gone
        with pytest.raises(aggml.AggmlError):
            be.get(tensor)
        await be.aclose()
