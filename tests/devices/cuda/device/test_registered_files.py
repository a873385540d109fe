"""Mapped files are registered with the driver, which reads them in place while tensors are loaded.

Not here: registering memory as such (test_host_memory.py), loading on other devices (tests/gguf).
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, BinaryIO

import anyio
import numpy as np
import pytest

import aggml
from aggml.gguf import GGUFFile, GGUFWriter, file, windows

if TYPE_CHECKING:
    from pathlib import Path

    from devices.cuda.fake_driver import Fake
    from numpy.typing import NDArray

    from aggml.devices.cuda import CUDADevice

_CHUNK, _WINDOW = 1 << 14, 1 << 16


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of seven windows, with tensors of many sizes."""
    monkeypatch.setattr(file, "LOAD_CHUNK", _CHUNK)
    monkeypatch.setattr(windows, "WINDOW", _WINDOW)
    rng = np.random.default_rng(3)
    found = tmp_path / "weights.gguf"
    with GGUFWriter(found) as writer:
        for i, n in enumerate((10, 40_000, 3, 5000, 50_000, 17, 2000, 1, 4096)):
            writer.add_tensor(f"t{i}", rng.standard_normal(n).astype(np.float32))
    assert 6 * _WINDOW < found.stat().st_size <= 7 * _WINDOW
    return found


async def _same(device: CUDADevice, path: Path, names: list[str] | None = None) -> None:
    with GGUFFile.open(path) as opened:
        async with device.backend() as be:
            buffer = await opened.load(be, names=names)
            for name in opened.tensors if names is None else names:
                found = await be.get(opened.tensors[name])
                assert found.tobytes() == opened.data(name).tobytes()
            buffer.close()


def _at_a_page(source: BinaryIO, size: int) -> NDArray[np.uint8]:
    """A file's bytes in memory that begins at a page, as mappings do and other arrays rarely do."""
    room = np.empty(size + mmap.PAGESIZE, np.uint8)
    start = -room.ctypes.data % mmap.PAGESIZE
    room[start : start + size] = np.frombuffer(source.read(), np.uint8)
    return room[start : start + size]


def _registered(fake: Fake) -> tuple[int, int, int]:
    return (
        fake.calls("cuMemHostRegister"),
        fake.counter("read-only registrations"),
        fake.calls("cuMemHostUnregister"),
    )


async def test_a_file_is_read_where_it_lies(device: CUDADevice, fake: Fake, path: Path) -> None:
    device.registers_files = True
    await _same(device, path)
    assert _registered(fake) == (7, 7, 7)
    assert fake.counter("pageable") == 0


async def test_windows_of_a_few_tensors_in_any_order(
    device: CUDADevice, fake: Fake, path: Path
) -> None:
    device.registers_files = True
    await _same(device, path, ["t8", "t0", "t7", "t4", "t2", "t1"])
    once, read_only, given_back = _registered(fake)
    assert once == read_only == given_back >= 7


async def test_the_host_stages_unless_it_is_asked(
    device: CUDADevice, fake: Fake, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not device.registers_files
    await _same(device, path)
    assert _registered(fake) == (0, 0, 0)
    monkeypatch.setenv("AGGML_CUDA_REGISTER", "1")
    assert type(device)(device.facts, device.kernels).registers_files
    monkeypatch.setattr(file, "_read", _at_a_page)
    with GGUFFile.open(path, mmap=False) as opened:
        device.registers_files = True
        async with device.backend() as be:
            (await opened.load(be)).close()
    assert _registered(fake) == (0, 0, 0)


@pytest.mark.parametrize("code", [1, 2, 801])
async def test_what_cannot_be_pinned_is_staged(
    device: CUDADevice, fake: Fake, path: Path, code: int
) -> None:
    device.registers_files = True
    fake.fail("cuMemHostRegister", code, after=2)
    await _same(device, path)
    assert _registered(fake)[2] == 2


async def test_a_load_that_is_cancelled_leaves_nothing_registered(
    device: CUDADevice, fake: Fake, path: Path
) -> None:
    device.registers_files = True
    with GGUFFile.open(path) as opened:
        async with device.backend() as be:
            with anyio.CancelScope() as scope:

                def progress(done: int, _: int) -> None:
                    if done > 2 * _WINDOW:
                        scope.cancel()

                await opened.load(be, progress=progress)
            assert scope.cancelled_caught
            once, _, given_back = _registered(fake)
            assert 0 < once == given_back
            await opened.load(be, names=["t1"])  # t1 was not placed by the cancelled load


async def test_a_copy_that_fails_leaves_nothing_registered(
    device: CUDADevice, fake: Fake, path: Path
) -> None:
    device.registers_files = True
    with GGUFFile.open(path) as opened:
        async with device.backend() as be:
            fake.fail("cuMemcpyHtoDAsync", 1, after=9)
            with pytest.raises(aggml.DeviceError, match="cuMemcpyHtoDAsync"):
                await opened.load(be)
            once, _, given_back = _registered(fake)
            assert 0 < once == given_back
