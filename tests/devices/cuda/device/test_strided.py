"""Copies of any strides between host and device, and within a device: gathered by a kernel.

Not here: pinned and pageable memory as such (test_host_memory.py), the kernels as those of nodes
(../test_kernels.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from devices.cuda.fake_driver import all_kernels

import aggml
from aggml import ops
from aggml.errors import Unsupported

if TYPE_CHECKING:
    from devices.cuda.fake_driver import Fake
    from numpy.typing import NDArray

    from aggml.devices.cuda import CUDADevice

_TYPES = {"i8": np.int8, "f16": np.float16, "f32": np.float32, "i64": np.int64}
_COPIES = ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpy2DAsync")


kernels = pytest.fixture(all_kernels)


def _values(kind: str, *shape: int) -> NDArray[Any]:
    rng = np.random.default_rng(7)
    return rng.integers(-100, 100, shape).astype(_TYPES[kind])


class Issued:
    """Work issued to the fake driver since the last look. On a GPU nothing is counted."""

    def __init__(self, counts: Fake | None) -> None:
        self._fake = counts

    def anew(self) -> None:
        """Count from now on."""
        if self._fake is not None:
            self._fake.reset_counts()

    def check(self, *, kernels: int, copies: int) -> None:
        """Check the counts since then, and that no kernel or copy used memory out of bounds."""
        if self._fake is None:
            return
        assert self._fake.counter("kernels") == kernels
        assert sum(self._fake.calls(name) for name in _COPIES) == copies
        assert self._fake.counter("wild") == 0


@pytest.fixture
def issued(counts: Fake | None) -> Issued:
    return Issued(counts)


# The extents of a tensor, and the order in which its dimensions are seen: heads before tokens, rows
# as columns.
_SEEN = [
    pytest.param((40, 33, 1, 1), (1, 0, 2, 3), id="transposed"),
    pytest.param((16, 5, 37, 2), (0, 2, 1, 3), id="heads"),
    pytest.param((9, 10, 11, 3), (3, 1, 0, 2), id="all"),
    pytest.param((700, 600, 1, 1), (1, 0, 2, 3), id="several pieces"),
]


@pytest.mark.parametrize("kind", _TYPES)
@pytest.mark.parametrize(("ne", "order"), _SEEN)
async def test_views_cross_by_one_launch_a_piece(
    device: CUDADevice,
    issued: Issued,
    kind: str,
    ne: tuple[int, int, int, int],
    order: tuple[int, int, int, int],
) -> None:
    t = aggml.new_tensor(kind, ne=ne, name="t")
    x = _values(kind, *ne[::-1])
    # numpy's axes count from the slowest dimension
    axes = [3 - order.index(3 - d) for d in range(4)]
    view = ops.permute(t, *order)
    async with device.backend() as be:
        be.alloc([t])
        await be.set(t, x)
        pieces = -(-x.nbytes // (1 << 20))
        for _ in range(2):
            issued.anew()
            found = await be.get(view)
            assert np.array_equal(found.reshape(view.shape), x.transpose(axes).reshape(view.shape))
            issued.check(kernels=pieces, copies=0)
        y = _values(kind, *view.shape)[..., ::-1]
        issued.anew()
        await be.set(view, y)
        issued.check(kernels=pieces, copies=0)
        back = np.argsort(axes)
        whole = y.reshape(view.ne[::-1]).transpose(back)
        assert np.array_equal((await be.get(t)).reshape(whole.shape), whole)


async def test_views_within_a_device(device: CUDADevice, issued: Issued) -> None:
    a, b = (aggml.new_tensor("f16", ne=(24, 6, 31), name=n) for n in "ab")
    x = _values("f16", 31, 6, 24)
    async with device.backend() as be:
        be.alloc([a, b])
        await be.set(a, x)
        part, to = (
            ops.permute(ops.view_3d(t, 20, 4, 31, t.nb[1], t.nb[2], t.nb[1]), 1, 0, 2, 3)
            for t in (a, b)
        )
        await be.set(b, np.zeros_like(x))
        await be.get(part)  # loads the kernels, so that they are not counted
        issued.anew()
        await be.copy(part, to)
        issued.check(kernels=1, copies=0)
        expected = np.zeros_like(x)
        expected[:, 1:5, :20] = x[:, 1:5, :20]
        assert np.array_equal(await be.get(b), expected)


async def test_pinned_memory_of_others_goes_by_the_ring(device: CUDADevice, issued: Issued) -> None:
    t = aggml.new_tensor("f32", ne=(64, 80), name="t")
    x = _values("f32", 80, 64)
    out = np.zeros((64, 80), np.float32)
    async with device.backend() as be:
        be.alloc([t])
        await be.set(t, x)
        with device.register_host(out):
            await be.get(ops.transpose(t), out)
            assert np.array_equal(out, x.T)
            issued.anew()
            await be.get(ops.transpose(t), out)
            issued.check(kernels=1, copies=0)
            out[:] = 3
            await be.set(ops.transpose(t), out)
        assert (await be.get(t) == 3).all()


async def test_what_the_driver_copies_well_is_left_to_it(
    device: CUDADevice, issued: Issued
) -> None:
    """Rows of half a KiB or more, or few rows, are copied by the driver itself."""
    t = aggml.new_tensor("f32", ne=(512, 64), name="t")
    x = _values("f32", 64, 512)
    async with device.backend() as be:
        be.alloc([t])
        await be.set(t, x)
        await be.get(ops.transpose(t))
        issued.anew()
        wide = ops.view_2d(t, 256, 64, t.nb[1], 1024)
        assert np.array_equal(await be.get(wide), x[:, 256:])
        narrow = ops.view_2d(t, 3, 4, t.nb[1], 8)
        assert np.array_equal(await be.get(narrow), x[:4, 2:5])
        issued.check(kernels=0, copies=2)


@pytest.mark.parametrize("entry", ["cuLibraryLoadData", "cuLibraryGetKernel", "no compiler"])
async def test_without_the_kernels_the_driver_copies(
    device: CUDADevice, fake: Fake, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    t = aggml.new_tensor("f32", ne=(64, 80), name="t")
    x = _values("f32", 80, 64)

    def refuse(name: str) -> bytes:
        raise Unsupported(f"[test] no {name}")

    async with device.backend() as be:
        be.alloc([t])
        await be.set(t, x)
        if entry == "no compiler":
            monkeypatch.setattr(device, "image", refuse)
        else:
            fake.fail(entry, 200)
        for _ in range(2):
            assert np.array_equal(await be.get(ops.transpose(t)), x.T)
        assert fake.counter("kernels") == 0


async def test_a_launch_that_fails_fails_the_copy(device: CUDADevice, fake: Fake) -> None:
    t = aggml.new_tensor("f32", ne=(64, 80), name="t")
    x = _values("f32", 80, 64)
    async with device.backend() as be:
        be.alloc([t])
        await be.set(t, x)
        await be.get(ops.transpose(t))
        fake.fail("cuLaunchKernel", 701)
        with pytest.raises(aggml.DeviceError, match="cuLaunchKernelEx"):
            await be.get(ops.transpose(t))
        assert np.array_equal(await be.get(ops.transpose(t)), x.T)
