"""GGUF: model files. Metadata, tensor directory, mapped bytes, loading with progress.

Here: GGUFFile, which makes tensors of what a file holds and brings them to a device. Not here: the
format and its checks (header.py), mapped bytes that a device registers (windows.py), the meaning of
the tensors.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from aggml.errors import AggmlError, InvalidArgument, InvalidHandle, InvalidState
from aggml.gguf.header import GGUFError, Value, parse
from aggml.gguf.windows import RegisteredWindows
from aggml.native import _native
from aggml.process.paths import user_path
from aggml.tensor import Tensor, cut, new_tensor
from aggml.tensor.placement import Backing, BufferUsage

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable

    from aggml.backend import Backend
    from aggml.backend.backend import Device
    from aggml.memory.buffer import Buffer
    from aggml.stream.future import Future

__all__ = ["GGUFFile"]

LOAD_CHUNK: Final = 16 << 20  # bytes per upload; small, so that a cancel takes effect soon
ALIGNED: Final = 64  # bytes: enough for every type and every vector
LOAD_AHEAD: Final = 4  # uploads queued at once, so that the device never waits for the loop


class GGUFFile:
    """An open GGUF file: ``with GGUFFile.open("model.gguf") as file: ...``.

    Attributes:
        path: where it was opened.
        version: 2 or 3.
        alignment: at which the bytes of tensors begin in the file.
        metadata: values by key, in the file's order: int, float, bool, str, a read-only numpy array
            of numbers, or a list of the others. Strings that are not UTF-8 keep their bytes as
            surrogate escapes.
        types: GGUF's names of the values' types by key ("uint32", "string"); of an array, the name
            of its elements' type. `GGUFWriter.add` takes them.
        tensors: leaves by full name, in the file's order; not placed until `map` or `load`.
    """

    path: Path
    version: int
    alignment: int
    metadata: dict[str, Value]
    types: dict[str, str]
    tensors: dict[str, Tensor]
    _bytes: npt.NDArray[np.uint8]
    _offsets: dict[str, int]  # of the tensors, from the file's beginning
    _closed: bool
    _mapped: bool
    _ours: bool

    def __init__(self, *_: object, **__: object) -> None:
        raise InvalidState("[GGUFFile] files are opened by GGUFFile.open")

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, mmap: bool = True) -> Self:
        """Open a file and read its directory.

        Blocks while it reads the header (and, without ``mmap``, everything): in an event loop,
        call it through ``anyio.to_thread.run_sync``.

        Args:
            path: the file.
            mmap: map it, so that bytes are read when they are first used and shared with other
                processes. The file must then not be shortened while it is open. Writes to mapped
                tensors stay in this process. Otherwise it is read as a whole.

        Raises:
            GGUFError: not a GGUF file of version 2 or 3, damaged, or too short.
            OSError: the file cannot be read.
        """
        self = object.__new__(cls)
        self.path = user_path(path)
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._mapped = mmap and size > 0
            self._bytes = _map(file.fileno(), size) if self._mapped else _read(file, size)
        self._ours = _is_ours(self.path)
        return self._parse()

    @classmethod
    def from_buffer(cls, data: Any, *, name: str = "buffer") -> Self:  # noqa: ANN401 any buffer
        """Read a file that is in memory: bytes, a memoryview, an array, an mmap.

        The memory is used as it is, and must not change while the file is open; it is copied if it
        does not begin at a multiple of 64 bytes, or is read-only.

        Args:
            data: all bytes of the file.
            name: stands for a path in messages.

        Raises:
            GGUFError: as for `open`.
            InvalidArgument: ``data`` is no contiguous memory.
        """
        self = object.__new__(cls)
        try:
            view = np.frombuffer(memoryview(data).cast("B"), np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidArgument(
                f"[GGUFFile.from_buffer] {type(data).__name__} is no contiguous memory: {error}"
            ) from error
        if view.ctypes.data % ALIGNED or not view.flags.writeable:
            view = _copy_aligned(len(view), [view])
        return self._in_memory(name, view)

    @classmethod
    def from_reader(
        cls, read: Callable[[int, int], bytes], *, name: str = "reader", most: int | None = None
    ) -> Self:
        """Read a file through a function, whole and from front to back.

        Args:
            read: called with an offset and a number of bytes, returns that many; fewer only at the
                end of the file.
            name: stands for a path in messages.
            most: more bytes than these are refused; None: no limit.

        Raises:
            GGUFError: as for `open`; the file has more bytes than ``most``.
            InvalidArgument: ``read`` returns no bytes, or more than it was asked for.
        """
        pieces: list[npt.NDArray[np.uint8]] = []
        size = 0
        while True:
            found = read(size, LOAD_CHUNK)
            known: object = found  # whatever the caller's function returns
            if not isinstance(known, (bytes, bytearray, memoryview)) or len(found) > LOAD_CHUNK:
                raise InvalidArgument(
                    f"[GGUFFile.from_reader] read({size}, {LOAD_CHUNK}) returned "
                    f"{type(found).__name__}, expected were at most so many bytes"
                )
            pieces.append(np.frombuffer(found, np.uint8))
            size += len(found)
            if most is not None and size > most:
                raise GGUFError(f"[GGUFFile.open] {name!r}: it has more than {most} bytes")
            if len(found) < LOAD_CHUNK:
                break
        return object.__new__(cls)._in_memory(name, _copy_aligned(size, pieces))

    def _in_memory(self, name: str, data: npt.NDArray[np.uint8]) -> Self:
        self.path, self._bytes = Path(name), data
        self._mapped, self._ours = False, True
        return self._parse()

    def _parse(self) -> Self:
        """Read the header of the bytes."""
        self._closed = False
        header = parse(self.path, self._bytes)
        self.version, self.metadata, self.types, self.alignment, entries = header
        self.tensors = {
            x.name: new_tensor(x.dtype, ne=x.ne or (1,), name=cut(x.name)) for x in entries
        }
        self._offsets = {x.name: x.offset for x in entries}
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor as they lie in the file, read-only, without a copy.

        Raises:
            InvalidArgument: there is no tensor of that name.
            InvalidState: the file is closed.
        """
        self._check_open("data")
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self._unknown("data", name)
        offset = self._offsets[name]
        view = self._bytes[offset : offset + tensor.nbytes]
        view.flags.writeable = False
        return view

    def _unknown(self, what: str, name: object) -> InvalidArgument:
        near = get_close_matches(str(name), self.tensors, 3) or [*self.tensors][:3]
        return InvalidArgument(
            f"[GGUFFile.{what}] {str(self.path)!r} has no tensor {name!r}; it has "
            f"{len(self.tensors)}, "
            f"among them {', '.join(near)}"
        )

    def _select_names(self, names: Iterable[str] | None, what: str) -> list[str]:
        """The wanted names, each once; all names if none are given."""
        if isinstance(names, str | bytes):
            raise InvalidHandle(f"[GGUFFile.{what}] names={names!r} is one name: pass [{names!r}]")
        wanted = [*dict.fromkeys(self.tensors if names is None else names)]
        for name in wanted:
            if name not in self.tensors:
                raise self._unknown(what, name)
        return wanted

    def map(self, device: Device, names: Iterable[str] | None = None) -> Buffer:
        """Place tensors on ``device`` where they lie in host memory, without a copy.

        Args:
            device: reads host memory.
            names: which tensors; all if not given.

        Returns:
            A buffer with usage WEIGHTS that keeps the mapping alive, also when this file is closed.

        Raises:
            Unsupported: the device cannot use host memory; `load` copies.
            Misaligned: the file's alignment is too small for the device; `load` copies.
            AlreadyAllocated: a tensor has been placed before.
            InvalidArgument: there is no tensor of a given name.
            InvalidHandle: ``names`` is one name instead of several.
            InvalidState: the file is closed.
        """
        self._check_open("map")
        wanted = self._select_names(names, "map")
        buffer = device.buffer_from_host(self._bytes)
        if not self._ours:
            buffer.backing = Backing.UNTOLD
        buffer.is_file = self._mapped
        try:
            for name in wanted:
                buffer.place(self.tensors[name], self._offsets[name])
        except AggmlError:
            buffer.close()
            raise
        buffer.exclusive = (
            True  # the mapping is private, and `data` only hands out read-only views of it
        )
        buffer.usage = BufferUsage.WEIGHTS
        return buffer

    async def load(
        self,
        backend: Backend,
        *,
        names: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Buffer:
        """Copy tensors into memory of the backend's device, in pieces, without holding up the loop.

        Args:
            backend: carries out the copies, in order with its other work.
            names: which tensors; all if not given.
            progress: called with bytes copied so far and bytes in all.

        Returns:
            A buffer with usage WEIGHTS.

        Raises:
            AlreadyAllocated: a tensor has been placed before.
            AllocFailed: the device has too little memory.
            InvalidArgument: there is no tensor of a given name.
            InvalidHandle: ``names`` is one name instead of several.
            InvalidState: the file is closed.

        Cancellation: stops after the pieces that are queued; the tensors are unplaced again.
        """
        self._check_open("load")
        wanted = self._select_names(names, "load")
        pieces = {name: self.data(name) for name in wanted}  # data refuses unknown names
        sources = [(self.tensors[name], data) for name, data in pieces.items()]
        total = sum(tensor.nbytes for tensor, _ in sources)
        buffer = await backend.alloc_async([tensor for tensor, _ in sources])
        buffer.usage = BufferUsage.WEIGHTS
        windows = RegisteredWindows(backend.device, self._bytes, mapped=self._mapped)
        queued: list[tuple[Future[None], int, int]] = []  # bytes, and where they are in the file
        done = 0
        try:
            if progress is not None:
                progress(0, total)
            for tensor, data in sources:
                offset = data.ctypes.data - self._bytes.ctypes.data
                for start, end in windows.pieces(offset, tensor.nbytes, LOAD_CHUNK):
                    await windows.reach(offset + start, [place for _, _, place in queued])
                    sent = backend.set(tensor, data[start:end], offset=start, size=end - start)
                    queued.append((sent, end - start, offset + start))
                    while len(queued) >= LOAD_AHEAD:
                        done += await _first(queued)
                        if progress is not None:
                            progress(done, total)
            while queued:
                done += await _first(queued)
                if progress is not None:
                    progress(done, total)
        except BaseException:
            buffer.close()
            raise
        finally:
            await windows.close(future for future, _, _ in queued)
        return buffer

    def close(self) -> None:
        """Release the mapping. Arrays and buffers made from it keep it until they are gone."""
        self._closed = True
        self._bytes = np.empty(0, np.uint8)

    def _check_open(self, place: str) -> None:
        if self._closed:
            raise InvalidState(f"[GGUFFile.{place}] {str(self.path)!r} is closed: open it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return (
            f"<GGUFFile {self.path.name!r}, version {self.version}, {len(self.metadata)} values, "
            f"{len(self.tensors)} tensors of {self.nbytes} bytes{state}>"
        )


async def _first(queued: list[tuple[Future[None], int, int]]) -> int:
    future, size, _ = queued[0]
    await future
    del queued[0]
    return size


def _map(descriptor: int, size: int) -> npt.NDArray[np.uint8]:
    # It is writable, because devices want writable memory; a write never reaches the file. The
    # kernel refuses a writable mapping that is larger than memory; then a read-only one serves
    # every other purpose.
    try:
        whole = _native.MappedFile(descriptor, size, writable=True)
    except OSError:
        whole = _native.MappedFile(descriptor, size, writable=False)
    exporter: Any = whole  # types know buffers from Python 3.12 on
    return np.frombuffer(exporter, np.uint8)


def _copy_aligned(size: int, pieces: Iterable[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """A copy of pieces, one after the other, that begins at a multiple of `ALIGNED`."""
    room = np.empty(size + ALIGNED, np.uint8)
    start = -room.ctypes.data % ALIGNED
    target = room[start : start + size]
    at = 0
    for piece in pieces:
        target[at : at + len(piece)] = piece
        at += len(piece)
    return target


def _read(file: io.BufferedReader, size: int) -> npt.NDArray[np.uint8]:
    # A mapping is aligned to pages; here 64 bytes are enough for every type and every vector.
    room = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    target = room[start : start + size]
    taken = 0
    while taken < size:
        count = file.readinto(target[taken:].data)
        if not count:
            break
        taken += count
    return target[:taken]


def _is_ours(path: Path) -> bool:
    """Whether the kernel tells this process which pages of the file are in memory."""
    user = os.geteuid()
    return user in (0, path.stat().st_uid) or os.access(path, os.W_OK)
