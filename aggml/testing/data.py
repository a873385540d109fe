"""DataTests: set and get, of all element types, parts of a tensor, arrays of other libraries.

Not here: views and strides (views.py), copies between tensors (copies.py).
"""

from __future__ import annotations

import array
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aggml
from aggml import ops
from aggml.testing.fixtures import Array, DeviceFixtures, place, place_array, ramp

__all__ = ["DataTests"]

NUMPY: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f64": np.float64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
}


class _DLPack:
    """An array of another library."""

    def __init__(self, x: Array) -> None:
        self._x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self._x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()


class DataTests(DeviceFixtures):
    """`get` returns what `set` wrote."""

    @pytest.mark.parametrize("dtype", NUMPY)
    @pytest.mark.parametrize(
        "ne", [(1,), (7,), (5, 3), (4, 3, 2), (2, 3, 4, 5), (3, 1, 1, 2), (1, 4)], ids=str
    )
    async def test_what_is_set_is_got(
        self, be: aggml.Backend, rng: np.random.Generator, ne: tuple[int, ...], dtype: str
    ) -> None:
        t = place(be, ne, dtype)
        x = rng.integers(-100, 100, t.shape).astype(NUMPY[dtype])
        await be.set(t, x)
        got = await be.get(t)
        assert got.dtype == x.dtype
        assert got.shape == t.shape
        assert np.array_equal(got, x)

    @pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
    async def test_quantized_blocks(
        self, be: aggml.Backend, rng: np.random.Generator, dtype: str
    ) -> None:
        x = rng.standard_normal((3, 64)).astype(np.float32)
        blocks = aggml.quantize(x, dtype)
        t = place(be, (64, 3), dtype)
        await be.set(t, blocks)
        got = await be.get(t)
        assert got.dtype == np.uint8
        assert got.shape == (3, t.dtype.row_size(64))
        assert np.array_equal(got, blocks.reshape(got.shape))
        row = ops.view_1d(t, 64, t.nb[1])
        assert np.array_equal(await be.get(row), got[1])

    async def test_bytes_of_the_span(self, be: aggml.Backend) -> None:
        t = place_array(be, ramp())
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

    async def test_pieces_at_regular_distances(self, be: aggml.Backend) -> None:
        x = ramp(60).reshape(6, 10)
        t = place_array(be, x)
        column = {"size": 12, "stride_tensor": t.nb[1], "offset": 8}
        await be.set_2d(t, -ramp(20), n_copies=4, stride_data=20, **column)
        x[:4, 2:5] = -ramp(20).reshape(4, 5)[:, :3]
        assert np.array_equal(await be.get(t), x)
        await be.set_2d(t, ramp(3) + 90, n_copies=2, stride_data=0, **column)
        x[:2, 2:5] = ramp(3) + 90
        out = np.full((6, 4), 7, np.float32)
        assert await be.get_2d(t, out, n_copies=6, stride_data=16, **column) is out
        assert np.array_equal(out[:, :3], x[:, 2:5])
        assert (out[:, 3] == 7).all()

    async def test_bytes_of_many_tensors(self, be: aggml.Backend) -> None:
        values = [ramp(60).reshape(6, 10), ramp(12) + 70, ramp(8) - 9]
        tensors = [place_array(be, x) for x in values]
        values[0].reshape(-1)[4:7] = ramp(3) + 500
        values[2][:] = ramp(8) + 90
        await be.set_many([(tensors[0], ramp(3) + 500, 16), (tensors[2], ramp(8) + 90, 0)])
        out = [np.full(9, 7, np.float32) for _ in values]
        places = [(3, 5), (12, 0), (2, 6)]  # elements read, and from which one on
        reads = [
            (tensor, x[:n], 4 * first)
            for tensor, x, (n, first) in zip(tensors, out, places, strict=True)
        ]
        out[1] = np.full(12, 7, np.float32)
        reads[1] = (tensors[1], out[1], 0)
        await be.get_many(reads)
        for x, value, (n, first) in zip(out, values, places, strict=True):
            assert np.array_equal(x[:n], value.reshape(-1)[first : first + n])
            assert (x[n:] == 7).all()
        await be.set_many([])
        await be.get_many([])
        for tensor, value in zip(tensors, values, strict=True):
            assert np.array_equal(await be.get(tensor), value)

    @pytest.mark.parametrize(
        "wrap",
        [memoryview, lambda x: array.array("f", x), lambda x: _DLPack(x)],
        ids=["memoryview", "array", "dlpack"],
    )
    async def test_other_arrays(self, be: aggml.Backend, wrap: Any) -> None:
        t = place(be)
        await be.set(t, wrap(ramp()))
        assert np.array_equal(await be.get(t), ramp())

    async def test_a_large_transfer(self, be: aggml.Backend, rng: np.random.Generator) -> None:
        n = 1 << 21
        t = place(be, (n,))
        x = rng.random(n, np.float32)
        await be.set(t, x)
        out = np.empty(n, np.float32)
        await be.get(t, out)
        assert np.array_equal(out, x)
