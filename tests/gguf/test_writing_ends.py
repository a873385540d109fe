"""GGUFWriter's end: after an exception, on a full disk, cancelled; the file is complete or absent.

Not here: what is in a file (test_writing.py, test_writing_metadata.py).
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import anyio
import anyio.from_thread
import pytest
from gguf_by_hand import floats

import aggml
from aggml.gguf import GGUFFile, GGUFWriter, pieces, writer

if TYPE_CHECKING:
    from pathlib import Path


def left(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


def test_an_exception_leaves_no_file_and_the_old_one_in_place(path: Path) -> None:
    def fail() -> None:
        with GGUFWriter(path) as w:
            w.add_tensor("x", floats((4, 32), 1))
            assert left(path) == before  # the file is not visible before it is complete
            raise ZeroDivisionError

    before: list[str] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert left(path) == before
    path.write_bytes(b"old")
    before = [path.name]
    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == b"old"
    with GGUFWriter(path) as w:
        w.add("a", 1)
        assert path.read_bytes() == b"old"
    assert left(path) == ["made.gguf"]
    assert path.read_bytes()[:4] == b"GGUF"


def test_a_disk_that_is_full_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, room = writer._put, [3000]

    def full(target: int, data: memoryview, at: int) -> int:
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return put(target, data, at)

    monkeypatch.setattr(writer, "_put", full)
    w = GGUFWriter(path)
    w.add_tensor("small", floats((32,), 1))
    with pytest.raises(OSError, match="No space"):
        w.add_tensor("large", floats((1024,), 2))
    room[0] = 200
    w.add_tensor("other", floats((32,), 3))
    with pytest.raises(OSError, match="No space"):
        w.close()
    assert left(path) == []
    assert w.closed
    room[0] = 100_000
    with GGUFWriter(path) as w:  # the tensor that failed in between is not in the file
        w.add_tensor("small", floats((32,), 1))
        room[0] = 0
        with pytest.raises(OSError, match="No space"):
            w.add_tensor("large", floats((1024,), 2))
        room[0] = 100_000
        w.add_tensor("other", floats((32,), 3))
    with GGUFFile.open(path) as file:
        assert list(file.tensors) == ["small", "other"]
        assert file.data("other").tobytes() == floats((32,), 3).tobytes()


def test_folders_that_are_not_there_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GGUFWriter(tmp_path / "nowhere" / "x.gguf")
    with pytest.raises(IsADirectoryError):
        GGUFWriter(tmp_path)
    with pytest.raises(aggml.InvalidArgument, match="48 is no power of two"):
        GGUFWriter(tmp_path / "x.gguf", alignment=48)
    assert os.listdir(tmp_path) == []


def test_a_closed_writer_refuses_and_closes_again(path: Path) -> None:
    w = GGUFWriter(path)
    w.close()
    w.close()
    assert "closed" in repr(w)
    with pytest.raises(aggml.InvalidState, match=r"made\.gguf"):
        w.add("a", 1)
    with pytest.raises(aggml.InvalidState, match=r"made\.gguf"):
        w.add_tensor("x", floats((2,), 1))
    with GGUFFile.open(path) as file:
        assert (file.version, file.metadata, file.tensors) == (3, {}, {})


def test_a_writer_that_nobody_closes_says_so(path: Path) -> None:
    w = GGUFWriter(path)
    with pytest.warns(ResourceWarning, match="never closed: no file was written"):
        del w
    assert left(path) == []


def test_permissions_are_those_of_other_files(path: Path) -> None:
    before = os.umask(0o027)
    try:
        GGUFWriter(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


async def test_written_off_the_loop_it_is_the_same(path: Path, tmp_path: Path) -> None:
    x = floats((8, 256), 1)
    other = tmp_path / "other.gguf"
    seen: list[int] = []
    async with GGUFWriter(path, progress=lambda done, _: seen.append(done)) as w:
        w.add("a", 1)
        await w.add_tensor_async("x", x)
        await w.add_tensor_async("q", x, "q4_K")
    assert seen[-1] == w.nbytes
    with GGUFWriter(other) as w:
        w.add("a", 1)
        w.add_tensor("x", x)
        w.add_tensor("q", x, "q4_K")
    assert path.read_bytes() == other.read_bytes()  # noqa: ASYNC240 1 kB


async def test_cancelled_closing_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "COPIED", 1000)
    scope = anyio.CancelScope()

    def progress(done: int, _: int) -> None:
        if done > 2000:
            scope.cancel()

    w = GGUFWriter(path, progress=progress)
    w.add_tensor("x", floats((8, 256), 1))
    with scope:
        await w.aclose()
    assert scope.cancelled_caught
    assert w.closed
    assert left(path) == []


async def test_cancelled_adding_adds_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1024)
    put = writer._put
    async with GGUFWriter(path) as w:
        with anyio.CancelScope() as scope:

            def watched(target: int, data: memoryview, at: int) -> int:
                anyio.from_thread.run_sync(scope.cancel)
                return put(target, data, at)

            with monkeypatch.context() as patch:
                patch.setattr(writer, "_put", watched)
                await w.add_tensor_async("x", floats((8, 256), 1))
        assert scope.cancelled_caught
        assert w.nbytes == 0
        await w.add_tensor_async("x", floats((8, 256), 2))
    with GGUFFile.open(path) as file:
        assert file.data("x").tobytes() == floats((8, 256), 2).tobytes()


async def test_one_tensor_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of other tasks are refused while a thread writes; the end waits for that thread."""
    put = writer._put
    w = GGUFWriter(path)
    refused: list[str] = []

    def from_elsewhere() -> None:
        with pytest.raises(aggml.InvalidState, match="being added"):
            w.add_tensor("y", floats((2,), 1))
        with pytest.raises(aggml.InvalidState, match="being added"):
            w.close()
        refused.append("both")
        w.abandon()

    def watched(target: int, data: memoryview, at: int) -> int:
        anyio.from_thread.run_sync(from_elsewhere)
        return put(target, data, at)

    monkeypatch.setattr(writer, "_put", watched)
    with pytest.raises(aggml.InvalidState, match="is closed"):
        await w.add_tensor_async("x", floats((8, 256), 1))
    assert refused == ["both"]
    assert left(path) == []
