"""GGUF: model files. Metadata, tensor directory, mapped bytes, loading with progress.

Here: a strict parser of versions 2 and 3, little-endian, and GGUFFile, which makes tensors of what
a file holds. Every count and offset is checked against the bytes there are before it is used, so a
damaged file is an error message, never a crash or a huge allocation. Not here: what tensors mean.
"""

from __future__ import annotations

import itertools
import mmap as mapping
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import numpy as np
import numpy.typing as npt

from aggml.buffer import BufferUsage
from aggml.dtype import DType
from aggml.errors import AggmlError, InvalidArgument, InvalidState
from aggml.tensor import MAX_DIMS, Tensor, new_tensor

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from aggml.backend import Backend
    from aggml.buffer import Buffer
    from aggml.device import Device
    from aggml.future import Future

__all__ = ["GGUFError", "GGUFFile"]

VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 1 << 30  # a larger one is a damaged file, not a layout
MAX_NESTING: Final = 4  # of arrays in arrays; bounds the recursion
MAX_NAME: Final = 65535  # bytes of a key or tensor name
LOAD_CHUNK: Final = (
    16 << 20
)  # bytes per upload, so that progress moves and a cancel takes effect soon
LOAD_AHEAD: Final = 4  # uploads queued at once, so that the device never waits for the loop

_SCALARS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    10: "Q",
    11: "q",
    12: "d",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_UINT32 = 4

Value = Any  # of metadata; GGUFFile.metadata says what there is


class GGUFError(InvalidArgument):
    """A file is no GGUF file, is damaged or ends too early. Names the file, item and values."""


