"""Memory shared without copies: DLPack both ways, views of tensors, raw addresses."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from support import N, holding, placed, ramp, sum_on, vector

import aggml
from aggml import ops

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUBackend, CPUDevice

Array = np.ndarray[Any, Any]


def aligned(x: Array, offset: int = 0) -> Array:
    """A copy whose address is a multiple of 64, plus ``offset``."""
    room = np.zeros(x.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    y = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


class Foreign:
    """An array of another library, which has DLPack and nothing else."""

    def __init__(self, x: Array, device: tuple[int, int] = (1, 0)) -> None:
        self._x = x
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


# -- tensors as arrays


def test_a_tensor_shows_its_memory(cpu: CPUBackend) -> None:
    t = holding(cpu, ramp())
    seen = np.from_dlpack(t)
    assert np.array_equal(seen, ramp())
    assert cpu.memset(t, 0).wait(60)
    assert not seen.any()
    t.host_view()[3] = 7
    assert seen[3] == 7
    del t
    gc.collect()
    assert seen[3] == 7  # the array keeps the memory alive


def test_views_show_their_strides(cpu: CPUBackend) -> None:
    t = aggml.new_tensor("f32", ne=(6, 4), name="t")
    cpu.alloc([t])
    x = ramp(24).reshape(4, 6)
    assert cpu.set(t, x).wait(60)
    assert np.array_equal(np.from_dlpack(ops.transpose(t)), x.T)
    block = ops.view_2d(t, 3, 2, t.nb[1], t.nb[1] + 4)
    assert np.array_equal(block.host_view(), x[1:3, 1:4])
    block.host_view()[...] = 0
    assert cpu.get(t).wait(60)
    assert not t.host_view()[1:3, 1:4].any()


@pytest.mark.parametrize("dtype", ["f16", "f64", "i8", "i16", "i32", "i64"])
def test_plain_types_by_dlpack(cpu: CPUBackend, dtype: str) -> None:
    t = placed(cpu, N, "t", dtype)
    assert cpu.memset(t, 1).wait(60)
    seen = np.from_dlpack(t)
    assert seen.dtype == t.dtype.numpy
    assert (seen.view(np.uint8) == 1).all()


def test_bf16_and_blocks_are_shown_as_far_as_numpy_goes(cpu: CPUBackend) -> None:
    b, q = placed(cpu, N, "b", "bf16"), placed(cpu, 64, "q", "q8_0")
    assert cpu.set(b, ramp().astype(ml_dtypes.bfloat16)).wait(60)
    assert b.host_view().dtype == ml_dtypes.bfloat16
    assert np.array_equal(b.host_view().astype(np.float32), ramp())
    with pytest.raises(aggml.Unsupported, match="bfloat16"):
        np.from_dlpack(b)
    blocks = aggml.quantize(ramp(64), "q8_0")
    assert cpu.set(q, blocks).wait(60)
    assert np.array_equal(np.from_dlpack(q), blocks)


def test_empty_tensors_are_shown(cpu: CPUBackend) -> None:
    t = aggml.new_tensor("f32", ne=(0, 3))
    cpu.alloc([t])
    assert t.host_view().shape == (3, 0)


def test_what_cannot_be_shown(cpu: CPUBackend, sim: aggml.Backend, cpu_device: CPUDevice) -> None:
    private = placed(sim, name="private")
    for show in (np.from_dlpack, aggml.Tensor.host_view, aggml.Tensor.__dlpack_device__):
        with pytest.raises(aggml.Unsupported, match="private"):
            show(private)
    for show in (np.from_dlpack, aggml.Tensor.host_view, aggml.Tensor.__dlpack__):
        with pytest.raises(aggml.NotAllocated, match="unplaced"):
            show(vector(name="unplaced"))
    frozen = aligned(ramp())
    frozen.flags.writeable = False
    weights = vector(name="weights")
    cpu_device.buffer_from_host(frozen).place(weights, 0)
    assert not weights.host_view().flags.writeable
    with pytest.raises(aggml.InvalidArgument, match=r"weights.*read-only"):
        np.from_dlpack(weights)
    with pytest.raises(aggml.Unsupported, match="t f32"):
        placed(cpu).__dlpack__(dl_device=(2, 0))


def test_results_of_a_graph_are_shown_and_intermediates_are_not(cpu: CPUBackend) -> None:
    a = vector(name="a")
    inner = ops.sqr(a)
    y = ops.sqrt(inner)
    graph = aggml.Graph(y)
    cpu.alloc_graph(graph)
    assert cpu.run(graph, {a: ramp()}, y).wait(60)
    assert np.array_equal(y.host_view(), ramp())
    with pytest.raises(aggml.NotAllocated):
        inner.host_view()


# -- arrays as tensors


@pytest.mark.parametrize("wrap", [lambda x: x, Foreign], ids=["numpy", "foreign"])
async def test_an_array_as_a_tensor(cpu: CPUBackend, wrap: Any) -> None:
    mine = aligned(ramp(24).reshape(4, 6))
    t = aggml.from_dlpack(wrap(mine), name="mine")
    assert (t.ne, t.name, t.shape) == ((6, 4, 1, 1), "mine", (4, 6))
    assert t.address == mine.ctypes.data
    y = ops.add(t, t)
    graph = aggml.Graph(y)
    cpu.alloc_graph(graph)
    assert np.array_equal(await cpu.run(graph, None, y), 2 * mine)
    await cpu.memset(t, 0)
    assert not mine.any()
    del mine
    gc.collect()
    assert not (await cpu.get(t)).any()


def test_what_is_read_only_stays_so(cpu: CPUBackend) -> None:
    frozen = aligned(ramp())
    frozen.flags.writeable = False
    t = aggml.from_dlpack(frozen)
    with pytest.raises(aggml.InvalidArgument, match="read-only"):
        cpu.set(t, ramp())


def test_bf16_scalars_and_nothing() -> None:
    t = aggml.from_dlpack(aligned(ramp().astype(ml_dtypes.bfloat16)))
    assert t.dtype is aggml.DType.BF16
    assert aggml.from_dlpack(aligned(np.array(3.0, np.float32))).ne == (1, 1, 1, 1)
    assert aggml.from_dlpack(np.zeros((3, 0), np.float32)).ne == (0, 3, 1, 1)


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (3, aggml.InvalidHandle),
        ([1.0], aggml.InvalidHandle),
        (None, aggml.InvalidHandle),
        (np.frombuffer(bytearray(66), np.float32, 16, 1), aggml.Misaligned),
        (aligned(ramp())[::2], aggml.LayoutMismatch),
        (aligned(ramp(32)).reshape(1, 2, 2, 2, 4), aggml.LayoutMismatch),
        (np.zeros(4, np.complex64), aggml.Unsupported),
        (Foreign(ramp(), (2, 0)), aggml.Unsupported),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, type) else x.__name__,
)
def test_what_cannot_be_a_tensor(x: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"from_dlpack|buffer_from_host"):
        aggml.from_dlpack(x)


@pytest.mark.parametrize(
    "dtype", ["f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64"], ids=lambda name: str(name)
)
async def test_an_array_may_begin_at_any_element(cpu: CPUBackend, dtype: str) -> None:
    """Numpy's own arrays, too: glibc aligns them to 16, even where 32 would be wanted."""
    kind = aggml.DType.parse(dtype)
    for first in range(1, 9):
        room = aligned(np.arange(9 + N).astype(kind.numpy))
        x = room[first : first + N]
        t = aggml.from_dlpack(x)
        assert t.address == x.ctypes.data
        assert np.array_equal(await cpu.get(t), x)


