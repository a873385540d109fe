"""set, get, memset, copy on every device: element types, shapes, strides, views, ranges."""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from runtime.support import Array, holding, placed, ramp

import aggml
from aggml import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.devices.sim import SimBackend

NUMPY = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f64": np.float64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
}


def tensor(
    be: aggml.Backend, ne: tuple[int, ...], dtype: str = "f32", name: str = "t"
) -> aggml.Tensor:
    made = aggml.new_tensor(dtype, ne=ne, name=name)
    be.alloc([made])
    return made


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return rng.integers(-100, 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize(
    "ne", [(1,), (7,), (5, 3), (4, 3, 2), (2, 3, 4, 5), (3, 1, 1, 2), (1, 4)], ids=str
)
async def test_what_is_set_is_got(
    be: aggml.Backend, rng: np.random.Generator, ne: tuple[int, ...], dtype: str
) -> None:
    t = tensor(be, ne, dtype)
    x = numbers(rng, t.shape, NUMPY[dtype])
    await be.set(t, x)
    got = await be.get(t)
    assert got.dtype == x.dtype
    assert got.shape == t.shape
    assert np.array_equal(got, x)


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
async def test_quantized_blocks(be: aggml.Backend, rng: np.random.Generator, dtype: str) -> None:
    x = rng.standard_normal((3, 64)).astype(np.float32)
    blocks = aggml.quantize(x, dtype)
    t = tensor(be, (64, 3), dtype)
    await be.set(t, blocks)
    got = await be.get(t)
    assert got.dtype == np.uint8
    assert got.shape == (3, t.dtype.row_size(64))
    assert np.array_equal(got, blocks.reshape(got.shape))
    row = ops.view_1d(t, 64, t.nb[1])
    assert np.array_equal(await be.get(row), got[1])


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 2, 3, 4), (24,), (1, 1, 2, 3, 4)], ids=str)
async def test_shapes_that_are_the_same_after_leading_ones(
    be: aggml.Backend, shape: tuple[int, ...]
) -> None:
    t = tensor(be, (4, 3, 2))
    x = ramp(24).reshape(shape)
    await be.set(t, x)
    assert np.array_equal(await be.get(t), ramp(24).reshape(2, 3, 4))


SOURCES: dict[str, Callable[[Array], Array]] = {
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "fortran": lambda x: np.asfortranarray(x),
    "a slice of rows": lambda x: np.concatenate([x, x])[: x.shape[0]],
}


def read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("how", [*SOURCES, "read-only"])
async def test_sources_of_any_strides(
    be: aggml.Backend, rng: np.random.Generator, how: str
) -> None:
    t = tensor(be, (6, 4))
    x = SOURCES.get(how, read_only)(numbers(rng, (4, 6)))
    await be.set(t, x)
    assert np.array_equal(await be.get(t), x)


@pytest.mark.parametrize("how", [k for k in SOURCES if k != "broadcast"])
async def test_out_of_any_strides(be: aggml.Backend, rng: np.random.Generator, how: str) -> None:
    t = tensor(be, (6, 4))
    x = numbers(rng, (4, 6))
    await be.set(t, x)
    out = SOURCES[how](np.zeros((4, 6), np.float32))
    got = await be.get(t, out)
    assert got is out
    assert np.array_equal(out, x)


async def test_get_with_another_shape(be: aggml.Backend) -> None:
    t = tensor(be, (4, 3))
    await be.set(t, ramp(12).reshape(3, 4))
    assert np.array_equal(await be.get(t, shape=(2, 6)), ramp(12).reshape(2, 6))
    assert np.array_equal(await be.get(t, shape=(1, 3, 4)), ramp(12).reshape(1, 3, 4))
    out = np.empty((6, 2), np.float32)
    assert await be.get(t, out, (6, 2)) is out
    assert np.array_equal(out, ramp(12).reshape(6, 2))
    flat = np.empty(12, np.float32)
    await be.get(t, flat)
    assert np.array_equal(flat, ramp(12))


VIEWS: dict[str, Callable[[aggml.Tensor], aggml.Tensor]] = {
    "a row": lambda t: ops.view_1d(t, 6, 2 * t.nb[1]),
    "a block": lambda t: ops.view_2d(t, 3, 2, t.nb[1], t.nb[1] + 4),
    "permuted": lambda t: ops.permute(t, 1, 0, 2, 3),
    "transposed": lambda t: ops.transpose(t),
    "reshaped": lambda t: ops.reshape_2d(t, 8, 3),
    "a view of a view": lambda t: ops.view_1d(ops.view_2d(t, 6, 2, t.nb[1], t.nb[1]), 6, t.nb[1]),
}
SLICES: dict[str, Callable[[Array], Array]] = {
    "a row": lambda x: x[2],
    "a block": lambda x: x[1:3, 1:4],
    "permuted": lambda x: x.T,
    "transposed": lambda x: x.T,
    "reshaped": lambda x: x.reshape(3, 8),
    "a view of a view": lambda x: x[2],
}