class GGUFFile:
    """An open GGUF file: ``with GGUFFile.open("model.gguf") as file: ...``.

    Attributes:
        path: where it was opened.
        version: 2 or 3.
        alignment: of the tensors' bytes in the file.
        metadata: values by key, in the file's order: int, float, bool, str, a read-only numpy array
            of numbers, or a list of the others. Strings that are not UTF-8 keep their bytes as
            surrogate escapes.
        tensors: leaves by full name, in the file's order; not placed until `map` or `load`.
    """

    path: Path
    version: int
    alignment: int
    metadata: dict[str, Value]
    tensors: dict[str, Tensor]
    _bytes: npt.NDArray[np.uint8]
    _offsets: dict[str, int]  # of the tensors, from the file's beginning
    _closed: bool

    def __init__(self) -> None:
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
        self.path = Path(path)
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._bytes = _map(file.fileno(), size) if mmap and size else _read(file, size)
        self._closed = False
        parser = _Parser(self.path, self._bytes)
        self.version, self.metadata, self.alignment, entries = parser.parse()
        self.tensors = {}
        self._offsets = {}
        for name, dtype, ne, offset in entries:
            self.tensors[name] = new_tensor(dtype, ne=ne or (1,), name=name)
            self._offsets[name] = offset
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
            raise InvalidArgument(f"[GGUFFile.data] {str(self.path)!r} has no tensor {name!r}")
        offset = self._offsets[name]
        view = self._bytes[offset : offset + tensor.nbytes]
        view.flags.writeable = False
        return view

    def map(self, device: Device) -> Buffer:
        """Place all tensors on ``device`` where they lie in host memory, without a copy.

        Returns:
            A buffer with usage WEIGHTS that keeps the mapping alive, also when this file is closed.

        Raises:
            Unsupported: the device cannot use host memory; `load` copies.
            Misaligned: the file's alignment is too small for the device; `load` copies.
            AlreadyAllocated: a tensor has been placed before.
            InvalidState: the file is closed.
        """
        self._check_open("map")
        buffer = device.buffer_from_host(self._bytes)
        try:
            for name, tensor in self.tensors.items():
                buffer.place(tensor, self._offsets[name])
        except AggmlError:
            buffer.close()
            raise
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
            InvalidState: the file is closed.

        Cancellation: stops after the pieces that are queued; the tensors are unplaced again.
        """
        self._check_open("load")
        wanted = dict.fromkeys(self.tensors if names is None else names)
        pieces = {name: self.data(name) for name in wanted}  # data refuses unknown names
        sources = [(self.tensors[name], data) for name, data in pieces.items()]
        total = sum(tensor.nbytes for tensor, _ in sources)
        buffer = backend.alloc([tensor for tensor, _ in sources])
        buffer.usage = BufferUsage.WEIGHTS
        queued: list[tuple[Future[None], int]] = []
        done = 0
        try:
            if progress is not None:
                progress(0, total)
            for tensor, data in sources:
                for start in range(0, tensor.nbytes, LOAD_CHUNK):
                    piece = data[start : start + LOAD_CHUNK]
                    queued.append(
                        (backend.set(tensor, piece, offset=start, size=len(piece)), len(piece))
                    )
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
        return buffer

    def close(self) -> None:
        """Let go of the bytes. Arrays and buffers made from them keep them as long as they live."""
        self._closed = True
        self._bytes = np.empty(0, np.uint8)

    def _check_open(self, place: str) -> None:
        if self._closed:
            raise InvalidState(f"[GGUFFile.{place}] {str(self.path)!r} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return (
            f"<GGUFFile {self.path.name!r}, version {self.version}, {len(self.metadata)} values, "
            f"{len(self.tensors)} tensors of {self.nbytes} bytes{state}>"
        )


async def _first(queued: list[tuple[Future[None], int]]) -> int:
    future, size = queued.pop(0)
    await future
    return size


def _map(descriptor: int, size: int) -> npt.NDArray[np.uint8]:
    # A private mapping: devices want writable memory, and a write must never reach the file. Where
    # the kernel refuses one because it is larger than memory, a read-only one does for all else.
    try:
        whole = mapping.mmap(descriptor, size, access=mapping.ACCESS_COPY)
    except OSError:
        whole = mapping.mmap(descriptor, size, access=mapping.ACCESS_READ)
    return np.frombuffer(whole, np.uint8)


def _read(file: io.BufferedReader, size: int) -> npt.NDArray[np.uint8]:
    # The alignment that a mapping has by nature: 64 covers every type and vector there is.
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


class _Parser:
    """Reads a header from front to back; what it needs must be there, or it raises."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8]) -> None:
        self.path = str(path)
        self.view = data.data.toreadonly()
        self.size = len(data)
        self.at = 0

    def fail(self, message: str) -> NoReturn:
        raise GGUFError(f"[GGUFFile.open] {self.path!r}: {message}")

    def take(self, size: int, what: str) -> int:
        """Where the next ``size`` bytes begin."""
        if size > self.size - self.at:
            self.fail(
                f"{what} needs {size} bytes at byte {self.at}, the file has only {self.size} bytes"
            )
        start = self.at
        self.at += size
        return start

    def number(self, code: str, what: str) -> Value:
        form = _FORMS[code]
        return form.unpack_from(self.view, self.take(form.size, what))[0]

    def text(self, what: str, *, limit: int | None = None, errors: str = "surrogateescape") -> str:
        size = self.number("Q", f"length of {what}")
        if limit is not None and size > limit:
            self.fail(f"{what} at byte {self.at} is {size} bytes long, at most {limit} make sense")
        start = self.take(size, what)
        try:
            return str(self.view[start : start + size], "utf-8", errors)
        except UnicodeDecodeError as error:
            self.fail(f"{what} at byte {start} is not UTF-8: {error.reason}")

    def parse(self) -> tuple[int, dict[str, Value], int, list[_Entry]]:
        version = self.version()
        tensors = self.number("Q", "number of tensors")
        values = self.number("Q", "number of metadata values")
        # The smallest entries there can be: an empty name, no extents; an empty key and a byte.
        self.count(tensors, 24, "tensors")
        self.count(values, 13, "metadata values")
        metadata = self.metadata(values)
        alignment = self.alignment(metadata)
        entries = self.directory(tensors)
        start = -(-self.at // alignment) * alignment
        return version, metadata, alignment, self.check_offsets(entries, start, alignment)

    def version(self) -> int:
        if bytes(self.view[:4]) != b"GGUF":
            found = bytes(self.view[:4])
            self.fail(f"begins with {found!r} instead of b'GGUF': this is no GGUF file")
        self.at = 4
        version: int = self.number("I", "version")
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            self.fail("is big-endian; only little-endian files can be read")
        if version not in VERSIONS:
            self.fail(f"version {version} is not among {VERSIONS}")
        return version

    def count(self, count: int, smallest: int, what: str) -> None:
        left = self.size - self.at
        if count * smallest > left:
            self.fail(
                f"{count} {what} cannot be: {left} bytes follow, and each needs {smallest} or more"
            )

    def metadata(self, count: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        self._kinds: dict[str, int] = {}
        for index in range(count):
            key = self.text(f"key of metadata value {index}", limit=MAX_NAME, errors="strict")
            if key in found:
                self.fail(f"metadata key {key!r} occurs twice")
            kind = self.number("I", f"type of {key!r}")
            found[key] = self.value(kind, f"value of {key!r}", 0)
            self._kinds[key] = kind
        return found

    def value(self, kind: int, what: str, depth: int) -> Value:
        code = _SCALARS.get(kind)
        if code is not None:
            return self.number(code, what)
        if kind == _BOOL:
            return self.bools(1, what)[0]
        if kind == _STRING:
            return self.text(what)
        if kind != _ARRAY:
            self.fail(f"{what} at byte {self.at} is of type {kind}, which does not exist")
        if depth == MAX_NESTING:
            self.fail(f"{what} is an array nested more than {MAX_NESTING} deep")
        return self.array(what, depth)

    def array(self, what: str, depth: int) -> Value:
        kind = self.number("I", f"element type of {what}")
        count = self.number("Q", f"length of {what}")
        code = _SCALARS.get(kind)
        if code is not None:
            form = np.dtype(f"<{_FORMS[code].format[1:]}")
            start = self.take(count * form.itemsize, f"{what}, {count} elements,")
            # A copy: the header need not be aligned, and the metadata may outlive the file.
            items = np.frombuffer(self.view[start : self.at], form).copy()
            items.flags.writeable = False
            return items
        if kind == _BOOL:
            return self.bools(count, what)
        smallest = {_STRING: 8, _ARRAY: 12}.get(kind)
        if smallest is None:
            self.fail(f"{what} at byte {self.at} has elements of type {kind}, which does not exist")
        self.count(count, smallest, f"elements of {what}")
        if kind == _STRING:
            return self.strings(count, what)
        return [self.value(kind, what, depth + 1) for _ in range(count)]

    def bools(self, count: int, what: str) -> list[bool]:
        start = self.take(count, what)
        found = bytes(self.view[start : self.at])
        if found.strip(b"\0\1"):
            self.fail(f"{what} at byte {start} is a bool other than 0 and 1")
        return [x == 1 for x in found]

    def strings(self, count: int, what: str) -> list[str]:
        # A vocabulary has 100,000 of them: `text` for each would take three times as long.
        view, size, at = self.view, self.size, self.at
        unpack = _FORMS["Q"].unpack_from
        found = []
        for index in range(count):
            end = at + 8
            if end > size or (end := end + unpack(view, at)[0]) > size:
                self.at = at
                self.text(f"element {index} of {what}")  # raises
            found.append(str(view[at + 8 : end], "utf-8", "surrogateescape"))
            at = end
        self.at = at
        return found

    def alignment(self, metadata: dict[str, Value]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        kind = self._kinds.get("general.alignment", _UINT32)
        if kind != _UINT32 or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            self.fail(f"general.alignment = {alignment!r} is no uint32 that is a power of two")
        return int(alignment)

    def directory(self, count: int) -> list[_Entry]:
        entries: list[_Entry] = []
        names: set[str] = set()
        for index in range(count):
            name = self.text(f"name of tensor {index}", limit=MAX_NAME, errors="strict")
            if name in names:
                self.fail(f"tensor {name!r} occurs twice")
            names.add(name)
            dims = self.number("I", f"number of extents of tensor {name!r}")
            if dims > MAX_DIMS:
                self.fail(f"tensor {name!r} has {dims} extents, at most {MAX_DIMS} are possible")
            ne = tuple(self.number("Q", f"extents of tensor {name!r}") for _ in range(dims))
            kind = self.number("I", f"type of tensor {name!r}")
            offset = self.number("Q", f"offset of tensor {name!r}")
            try:
                dtype = DType(kind)
            except (ValueError, AggmlError):
                self.fail(f"tensor {name!r} is of type {kind}, which does not exist")
            entries.append((name, dtype, ne, offset))
        return entries

    def check_offsets(self, entries: list[_Entry], start: int, alignment: int) -> list[_Entry]:
        """The entries with offsets from the file's beginning; their bytes are there, each once."""
        placed: list[_Entry] = []
        spans: list[tuple[int, int, str]] = []
        for name, dtype, ne, offset in entries:
            size = self.tensor_size(name, dtype, ne)
            if offset % alignment:
                self.fail(f"tensor {name!r} at offset {offset} is not aligned to {alignment}")
            if size and start + offset + size > self.size:
                self.fail(
                    f"tensor {name!r} takes {size} bytes at byte {start + offset}, the file has "
                    f"only {self.size} bytes"
                )
            if size:
                spans.append((offset, offset + size, name))
            # An empty tensor lies nowhere; its offset must still be one that a buffer accepts.
            placed.append((name, dtype, ne, start + offset if size else 0))
        spans.sort()
        for (_, end, name), (begin, _, other) in itertools.pairwise(spans):
            if begin < end:
                self.fail(f"tensors {name!r} and {other!r} overlap at offset {begin}")
        return placed

    def tensor_size(self, name: str, dtype: DType, ne: tuple[int, ...]) -> int:
        first, *others = ne or (1,)
        if first % dtype.blck_size:
            self.fail(
                f"tensor {name!r} has rows of {first} elements, no multiple of the "
                f"{dtype.blck_size} in a block of {dtype.type_name}"
            )
        # Empty ones too: strides are products of extents, and must not grow without bounds.
        bound = dtype.row_size(max(first, dtype.blck_size))
        size = dtype.row_size(first)
        for n in others:
            bound *= max(n, 1)
            size *= n
        if bound > (self.size if size else _MAX_EMPTY):
            self.fail(
                f"tensor {name!r} of {dtype.type_name} {list(ne)} would take {bound} bytes, the "
                f"file has only {self.size} bytes"
            )
        return size


_MAX_EMPTY: Final = 1 << 40
_Entry = tuple[str, DType, tuple[int, ...], int]
_FORMS: Final = {code: struct.Struct(f"<{code}") for code in "BbHhIifQqd"}