@pytest.mark.parametrize("offset", [16, 4, 2])
async def test_a_buffer_may_begin_where_its_owner_likes(
    cpu: CPUBackend, cpu_device: CPUDevice, offset: int
) -> None:
    room = np.zeros(256, np.uint8)
    start = -room.ctypes.data % 64 + offset
    buffer = cpu_device.buffer_from_host(room[start : start + 128])
    half = vector(N, "half", "f16")
    buffer.place(half, 0)
    await cpu.set(half, ramp().astype(np.float16))
    assert np.array_equal(room[start : start + 32].view(np.float16), ramp())
    single = vector(4, "single")
    wrong, right = (32, 34) if offset == 2 else (33, 32)
    with pytest.raises(aggml.Misaligned, match=r"single.*no multiple of 4; aggml\.empty"):
        buffer.place(single, wrong)
    buffer.place(single, right)


def test_memory_that_begins_amid_an_element_is_refused_and_the_cure_named(
    cpu_device: CPUDevice,
) -> None:
    room = np.zeros(66, np.uint8)
    odd = room[1 - room.ctypes.data % 2 :][:64]
    for refused in (odd, odd.view("f2"), odd.view("f4"), memoryview(odd.data)):
        with pytest.raises(aggml.Misaligned, match=r"0x.*aggml\.empty\(shape, dtype\)"):
            cpu_device.buffer_from_host(refused)
    with pytest.raises(aggml.Misaligned, match=r"aggml\.empty"):
        aggml.from_dlpack(odd.view("f4"))