@pytest.mark.parametrize("how", VIEWS)
async def test_views_are_set_and_got_in_logical_order(
    be: aggml.Backend, rng: np.random.Generator, how: str
) -> None:
    t = tensor(be, (6, 4))
    x = numbers(rng, (4, 6))
    await be.set(t, x)
    view = VIEWS[how](t)
    got = await be.get(view)
    assert np.array_equal(got, SLICES[how](x).reshape(got.shape))
    y = numbers(rng, got.shape)
    await be.set(view, y)
    wanted = x.copy()
    SLICES[how](wanted)[...] = y.reshape(SLICES[how](wanted).shape)
    assert np.array_equal(await be.get(t), wanted)


async def test_memset(be: aggml.Backend) -> None:
    t = tensor(be, (6, 4))
    await be.set(t, ramp(24).reshape(4, 6))
    await be.memset(t, 0, offset=4, size=8)
    x = ramp(24)
    x[1:3] = 0
    assert np.array_equal((await be.get(t)).reshape(-1), x)
    block = ops.view_2d(t, 3, 2, t.nb[1], t.nb[1] + 4)
    await be.memset(block, 0)  # its elements, and not what lies between them
    grid = x.reshape(4, 6)
    grid[1:3, 1:4] = 0
    assert np.array_equal(await be.get(t), grid)
    await be.memset(t, 0x41)
    assert (await be.get(t, offset=0) == 0x41).all()


async def test_bytes_of_the_span(be: aggml.Backend) -> None:
    t = holding(be, ramp())
    got = await be.get(t, offset=8, size=12)
    assert got.dtype == np.uint8
    assert np.array_equal(got.view(np.float32), ramp()[2:5])
    assert (await be.get(t, offset=64)).size == 0
    assert np.array_equal((await be.get(t, size=4)).view(np.float32), ramp()[:1])
    await be.set(t, np.array([70, 71], np.float32), offset=4)
    x = ramp()
    x[1:3] = [70, 71]
    assert np.array_equal(await be.get(t), x)
    out = np.zeros(3, np.float32)
    await be.get(t, out, offset=0, size=12)
    assert np.array_equal(out, x[:3])
    await be.set(t, b"", offset=64)
    await be.set(t, b"\0" * 8, offset=0)
    assert not (await be.get(t))[:2].any()


@pytest.mark.parametrize(
    "wrap",
    [memoryview, lambda x: array.array("f", x), lambda x: DLPack(x)],
    ids=["memoryview", "array", "dlpack"],
)
async def test_other_arrays(be: aggml.Backend, wrap: Any) -> None:
    t = placed(be)
    await be.set(t, wrap(ramp()))
    assert np.array_equal(await be.get(t), ramp())


class DLPack:
    """An array of another library."""

    def __init__(self, x: Array) -> None:
        self._x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self._x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()


async def test_copy_keeps_the_bytes(be: aggml.Backend, rng: np.random.Generator) -> None:
    a, b = tensor(be, (6, 4), name="a"), tensor(be, (6, 4), name="b")
    x = numbers(rng, (4, 6))
    be.set(a, x)
    await be.copy(a, b)
    assert np.array_equal(await be.get(b), x)
    await be.copy(ops.view_1d(a, 6, 0), ops.view_1d(b, 6, b.nb[1]))
    x[1] = x[0]
    assert np.array_equal(await be.get(b), x)
    await be.copy(a, a)
    q, r = tensor(be, (64,), "q8_0", "q"), tensor(be, (64,), "q8_0", "r")
    blocks = aggml.quantize(ramp(64), "q8_0")
    be.set(q, blocks)
    await be.copy(q, r)
    assert np.array_equal(await be.get(r), np.asarray(blocks).reshape(-1))


async def test_a_large_transfer(be: aggml.Backend, rng: np.random.Generator) -> None:
    n = 1 << 21
    t = tensor(be, (n,))
    x = rng.random(n, np.float32)
    await be.set(t, x)
    out = np.empty(n, np.float32)
    await be.get(t, out)
    assert np.array_equal(out, x)


async def test_the_host_may_not_touch_the_memory_of_another_device(sim: SimBackend) -> None:
    t = placed(sim)
    assert t.buffer is not None
    assert not t.buffer.is_host
    assert not aggml.get_device("CPU").supports_buffer_type(t.buffer.type)
    with aggml.get_device("CPU").backend() as cpu, pytest.raises(aggml.InvalidArgument):
        cpu.get(t)
