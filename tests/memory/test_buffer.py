"""Buffer types and buffers on every device: sizes, usage, hooks, several as one, clear.

Transfers: backend/test_data.py. Lifetimes inside a graph: test_scratch.py.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import N, holding, placed, ramp, vector

import aggml
from aggml import Buffer, BufferType, BufferUsage, MultiBuffer, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from conftest import AnyDevice


class Small(BufferType):
    """Host memory of at most 512 bytes a buffer, which notes the arguments of its hooks."""

    name = "Small"
    alignment = 64

    def __init__(self, limit: int = 512) -> None:
        self.limit = limit
        self.left = 1 << 30
        self.told: list[tuple[str, str]] = []

    @property
    def max_size(self) -> int:
        return self.limit

    @property
    def is_host(self) -> bool:
        return True

    def alloc_size(self, tensor: aggml.Tensor) -> int:
        return tensor.nbytes + (8 if tensor.name == "padded" else 0)

    def alloc_buffer(self, size: int) -> Buffer:
        if size > self.left:
            raise aggml.AllocFailed(f"[Small] {size} bytes")
        self.left -= size
        block = aggml.get_device("CPU").buffer_type.alloc_buffer(size)
        return Told(self, size, block.base, block)


class Told(Buffer):
    type: Small  # pyright: ignore[reportIncompatibleMethodOverride] narrower

    def init_tensor(self, tensor: aggml.Tensor) -> None:
        if tensor.name == "bad":
            raise aggml.Unsupported("[Told] not this one")
        self.type.told.append(("init", tensor.name))

    def free_tensor(self, tensor: aggml.Tensor) -> None:
        assert tensor.buffer is self
        self.type.told.append(("free", tensor.name))

    def reset(self) -> None:
        self.type.told.append(("reset", ""))


# -- types


@pytest.mark.feature("BT-01", "BT-03", "BT-04", "BT-06", "BT-07")
def test_what_a_type_tells(device: AnyDevice) -> None:
    kind = device.buffer_type
    assert kind.name == device.name
    assert kind.alignment & (kind.alignment - 1) == 0
    assert kind.max_size >= 1 << 30
    assert kind.is_host == (device.name == "CPU")
    assert kind.device is (None if device.name == "CPU" else device)
    assert device.name in repr(kind)


@pytest.mark.feature("BT-02", "BE-05", "BU-03", "BU-04")
def test_a_type_makes_buffers(device: AnyDevice) -> None:
    buffer = device.buffer_type.alloc_buffer(1000)
    assert (buffer.size, buffer.type, buffer.usage) == (1000, device.buffer_type, BufferUsage.ANY)
    assert buffer.base
    assert buffer.base % device.buffer_type.alignment == 0
    assert device.buffer_type.alloc_buffer(1000).base != buffer.base


@pytest.mark.feature("BT-02")
def test_no_memory_is_an_error_with_a_name() -> None:
    kind = SimDevice("TINY", memory=1000).buffer_type
    with pytest.raises(aggml.AllocFailed, match=r"TINY.*1001"):
        kind.alloc_buffer(1001)
    host = aggml.get_device("CPU").buffer_type
    with pytest.raises(aggml.AllocFailed):
        host.alloc_buffer(1 << 60)
    with pytest.raises(aggml.AllocFailed):
        host.alloc_buffer(1 << 70)
    with pytest.raises(aggml.InvalidArgument, match="-1"):
        host.alloc_buffer(-1)


@pytest.mark.feature("BT-05", "BU-08")
def test_a_type_may_ask_for_more_than_the_bytes_of_a_tensor() -> None:
    kind = Small()
    tensor = vector(name="padded")
    buffer = kind.alloc_buffer(4 * N + 8)
    assert kind.alloc_size(tensor) == buffer.alloc_size(tensor) == 4 * N + 8
    with pytest.raises(aggml.OutOfBounds, match=r"padded.*72"):
        kind.alloc_buffer(4 * N).place(tensor, 0)
    buffer.place(tensor, 0)


@pytest.mark.feature("BT-08", "BE-11")
def test_who_can_use_which_memory(cpu: aggml.Backend, sim: aggml.Backend) -> None:
    assert cpu.device.supports_buffer_type(cpu.buffer_type)
    assert sim.device.supports_buffer_type(sim.buffer_type)
    assert not cpu.device.supports_buffer_type(sim.buffer_type)
    assert not sim.device.supports_buffer_type(cpu.buffer_type)
    assert SimDevice("S", reads_host=True).supports_buffer_type(cpu.buffer_type)
    assert cpu.device.supports_buffer_type(Small())


# -- buffers


@pytest.mark.feature("BU-01", "BU-06", "BU-07", "BU-10", "BU-13", "BU-16")
def test_a_buffer_tells_what_its_type_tells(device: AnyDevice) -> None:
    kind = device.buffer_type
    buffer = kind.alloc_buffer(10)
    assert buffer.type is kind
    assert buffer.name == kind.name
    assert buffer.alignment == kind.alignment
    assert buffer.max_size == kind.max_size
    assert buffer.is_host == kind.is_host
    with pytest.raises(AttributeError):
        buffer.type = kind  # type: ignore[misc]


@pytest.mark.feature("BU-11", "BU-12", "BU-15")
def test_the_usage_of_a_buffer_is_one_of_three(device: AnyDevice) -> None:
    assert [(u.name, u.value) for u in BufferUsage] == [("ANY", 0), ("WEIGHTS", 1), ("COMPUTE", 2)]
    buffer = device.buffer_type.alloc_buffer(10)
    assert buffer.usage is BufferUsage.ANY
    buffer.usage = BufferUsage.WEIGHTS
    assert buffer.usage is BufferUsage.WEIGHTS
    for bad in (3, "weights", None):
        with pytest.raises(aggml.InvalidArgument, match=str(bad)):
            buffer.usage = bad  # type: ignore[assignment]
    assert buffer.usage is BufferUsage.WEIGHTS


@pytest.mark.feature("BU-02")
def test_an_end_of_a_buffer_leaves_nothing_dangling(be: aggml.Backend) -> None:
    t = holding(be, ramp())
    view = ops.view_1d(t, 4, 0)
    buffer = t.buffer
    assert buffer is not None
    buffer.close()
    buffer.close()
    assert t.buffer is view.buffer is None
    for tensor in (t, view):
        with pytest.raises(aggml.NotAllocated):
            be.get(tensor)
    be.alloc([t])  # afterwards the tensor may be placed again
    assert buffer.closed
    assert "closed" in repr(buffer)


def test_a_buffer_goes_with_the_last_that_refers_to_it(be: aggml.Backend) -> None:
    t = placed(be)
    reference = weakref.ref(t.buffer)
    gc.collect()
    assert reference() is not None
    del t
    gc.collect()
    assert reference() is None


@pytest.mark.feature("BU-05", "BU-14", "BU-21", "IF-12")
def test_the_hooks_of_a_buffer() -> None:
    kind = Small()
    a, b, bad = vector(4, "a"), vector(4, "b"), vector(4, "bad")
    buffer = kind.alloc_tensors([a, b])
    assert kind.told == [("init", "a"), ("init", "b")]
    other = kind.alloc_buffer(64)
    with pytest.raises(aggml.Unsupported, match="not this one"):
        other.place(bad, 0)
    assert bad.buffer is None
    assert other.tensors == []
    buffer.reset()
    assert a.buffer is buffer
    kind.told.clear()
    buffer.unplace(a)
    assert a.buffer is None
    buffer.close()
    assert kind.told == [("free", "a"), ("free", "b")]


@pytest.mark.feature("BU-05")
def test_a_hook_that_refuses_one_of_many_leaves_all_without_memory() -> None:
    kind = Small()
    tensors = [vector(4, "a"), vector(200, "b"), vector(4, "bad")]
    with pytest.raises(aggml.Unsupported):
        kind.alloc_tensors(tensors)
    assert [t.placement for t in tensors] == [None] * 3


@pytest.mark.feature("UT-14")
def test_a_buffer_lists_what_lies_in_it() -> None:
    buffer = aggml.get_device("CPU").buffer_type.alloc_buffer(1024)
    a, b = vector(name="a"), vector(name="b")
    buffer.place(b, 256)
    buffer.place(a, 64)
    assert buffer.tensors == [a, b]
    with pytest.raises(aggml.InvalidArgument, match="lie in"):
        aggml.get_device("CPU").buffer_type.alloc_buffer(64).unplace(a)


@pytest.mark.feature("BU-20", "IF-04")
def test_a_buffer_is_made_of_a_type_and_memory() -> None:
    kind = Small()
    memory = np.zeros(256, np.uint8)
    buffer = Buffer(kind, 128, memory.ctypes.data, memory)
    assert (buffer.type, buffer.size, buffer.memory) == (kind, 128, memory)
    assert buffer.usage is BufferUsage.ANY
    with pytest.raises(aggml.InvalidHandle, match="CPU"):
        Buffer("CPU", 128, 0, memory)  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidArgument, match="-1"):
        Buffer(kind, -1, 0, memory)


# -- clear


@pytest.mark.feature("BU-09")
async def test_clear(be: aggml.Backend) -> None:
    a, b = holding(be, ramp(), "a"), vector(name="b")
    buffer = a.buffer
    assert buffer is not None
    be.clear(buffer, 0x40)
    be.set(a, ramp(4), offset=0)
    got = be.get(a, offset=0)
    assert np.array_equal((await got)[:16].view(np.float32), ramp(4))
    assert (got.result()[16:] == 0x40).all()
    await be.clear(buffer)
    assert not (await be.get(a)).any()
    with pytest.raises(aggml.NotAllocated):
        be.get(b)


@pytest.mark.feature("BU-09")
async def test_clear_cures(sim_device: SimDevice, sim: aggml.Backend) -> None:
    a = holding(sim, ramp())
    sim_device.fail_at(0, "transfer")
    failed = sim.set(a, ramp(start=1))
    with pytest.raises(aggml.DeviceError):
        await sim.get(a)
    assert a.buffer is not None
    await sim.clear(a.buffer)
    assert not (await sim.get(a)).any()
    assert failed.exception() is not None


def test_clear_of_what_cannot_be_cleared(be: aggml.Backend, cpu_device: Any) -> None:
    buffer = be.buffer_type.alloc_buffer(64)
    with pytest.raises(aggml.InvalidHandle, match="3"):
        be.clear(3)  # type: ignore[arg-type]
    for bad in (-1, 256):
        with pytest.raises(aggml.InvalidArgument, match=str(bad)):
            be.clear(buffer, bad)
    with pytest.raises(aggml.InvalidHandle, match="x"):
        be.clear(buffer, "x")  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidArgument, match="out of reach"):
        be.clear(
            SimDevice("ELSEWHERE").buffer_type.alloc_buffer(64)
            if be.device.name == "CPU"
            else cpu_device.buffer_type.alloc_buffer(64)
        )
    buffer.close()
    with pytest.raises(aggml.InvalidState, match="closed"):
        be.clear(buffer)
    assert be.pending == 0


# -- several buffers as one


@pytest.mark.feature("BU-17", "AL-13")
async def test_tensors_beyond_the_largest_buffer_lie_in_several(cpu: aggml.Backend) -> None:
    kind = Small()
    tensors = [vector(64, f"t{i}") for i in range(3)]
    buffer = kind.alloc_tensors(tensors)
    assert isinstance(buffer, MultiBuffer)
    assert [part.size for part in buffer.parts] == [512, 256]
    assert (buffer.size, buffer.base, buffer.type) == (768, 0, kind)
    assert [t.buffer for t in tensors] == [buffer.parts[0], buffer.parts[0], buffer.parts[1]]
    assert buffer.tensors == tensors
    for i, t in enumerate(tensors):
        cpu.set(t, ramp(64, i))
    for i, t in enumerate(tensors):
        assert np.array_equal(await cpu.get(t), ramp(64, i))


@pytest.mark.feature("BU-11", "BU-18")
def test_usage_reaches_the_parts() -> None:
    buffer = Small().alloc_tensors([vector(100), vector(100)])
    assert isinstance(buffer, MultiBuffer)
    buffer.usage = BufferUsage.WEIGHTS
    assert [part.usage for part in buffer.parts] == [BufferUsage.WEIGHTS] * 2
    buffer.set_parts_usage(BufferUsage.COMPUTE)
    assert [part.usage for part in buffer.parts] == [BufferUsage.COMPUTE] * 2
    assert buffer.usage is BufferUsage.WEIGHTS
    with pytest.raises(aggml.InvalidArgument):
        buffer.set_parts_usage(7)  # type: ignore[arg-type]


@pytest.mark.feature("BU-09", "BU-14")
async def test_what_a_multi_buffer_forwards(cpu: aggml.Backend) -> None:
    kind = Small()
    a, b = vector(100, "a"), vector(100, "b")
    buffer = kind.alloc_tensors([a, b])
    cpu.clear(buffer, 1)
    for t in (a, b):
        assert ((await cpu.get(t, offset=0)) == 1).all()
    kind.told.clear()
    buffer.reset()
    assert kind.told == [("reset", "")] * 2
    with pytest.raises(aggml.InvalidState, match="parts"):
        buffer.place(vector(), 0)
    buffer.close()
    assert a.buffer is b.buffer is None
    assert "2 parts" in repr(buffer)


def test_a_multi_buffer_of_nothing_is_refused() -> None:
    with pytest.raises(aggml.InvalidArgument, match="parts is empty"):
        MultiBuffer([])
    for bad in (3, [3], "ab"):
        with pytest.raises(aggml.InvalidHandle):
            MultiBuffer(bad)  # type: ignore[arg-type]


@pytest.mark.feature("AL-12", "AL-13", "AL-14")
def test_nothing_to_do_is_no_failure(be: aggml.Backend) -> None:
    empty = aggml.new_tensor("f32", ne=(0, 4), name="empty")
    assert be.buffer_type.tensors_size([empty]) == be.buffer_type.tensors_size([]) == 0
    for buffer in (be.alloc([]), be.alloc([empty])):
        assert (buffer.size, buffer.base) == (0, 0)
    assert empty.buffer is not None
    assert be.get(empty).wait(60)


@pytest.mark.feature("AL-12", "AL-13")
def test_sizes_are_known_before_and_a_failure_places_nothing() -> None:
    kind = Small()
    tensors = [vector(n, f"t{n}") for n in (3, 64, 60, 300, 1)]
    size = kind.tensors_size(tensors)
    assert size == 64 + 256 + 256 + 1216 + 64
    kind.left = size - 1
    with pytest.raises(aggml.AllocFailed):
        kind.alloc_tensors(tensors)
    assert [t.placement for t in tensors] == [None] * 5
    kind.left = size
    buffer = kind.alloc_tensors([*tensors, tensors[0]])
    assert isinstance(buffer, MultiBuffer)
    assert buffer.size == size
    assert [part.size for part in buffer.parts] == [320, 256, 1216, 64]
    with pytest.raises(aggml.AlreadyAllocated):
        kind.tensors_size(tensors)


@pytest.mark.parametrize("usage", ["weights", "WEIGHTS", BufferUsage.WEIGHTS, 1])
async def test_usage_is_set_before_anything_is_written(cpu: aggml.Backend, usage: Any) -> None:
    w = aggml.new_tensor("q4_0", ne=(64, 8), name="w")
    assert cpu.alloc([w], usage=usage).usage is BufferUsage.WEIGHTS
    later = aggml.new_tensor("q4_0", ne=(64, 8), name="later")
    buffer = await cpu.alloc_async([later], usage=usage)
    assert buffer.usage is BufferUsage.WEIGHTS
    assert cpu.alloc([aggml.new_tensor("f32", ne=4)]).usage is BufferUsage.ANY


@pytest.mark.parametrize("usage", ["weight", "", 7, -1, 1.5, b"weights", [1]])
async def test_a_usage_that_does_not_exist_places_nothing(cpu: aggml.Backend, usage: Any) -> None:
    w = aggml.new_tensor("f32", ne=(4,), name="w")
    with pytest.raises(aggml.InvalidArgument, match='"weights"'):
        cpu.alloc([w], usage=usage)
    with pytest.raises(aggml.InvalidArgument, match='"weights"'):
        await cpu.alloc_async([w], usage=usage)
    assert w.buffer is None
    buffer = cpu.alloc([w])
    with pytest.raises(aggml.InvalidArgument):
        buffer.usage = usage
    assert buffer.usage is BufferUsage.ANY


def test_every_part_of_a_large_allocation_has_the_usage() -> None:
    buffer = Small().alloc_tensors([vector(100) for _ in range(5)], usage="weights")
    assert isinstance(buffer, MultiBuffer)
    assert {part.usage for part in (buffer, *buffer.parts)} == {BufferUsage.WEIGHTS}
