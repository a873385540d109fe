"""MemoryTests: buffer types and buffers: sizes, alignment, placing, clearing, freeing.

Not here: the contents of tensors (data.py).
"""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

import aggml
from aggml.testing.fixtures import DeviceFixtures, N, place, place_array, ramp

__all__ = ["MemoryTests"]


class MemoryTests(DeviceFixtures):
    """A device describes itself correctly, and its memory lies where it says."""

    def test_what_it_tells(self, device: aggml.Device) -> None:
        props = device.props
        assert props[:3] == (device.name, device.description, device.type)
        assert props.description
        assert 0 <= props.memory_free <= props.memory_total
        assert props.caps.async_
        assert props.caps.events
        assert props.caps.host_buffer == (device.host_buffer_type is not None)
        assert device.name in repr(device)
        assert not device.family or device in device.family.devices

    def test_its_memory(self, device: aggml.Device) -> None:
        buffer_type = device.buffer_type
        assert buffer_type is device.buffer_type
        assert buffer_type.name
        assert device.supports_buffer_type(buffer_type)
        assert buffer_type.alignment >= 1
        assert buffer_type.alignment & (buffer_type.alignment - 1) == 0
        assert buffer_type.max_size > 0
        tensor = aggml.new_tensor("q4_0", ne=(64, 3))
        assert buffer_type.alloc_size(tensor) >= tensor.nbytes

    @pytest.mark.parametrize("size", [1, 31, 4096, 1 << 20])
    def test_a_buffer(self, device: aggml.Device, size: int) -> None:
        with device.buffer_type.alloc_buffer(size) as buffer:
            assert buffer.size >= size
            assert buffer.type is device.buffer_type
            assert buffer.base % device.buffer_type.alignment == 0
            assert buffer.base != 0
            assert buffer.usage is aggml.BufferUsage.ANY
            assert buffer.is_host == device.buffer_type.is_host
        assert buffer.closed

    async def test_an_empty_buffer(self, be: aggml.Backend) -> None:
        buffer = be.buffer_type.alloc_buffer(0)
        assert (buffer.size, buffer.base) == (0, 0)
        empty = aggml.new_tensor("f32", ne=(0,))
        buffer.place(empty, 0)
        assert (await be.get(empty)).size == 0
        await be.set(empty, ramp(0))
        assert be.alloc([]).size == 0
        buffer.close()
        buffer.close()

    def test_memory_comes_back(self, device: aggml.Device) -> None:
        """One buffer after the other, together more than all memory: dropping one frees it."""
        _, total = device.memory()
        size = min(total // 2, device.buffer_type.max_size, 256 << 20) or 1 << 20
        for _ in range(max(8, total // size + 2)):
            buffer = device.buffer_type.alloc_buffer(size)
            del buffer

    def test_too_much_is_refused(self, device: aggml.Device) -> None:
        with pytest.raises(aggml.AllocFailed):
            device.buffer_type.alloc_buffer(1 << 60)
        device.buffer_type.alloc_buffer(64).close()  # the refusal did no harm

    def test_tensors_lie_aligned_and_apart(self, be: aggml.Backend) -> None:
        tensors = [aggml.new_tensor("f32", ne=(n,), name=f"t{n}") for n in (1, 7, 33, 0, 100)]
        buffer = be.alloc(tensors)
        spans = sorted((t.address or 0, t.nbytes) for t in tensors if t.nbytes)
        for address, _ in spans:
            assert address % be.buffer_type.alignment == 0
        for (address, nbytes), (after, _) in itertools.pairwise(spans):
            assert address + nbytes <= after
        assert spans[0][0] >= buffer.base
        assert sum(spans[-1]) <= buffer.base + buffer.size

    def test_placing_by_hand(self, device: aggml.Device) -> None:
        buffer_type = device.buffer_type
        buffer = buffer_type.alloc_buffer(4 * buffer_type.alignment + 4 * N)
        a = aggml.new_tensor("f32", ne=(1,))
        buffer.place(a, 0)
        with pytest.raises(aggml.AlreadyAllocated):
            buffer.place(a, buffer_type.alignment)
        b = aggml.new_tensor("f32", ne=(1,))
        with pytest.raises(aggml.OutOfBounds):
            buffer.place(b, buffer_type.alignment * (buffer.size // buffer_type.alignment + 1))
        with pytest.raises(aggml.OutOfBounds):
            buffer.place(b, -buffer_type.alignment)
        if buffer_type.alignment > 1:
            with pytest.raises(aggml.Misaligned):
                buffer.place(b, 1)
        buffer.place(b, buffer_type.alignment)
        buffer.close()
        assert a.placement is b.placement is None
        with pytest.raises(aggml.InvalidState):
            buffer.place(a, 0)

    async def test_clearing(self, be: aggml.Backend) -> None:
        a, b = (aggml.new_tensor("f32", ne=(N,), name=name) for name in "ab")
        buffer = be.alloc([a, b])
        be.set(a, ramp())
        be.set(b, ramp())
        await be._clear(buffer, 0x41)
        for tensor in (a, b):
            assert (await be.get(tensor, offset=0) == 0x41).all()

    async def test_a_tensor_keeps_its_buffer(self, be: aggml.Backend) -> None:
        tensor = place_array(be, ramp())
        gc.collect()
        fill = [place(be, (N,)) for _ in range(4)]  # these would reuse freed memory
        for other in fill:
            be.memset(other, 0xFF)
        assert np.array_equal(await be.get(tensor), ramp())

    async def test_work_in_flight_keeps_the_bytes(self, be: aggml.Backend) -> None:
        tensor = place_array(be, ramp())
        assert tensor.buffer is not None
        with be.stream.hold():
            got = be.get(tensor)
            tensor.buffer.close()
        assert np.array_equal(await got, ramp())
        with pytest.raises(aggml.NotAllocated):
            be.get(tensor)

    def test_usage_is_kept(self, be: aggml.Backend) -> None:
        buffer = be.alloc([aggml.new_tensor("f32", ne=(N,))])
        buffer.usage = aggml.BufferUsage.WEIGHTS
        assert buffer.usage is aggml.BufferUsage.WEIGHTS

    async def test_host_memory_in_place_where_it_is_offered(self, device: aggml.Device) -> None:
        memory = np.zeros(4 * N + 4096, np.uint8)
        mine = memory[-memory.ctypes.data % 4096 :][: 4 * N].view(np.float32)
        if not device.caps.buffer_from_host:
            with pytest.raises(aggml.Unsupported):
                device.buffer_from_host(mine)
            return
        mine[:] = ramp()
        tensor = aggml.new_tensor("f32", ne=(N,))
        device.buffer_from_host(mine).place(tensor, 0)
        async with device.backend() as be:
            assert np.array_equal(await be.get(tensor), ramp())
            await be.set(tensor, ramp(start=5))
        assert np.array_equal(mine, ramp(start=5))