@pytest.mark.parametrize("shape", [(), 0, 7, (3, 0), (2, 3, 5), [4, 8]], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "float16", "bf16", aggml.DType.I64, np.int8, np.uint8])
def test_empty_makes_arrays_that_every_device_takes(shape: Any, dtype: Any) -> None:
    x = aggml.empty(shape, dtype)
    like = np.empty(shape)
    assert x.shape == like.shape
    assert x.flags.c_contiguous
    assert x.flags.writeable
    assert x.ctypes.data % 256 == 0 or not x.size
    if dtype is not np.uint8:
        assert x.dtype == aggml.DType.parse(dtype).numpy
        assert aggml.from_dlpack(x).shape == (like.shape or (1,)) or x.ndim == 0 or not x.size
    else:
        assert x.dtype == np.uint8


async def test_empty_of_blocks_holds_the_bytes_of_rows(
    cpu: CPUBackend, cpu_device: CPUDevice
) -> None:
    x = aggml.empty((3, 512), "q4_K")
    assert (x.dtype, x.shape) == (np.uint8, (3, 288))
    w = aggml.new_tensor("q4_K", (512, 3))
    x[...] = aggml.quantize(ramp(3 * 512).reshape(3, 512), "q4_K")
    cpu_device.buffer_from_host(x).place(w, 0)
    assert np.array_equal(await cpu.get(w), x)


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        ((2, -1), "f32", aggml.InvalidArgument),
        ("4", "f32", aggml.InvalidHandle),
        (2.5, "f32", aggml.InvalidHandle),
        (None, "f32", aggml.InvalidHandle),
        (4, "f33", aggml.InvalidArgument),
        (4, None, aggml.InvalidHandle),
        (4, object, aggml.InvalidHandle),
        (4, np.dtype("O"), aggml.InvalidArgument),
        ((2, 100), "q4_0", aggml.LayoutMismatch),
        ((), "q4_0", aggml.LayoutMismatch),
        ((1 << 40, 1 << 40), "f32", aggml.AllocFailed),
        ((1 << 70,), "f32", aggml.AllocFailed),
    ],
    ids=str,
)
def test_what_empty_refuses(shape: Any, dtype: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^\[(empty|DType)"):
        aggml.empty(shape, dtype)


def test_a_device_that_reads_no_host_memory(sim: aggml.Backend) -> None:
    with pytest.raises(aggml.Unsupported, match="SIM"):
        aggml.from_dlpack(aligned(ramp()), device=sim.device)


# -- raw memory


@pytest.mark.feature("CP-08", "DV-10")
async def test_memory_behind_an_address(cpu: CPUBackend) -> None:
    memory = aligned(ramp(2 * N))
    buffer = aggml.unsafe.buffer_from_ptr(memory.ctypes.data, memory.nbytes, keep=memory)
    assert buffer.name == "CPU_Mapped"
    assert buffer.is_host
    assert buffer.base == memory.ctypes.data
    t = vector()
    buffer.place(t, 4 * N)
    assert np.array_equal(await cpu.get(t), ramp(N, N))
    address = memory.ctypes.data
    del memory, buffer
    gc.collect()
    await cpu.set(t, ramp())
    assert t.address == address + 4 * N
    assert np.array_equal(await cpu.get(t), ramp())


@pytest.mark.feature("CP-08")
@pytest.mark.parametrize(
    ("address", "size", "error"),
    [
        (65, 10, aggml.Misaligned),
        (0, 10, aggml.InvalidArgument),
        (-64, 10, aggml.InvalidArgument),
        (64, -1, aggml.InvalidArgument),
        (64, 1 << 63, aggml.OutOfBounds),
        (1 << 70, 8, aggml.OutOfBounds),
        ("64", 8, aggml.InvalidHandle),
        (64, None, aggml.InvalidHandle),
    ],
)
def test_addresses_that_cannot_be(address: Any, size: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="buffer_from"):
        aggml.unsafe.buffer_from_ptr(address, size)


def test_whole_graphs_on_memory_of_others(cpu: CPUBackend) -> None:
    s = sum_on(cpu)
    x = aligned(ramp())
    run = s.run(cpu, np.from_dlpack(Foreign(x)), x)
    assert run.wait(60)
    assert np.array_equal(run.result(), 2 * ramp())
