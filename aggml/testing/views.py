"""ViewTests: views and arrays of any strides, other shapes, memset.

Not here: contiguous transfers (data.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import aggml
from aggml import ops
from aggml.testing.fixtures import Array, DeviceFixtures, place, ramp

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ViewTests"]

SOURCES: dict[str, Callable[[Array], Array]] = {
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "fortran": lambda x: np.asfortranarray(x),
    "a slice of rows": lambda x: np.concatenate([x, x])[: x.shape[0]],
}


def _read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


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


def _numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(-100, 100, shape).astype(np.float32)


class ViewTests(DeviceFixtures):
    """Elements are moved in logical order, from and to any strides."""

    @pytest.mark.parametrize("shape", [(2, 3, 4), (1, 2, 3, 4), (24,), (1, 1, 2, 3, 4)], ids=str)
    async def test_shapes_that_are_the_same_after_leading_ones(
        self, be: aggml.Backend, shape: tuple[int, ...]
    ) -> None:
        t = place(be, (4, 3, 2))
        x = ramp(24).reshape(shape)
        await be.set(t, x)
        assert np.array_equal(await be.get(t), ramp(24).reshape(2, 3, 4))

    @pytest.mark.parametrize("how", [*SOURCES, "read-only"])
    async def test_sources_of_any_strides(
        self, be: aggml.Backend, rng: np.random.Generator, how: str
    ) -> None:
        t = place(be, (6, 4))
        x = SOURCES.get(how, _read_only)(_numbers(rng, (4, 6)))
        await be.set(t, x)
        assert np.array_equal(await be.get(t), x)

    @pytest.mark.parametrize("how", [k for k in SOURCES if k != "broadcast"])
    async def test_out_of_any_strides(
        self, be: aggml.Backend, rng: np.random.Generator, how: str
    ) -> None:
        t = place(be, (6, 4))
        x = _numbers(rng, (4, 6))
        await be.set(t, x)
        out = SOURCES[how](np.zeros((4, 6), np.float32))
        got = await be.get(t, out)
        assert got is out
        assert np.array_equal(out, x)

    async def test_get_with_another_shape(self, be: aggml.Backend) -> None:
        t = place(be, (4, 3))
        await be.set(t, ramp(12).reshape(3, 4))
        assert np.array_equal(await be.get(t, shape=(2, 6)), ramp(12).reshape(2, 6))
        assert np.array_equal(await be.get(t, shape=(1, 3, 4)), ramp(12).reshape(1, 3, 4))
        out = np.empty((6, 2), np.float32)
        assert await be.get(t, out, (6, 2)) is out
        assert np.array_equal(out, ramp(12).reshape(6, 2))
        flat = np.empty(12, np.float32)
        await be.get(t, flat)
        assert np.array_equal(flat, ramp(12))

    @pytest.mark.parametrize("how", VIEWS)
    async def test_views_are_set_and_got_in_logical_order(
        self, be: aggml.Backend, rng: np.random.Generator, how: str
    ) -> None:
        t = place(be, (6, 4))
        x = _numbers(rng, (4, 6))
        await be.set(t, x)
        view = VIEWS[how](t)
        got = await be.get(view)
        assert np.array_equal(got, SLICES[how](x).reshape(got.shape))
        y = _numbers(rng, got.shape)
        await be.set(view, y)
        wanted = x.copy()
        SLICES[how](wanted)[...] = y.reshape(SLICES[how](wanted).shape)
        assert np.array_equal(await be.get(t), wanted)

    async def test_memset(self, be: aggml.Backend) -> None:
        t = place(be, (6, 4))
        await be.set(t, ramp(24).reshape(4, 6))
        await be.memset(t, 0, offset=4, size=8)
        x = ramp(24)
        x[1:3] = 0
        assert np.array_equal((await be.get(t)).reshape(-1), x)
        block = ops.view_2d(t, 3, 2, t.nb[1], t.nb[1] + 4)
        await be.memset(block, 0)  # only its elements, not the bytes between them
        grid = x.reshape(4, 6)
        grid[1:3, 1:4] = 0
        assert np.array_equal(await be.get(t), grid)
        await be.memset(t, 0x41)
        assert (await be.get(t, offset=0) == 0x41).all()
