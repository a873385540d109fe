"""Backends: their properties, plans and closing; the interfaces of a device, implemented by hand.

Transfers, order, failure and cancellation have files of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import N, holding, placed, ramp, sum_graph, sum_on, vector

import aggml
from aggml import Buffer, BufferType, Device, DeviceType, Family, Graph, Stream, ops
from aggml.backend import Backend
from aggml.devices.cpu import CPUFamily
from aggml.devices.sim import SimDevice
from aggml.native import cpu_mask
from aggml.plan import compile_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import AnyDevice

    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend

Array = np.ndarray[Any, Any]


@pytest.mark.feature("BE-02", "BE-04", "BE-06", "BE-07", "BE-09")
def test_what_a_backend_tells(be: aggml.Backend, device: AnyDevice) -> None:
    assert be.device is device
    assert be.name == device.name
    assert be.buffer_type is device.buffer_type
    assert be.buffer_type.alignment == device.buffer_type.alignment
    assert be.buffer_type.max_size == device.buffer_type.max_size
    assert device.name in repr(be)


@pytest.mark.feature("BE-10", "BE-12")
def test_what_its_device_can_and_wants(be: aggml.Backend) -> None:
    assert be.device.supports_op(sum_graph().y)
    assert not be.device.offload_op(sum_graph().y)
    with SimDevice("PICKY", unsupported=["add"], offload=["neg"]).backend() as picky:
        assert not picky.device.supports_op(sum_graph().y)
        assert picky.device.offload_op(ops.neg(vector()))


@pytest.mark.feature("BE-13", "BE-14")
async def test_a_graph_computed(be: aggml.Backend) -> None:
    s = sum_on(be)
    be.set(s.a, ramp())
    be.set(s.b, ramp())
    future = be.graph_compute(s.graph)
    await future
    assert future.done()
    assert np.array_equal(await be.get(s.y), 2 * ramp())


@pytest.mark.feature("BE-08")
async def test_synchronize_is_after_all_that_was_queued(be: aggml.Backend) -> None:
    t = placed(be)
    with be.stream.hold():
        futures = [be.memset(t, i) for i in range(5)]
        last = be.synchronize()
        assert not last.done()
    await last
    assert all(f.done() for f in futures)
    assert be.pending == 0


@pytest.mark.feature("BE-15", "BE-16", "BE-17")
async def test_a_graph_plan_computes_and_takes_another_graph(be: aggml.Backend) -> None:
    s = sum_on(be)
    plan = be.graph_plan(s.graph)
    assert [step.op for step in plan.plan.steps] == ["add"]
    assert "add" in str(plan)
    be.set(s.a, ramp())
    be.set(s.b, ramp())
    await plan.compute()
    assert np.array_equal(await be.get(s.y), 2 * ramp())
    other = Graph(ops.neg(s.y))
    be.alloc_graph(other)
    plan.update(other)
    assert plan.graph is other
    await plan.compute()
    assert np.array_equal(await be.get(other.ends[0]), -2 * ramp())
    with pytest.raises(aggml.NotAllocated):
        plan.update(sum_graph().graph)
    assert plan.graph is other
    for bad in (None, s.y, 3):
        with pytest.raises(aggml.InvalidHandle):
            plan.update(bad)  # type: ignore[arg-type]
        with pytest.raises(aggml.InvalidHandle):
            be.graph_plan(bad)  # type: ignore[arg-type]
    assert be.graph_plan(s.graph).compute().wait(60)


@pytest.mark.feature("BE-16")
async def test_a_plan_follows_its_tensors(be: aggml.Backend) -> None:
    s = sum_on(be)
    plan = be.graph_plan(s.graph)
    assert s.graph.memory is not None
    s.graph.memory.close()
    with pytest.raises(aggml.NotAllocated):
        plan.compute()
    be.alloc_graph(s.graph)
    be.set(s.a, ramp())
    be.set(s.b, ramp())
    await plan.compute()
    assert np.array_equal(await be.get(s.y), 2 * ramp())


@pytest.mark.feature("BE-03")
async def test_the_end_of_a_backend(device: AnyDevice) -> None:
    be = device.backend()
    t = holding(be, ramp())
    got = be.get(t)
    await be.aclose()
    assert np.array_equal(await got, ramp())
    assert be.closed
    await be.aclose()
    be.close()
    with pytest.raises(aggml.InvalidState, match="closed"):
        be.get(t)
    again = device.backend()
    assert np.array_equal(await again.get(t), ramp())  # a buffer outlives the backend that made it
    again.close()


# -- transfers of pieces at regular distances


async def test_set_2d_and_get_2d_copy_pieces_with_strides(be: aggml.Backend) -> None:
    t = aggml.new_tensor("f32", ne=(6, 4), name="t")
    be.alloc([t])
    await be.set(t, ramp(24).reshape(4, 6))
    column = {"size": 8, "stride_tensor": t.nb[1], "offset": 4}
    await be.set_2d(t, -ramp(6), n_copies=3, stride_data=8, **column)
    wanted = ramp(24).reshape(4, 6)
    wanted[:3, 1:3] = -ramp(6).reshape(3, 2)
    assert np.array_equal(await be.get(t), wanted)
    out = np.full((4, 3), 9, np.float32)
    assert await be.get_2d(t, out, n_copies=4, stride_data=12, **column) is out
    assert np.array_equal(out[:, :2], wanted[:, 1:3])
    assert (out[:, 2] == 9).all()
    await be.set_2d(t, ramp(1), size=4, n_copies=0, stride_tensor=0, stride_data=0)
    await be.get_2d(t, out, size=0, n_copies=5, stride_tensor=0, stride_data=0)
    assert np.array_equal(await be.get(t), wanted)


@pytest.mark.parametrize(
    ("numbers", "error"),
    [
        ({"n_copies": 5}, aggml.OutOfBounds),
        ({"offset": 80}, aggml.OutOfBounds),
        ({"stride_data": 33}, aggml.OutOfBounds),
        ({"size": 1 << 70}, aggml.InvalidArgument),
        ({"n_copies": 1, "size": 1 << 70}, aggml.OutOfBounds),
        ({"n_copies": -1}, aggml.InvalidArgument),
        ({"offset": -4}, aggml.InvalidArgument),
        ({"size": "8"}, aggml.InvalidHandle),
        ({"offset": 1.5}, aggml.InvalidHandle),
    ],
    ids=str,
)
def test_pieces_that_do_not_fit(
    be: aggml.Backend, numbers: dict[str, Any], error: type[Exception]
) -> None:
    t = aggml.new_tensor("f32", ne=(6, 4), name="t")
    be.alloc([t])
    x = np.zeros(8, np.float32)
    good = {"size": 8, "n_copies": 4, "stride_tensor": 24, "stride_data": 8, "offset": 0}
    given: Any = good | numbers
    with pytest.raises(error, match="set_2d"):
        be.set_2d(t, x, **given)
    with pytest.raises(error, match="get_2d"):
        be.get_2d(t, x, **given)
    x.flags.writeable = False
    with pytest.raises(aggml.InvalidArgument, match="read-only"):
        be.get_2d(t, x, **good)
    assert be.pending == 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda t, x: (t, x, 93), aggml.OutOfBounds),
        (lambda t, x: (t, x, -1), aggml.OutOfBounds),
        (lambda t, x: (t, x, 1 << 70), aggml.OutOfBounds),
        (lambda t, x: (t, x, 1.5), aggml.InvalidHandle),
        (lambda t, x: (t, np.ones(4, np.float32)[::2], 0), aggml.LayoutMismatch),
        (lambda t, x: (t, x.astype(object), 0), aggml.LayoutMismatch),
        (lambda t, x: (t, np.zeros(96, np.uint8)[::3], 0), aggml.LayoutMismatch),
        (lambda t, x: ("t", x, 0), aggml.InvalidHandle),
        (lambda t, x: (vector(4), x, 0), aggml.NotAllocated),
    ],
)
async def test_parts_that_do_not_fit(
    be: aggml.Backend, change: Any, error: type[Exception]
) -> None:
    """The first part would be fine, and is not carried out either."""
    t, x = aggml.new_tensor("f32", ne=(6, 4), name="t"), np.ones(2, np.float32)
    be.alloc([t])
    await be.set(t, np.zeros((4, 6), np.float32))
    for call, what in ((be.set_many, "set_many"), (be.get_many, "get_many")):
        with pytest.raises(error, match=what):
            call([(t, x, 0), change(t, np.ones(2, np.float32))])
    x.flags.writeable = False
    with pytest.raises(aggml.InvalidArgument, match="read-only"):
        be.get_many([(t, x, 0)])
    assert be.pending == 0
    assert not (await be.get(t)).any()


async def test_many_transfers_are_dropped_with_their_batch(be: aggml.Backend) -> None:
    t, x = placed(be), np.ones(4, np.float32)
    await be.set(t, np.zeros(t.ne[0], np.float32))
    futures = []

    def queue_and_raise() -> None:
        with be.batch():
            futures.append(be.set_many([(t, x, 0)]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        queue_and_raise()
    (future,) = futures
    assert isinstance(future.exception(), aggml.Aborted)
    assert not (await be.get(t)).any()


async def test_pieces_may_overlap_where_they_are_read_only(be: aggml.Backend) -> None:
    t = aggml.new_tensor("f32", ne=(6, 4), name="t")
    be.alloc([t])
    x = ramp(24).reshape(4, 6)
    await be.set(t, x)
    given: Any = {"size": 8, "n_copies": 3, "stride_tensor": 24}
    await be.set_2d(t, ramp(2) + 50, **given, stride_data=0)
    x[:3, :2] = ramp(2) + 50
    assert np.array_equal(await be.get(t), x)
    with pytest.raises(aggml.InvalidArgument, match="overwrite each other: stride_data=7"):
        be.get_2d(t, np.zeros(24, np.float32), **given, stride_data=7)
    given["stride_tensor"] = 4
    out = np.zeros((3, 2), np.float32)
    await be.get_2d(t, out, **given, stride_data=8)
    assert np.array_equal(out, [x[0, i : i + 2] for i in range(3)])
    with pytest.raises(aggml.InvalidArgument, match="overwrite each other: stride_tensor=4"):
        be.set_2d(t, out, **given, stride_data=8)
    assert be.pending == 0


def test_what_a_device_need_not_offer(device: AnyDevice) -> None:
    assert list(device.extra_buffer_types) == []
    with pytest.raises(aggml.Unsupported, match=device.name):
        device.register_host(bytearray(4096))


# -- the interfaces, implemented by hand


class PlainType(BufferType):
    """All that a buffer type must implement."""

    name = "Plain"

    def alloc_buffer(self, size: int) -> Buffer:
        block = aggml.get_device("CPU").buffer_type.alloc_buffer(size)
        return Buffer(self, size, block.base, block)


class PlainBackend(aggml.Backend):
    """All that a backend must implement, built on the public Stream."""

    def _set(self, tensor: aggml.Tensor, array: Array) -> aggml.Future[None]:
        return self.stream.copy(tensor, array, operation="set")

    def _get(self, tensor: aggml.Tensor, array: Array) -> aggml.Future[None]:
        return self.stream.copy(array, tensor, operation="get")

    def _set_bytes(self, tensor: aggml.Tensor, data: Array, offset: int) -> aggml.Future[None]:
        return self.stream.copy_bytes(tensor, data, offset, to_tensor=True)

    def _get_bytes(self, tensor: aggml.Tensor, data: Array, offset: int) -> aggml.Future[None]:
        return self.stream.copy_bytes(tensor, data, offset, to_tensor=False)

    def _memset(
        self, tensor: aggml.Tensor, value: int, offset: int, size: int
    ) -> aggml.Future[None]:
        return self.stream.fill(tensor, value, offset, size)

    def _copy(self, src: aggml.Tensor, dst: aggml.Tensor) -> aggml.Future[None]:
        return self.stream.copy(dst, src)

    def _clear(self, buffer: Buffer, value: int) -> aggml.Future[None]:
        return self.stream.clear(buffer, value)

    def _compile(self, graph: Graph, memory: Any) -> Any:
        return compile_steps(graph, memory.locate, memory.scratch_size, cpu_mask("scalar"))

    def _compute(self, plan: aggml.Plan, arena: Buffer | None) -> aggml.Future[None]:
        return self.stream.run_plan(plan, arena)


class PlainDevice(Device):
    """All that a device must implement."""

    name, description, type = "PLAIN", "made by hand", DeviceType.ACCEL

    def __init__(self) -> None:
        self._kind = PlainType()

    @property
    def buffer_type(self) -> BufferType:
        return self._kind

    def memory(self) -> tuple[int, int]:
        return 0, 0

    def backend(self, **options: Any) -> PlainBackend:
        return PlainBackend(self, Stream(self.name), max_queued=options.get("max_queued"))

    def supports_op(self, tensor: aggml.Tensor) -> bool:
        return True

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type is self._kind


class PlainFamily(Family):
    """All that a family must implement."""

    name = "PLAIN"
    api_version = 1

    def __init__(self) -> None:
        self._devices = (PlainDevice(),)

    @property
    def devices(self) -> Sequence[Device]:
        return self._devices


@pytest.mark.feature("IF-01", "IF-02", "IF-03", "IF-05", "IF-06", "IF-08", "IF-09", "IF-13")
async def test_a_device_made_of_what_is_required(cpu: CPUBackend) -> None:
    device = PlainDevice()
    kind = device.buffer_type
    assert not kind.is_host
    assert kind.max_size == (1 << 63) - 1
    assert kind.alloc_size(vector()) == 4 * N
    assert kind != PlainType()
    assert device.host_buffer_type is None
    assert not device.caps.buffer_from_host
    async with device.backend() as be:
        assert isinstance(be, Backend)
        s = sum_on(be)
        assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())
        a = holding(cpu, ramp(), "a")
        await cpu.copy(a, s.a, to=be)
        await be.memset(s.b, 0)
        await be.graph_compute(s.graph)
        assert np.array_equal(await be.get(s.y, offset=0, size=8), ramp(2).view(np.uint8))
        with pytest.raises(aggml.InvalidArgument, match="out of reach"):
            cpu.get(s.y)


@pytest.mark.feature("IF-10", "IF-11", "CP-09")
def test_a_family_made_of_what_is_required() -> None:
    family = PlainFamily()
    assert family.api_version == aggml.API_VERSION
    assert family.device(0) is family.devices[0]
    assert family.extension("nothing") is None
    cpu = aggml.get_family("cpu")
    assert isinstance(cpu, CPUFamily)
    assert len(cpu.devices) == 1


@pytest.mark.parametrize("what", [BufferType, Device, Family, aggml.Backend])
def test_interfaces_alone_make_nothing(what: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        what()


async def test_a_foreign_device_beside_a_simulated_one(sim: SimBackend) -> None:
    be = PlainDevice().backend()
    a, b = holding(sim, ramp()), placed(be)
    # neither device reaches the other's memory: the copy goes through host memory
    await sim.copy(a, b, to=be)
    assert np.array_equal(await be.get(b), ramp())
    await be.aclose()
