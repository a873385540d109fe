"""Writing GGUF: model files that ggml, llama.cpp and the gguf package read.

Here: GGUFWriter, which collects metadata, streams tensors to disk and puts the file in place when
it is whole. Not here: the encoding of values (encode.py), the bytes of a tensor (pieces.py),
reading (file.py).
"""

from __future__ import annotations

import itertools
import os
import warnings
from contextlib import closing, suppress
from operator import index
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import anyio.to_thread

from aggml.errors import InvalidArgument, InvalidState
from aggml.gguf.encode import directory_entry, encode_entry, header
from aggml.gguf.pieces import Pieces
from aggml.gguf.value_types import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_ALIGNMENT, UINT32
from aggml.process.numbers import Numbers
from aggml.process.paths import user_path
from aggml.tensor import MAX_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from aggml.dtype import DType
    from aggml.gguf.file import GGUFFile
    from aggml.gguf.parts import GGUFParts

__all__ = ["GGUFWriter"]

COPIED: Final = 16 << 20  # bytes at once: progress moves, and a cancel takes effect soon
_numbers = Numbers()  # of the files beside: several writers of one path do not meet


class _Written(NamedTuple):
    """A tensor whose bytes lie in the spool, from ``begin`` on."""

    dtype: DType
    ne: tuple[int, ...]
    begin: int
    nbytes: int


class GGUFWriter:
    """Writes a GGUF file: ``with GGUFWriter("model.gguf") as w: w.add(...); w.add_tensor(...)``.

    Tensors go to disk as they are added, into an unnamed file of the same folder: none is kept in
    memory. `close` writes the file itself under another name beside ``path``, metadata first, and
    renames it when all of it is on disk. So ``path`` is either what it was before or whole. An
    exception in the ``with`` block leaves nothing behind. Until it is closed the tensors need their
    room on disk twice.

    Args:
        path: where the file will be; one that is there is replaced.
        alignment: of the tensors' bytes in the file, a power of two; stored as general.alignment if
            it is not 32.
        progress: called while the file is closed, with bytes of tensors copied so far and in all.

    Raises:
        InvalidArgument: ``alignment`` is no power of two.
        OSError: nothing can be written in that folder.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        alignment: int = DEFAULT_ALIGNMENT,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._spool = -1  # a file descriptor; -1: closed. First: __del__ looks at it
        self.path: Path = user_path(path)
        self._busy = False  # a thread uses the spool
        self._values: dict[str, bytes] = {}
        self._tensors: dict[str, _Written] = {}
        self._end = 0  # of the spool
        self._progress = progress
        self._alignment = _alignment(alignment)
        if self.path.is_dir():
            raise IsADirectoryError(f"[GGUFWriter] {str(self.path)!r} is a folder")
        if alignment != DEFAULT_ALIGNMENT:
            self._values[ALIGNMENT_KEY] = encode_entry(ALIGNMENT_KEY, self._alignment, UINT32.name)
        spool = self._beside("tensors")
        self._spool = os.open(spool, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        spool.unlink()  # the file vanishes with its descriptor, however this process ends

    def _beside(self, what: str) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}-{next(_numbers)}.{what}")

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors so far."""
        return self._end

    @property
    def nbytes_of_values(self) -> int:
        """Bytes of all metadata values so far, as they will be in the file."""
        return sum(map(len, self._values.values()))

    @property
    def closed(self) -> bool:
        """Whether it was closed, or abandoned."""
        return self._spool < 0

    def add(self, key: str, value: object, type: str | None = None) -> None:  # noqa: A002 as GGUF has it
        """Add a metadata value.

        Args:
            key: its name, "general.architecture"; each once.
            value: int, float, bool, str, bytes (a string), a numpy scalar, or a list, tuple or
                numpy array of these, also nested. ``general.alignment`` sets the file's alignment.
            type: GGUF's name of the type: "uint8", "int8", ... "uint64", "int64", "float32",
                "float64", "bool" or "string"; of an array, its elements' type. If not given, numpy
                values keep theirs, and of Python's a float becomes float32, an int uint32, and the
                ints of a list become int32, as llama.cpp reads them; what does not fit becomes the
                first of int32 (of a list: uint32), uint64 and int64 that holds it.

        Raises:
            InvalidArgument: the key is used, or the value cannot be of that type.
            InvalidState: the file is closed.
        """
        self._check_open("add")
        if key in self._values:
            raise InvalidArgument(f"[GGUFWriter.add] {key!r} has a value already")
        if key == ALIGNMENT_KEY:
            self._alignment = _alignment(value)
            type = UINT32.name  # noqa: A001 readers know no other
        self._values[key] = encode_entry(key, value, type)

    def add_all(self, file: GGUFFile | GGUFParts) -> None:
        """Add all metadata values of another file, with their types; they replace those of the key.

        Args:
            file: an open file.

        Raises:
            InvalidState: this file is closed.
        """
        self._check_open("add_all")
        for key, value in file.metadata.items():
            self._values.pop(key, None)
            self.add(key, value, file.types[key])

    def remove(self, key: str) -> bool:
        """Remove a metadata value; returns whether there was one of that key.

        Raises:
            InvalidState: the file is closed.
        """
        self._check_open("remove")
        if key == ALIGNMENT_KEY:
            self._alignment = DEFAULT_ALIGNMENT
        return self._values.pop(key, None) is not None

    def add_tensor(
        self,
        name: str,
        array: Any,  # noqa: ANN401 whatever numpy takes for an array
        dtype: DType | str | None = None,
        *,
        ne: Sequence[int] | None = None,
    ) -> None:
        """Write a tensor's bytes to disk. The array is not kept.

        Blocks while it writes, and converts 16 MB at a time if it must: in an event loop use
        `add_tensor_async`.

        Args:
            name: 1 to 63 bytes; each once.
            array: elements in numpy's order, of 0 to 4 axes and any strides; or, with ``dtype``,
                blocks as uint8, a row's bytes in the last axis (of bf16 and f16 also uint16).
            dtype: type in the file; the array's own if not given. f32, f16, bf16 and f64 arrays are
                converted to any float type and quantized to any type that `quantize` makes.
            ne: extents in ggml order, if the array is flat: ``file.data(name)`` of a `GGUFFile`.

        Raises:
            InvalidArgument: the name is used, empty or too long, or the array has no elements of a
                type that ggml has.
            LayoutMismatch: rows are no multiple of the type's block, the elements are others, or
                the bytes are not those of ``ne``.
            Unsupported: there is no quantizer for the type.
            InvalidState: the file is closed.
            OSError: it cannot be written. After every error the file is as if nothing had been
                added, and you may go on with it.
        """
        pieces = self._check_tensor("add_tensor", name, array, dtype, ne)
        end = self._end
        for piece in pieces:
            end = _put(self._spool, piece, end)
        self._add_pieces(name, pieces, end)

    async def add_tensor_async(
        self,
        name: str,
        array: Any,  # noqa: ANN401 as above
        dtype: DType | str | None = None,
        *,
        ne: Sequence[int] | None = None,
    ) -> None:
        """Do what `add_tensor` does in a thread, 16 MB at a time; one tensor after the other.

        Cancellation: after the piece under way; the file is as if nothing had been added.
        """
        pieces = self._check_tensor("add_tensor_async", name, array, dtype, ne)
        parts, spool = iter(pieces), self._take()
        end = self._end

        def step() -> bool:
            nonlocal end
            for piece in itertools.islice(parts, 1):
                end = _put(spool, piece, end)
                return True
            return False

        try:
            while await anyio.to_thread.run_sync(step):
                pass
        finally:
            self._let_go(spool)
        self._check_open("add_tensor_async")
        self._add_pieces(name, pieces, end)

    def _take(self) -> int:
        """The spool's descriptor, for a thread. Open until `_let_go`, even after `abandon`."""
        self._busy = True
        return self._spool

    def _let_go(self, spool: int) -> None:
        self._busy = False
        if self._spool < 0:
            os.close(spool)

    def _check_tensor(
        self,
        place: str,
        name: str,
        array: Any,  # noqa: ANN401 as above
        dtype: DType | str | None,
        ne: Sequence[int] | None,
    ) -> Pieces:
        self._check_open(place)
        size = _size_of(name)
        if not 0 < size <= MAX_NAME:
            raise InvalidArgument(
                f"[GGUFWriter.{place}] {name!r} is no name of a tensor: a string of 1 to "
                f"{MAX_NAME} bytes of UTF-8"
            )
        if name in self._tensors:
            raise InvalidArgument(f"[GGUFWriter.{place}] tensor {name!r} was added already")
        return Pieces.of(f"[GGUFWriter.{place}] tensor {name!r}", array, dtype, ne)

    def _add_pieces(self, name: str, pieces: Pieces, end: int) -> None:
        self._tensors[name] = _Written(pieces.dtype, pieces.ne, self._end, end - self._end)
        self._end = end

    # -- the end

    def close(self) -> None:
        """Write the file and put it in place. Blocks. Closed already, it does nothing.

        Raises:
            InvalidState: a tensor is still being added.
            OSError: it cannot be written; nothing is left behind, and what was at ``path`` stays.
        """
        with closing(self._finish()) as steps:
            for done in steps:
                self._report(done)

    async def aclose(self) -> None:
        """Do what `close` does in a thread, 16 MB at a time.

        Cancellation: after the piece under way; nothing is left behind, what was at ``path`` stays.
        """
        with closing(self._finish()) as steps:  # if cancelled, it removes what it has written
            while (done := await anyio.to_thread.run_sync(next, steps, None)) is not None:
                self._report(done)

    def abandon(self) -> None:
        """Close without writing the file. An older file at ``path`` stays as it is."""
        spool, self._spool = self._spool, -1
        if spool >= 0 and not self._busy:
            os.close(spool)

    def _report(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._end)

    def _finish(self) -> Generator[int, None, None]:
        """Write the file; yields how many bytes of tensors are copied."""
        if self.closed:
            return
        if self._busy:
            raise InvalidState(f"[GGUFWriter.close] {str(self.path)!r}: a tensor is being added")
        made, spool = self._beside("partial"), self._take()
        try:
            target = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                yield from self._copy(spool, target)
                os.fsync(target)  # else the name might reach the disk before the bytes
            finally:
                os.close(target)
            if not self.closed:  # abandoned meanwhile
                made.replace(self.path)
        finally:
            with suppress(FileNotFoundError):
                made.unlink()
            self._let_go(spool)
            self.abandon()

    def _copy(self, spool: int, target: int) -> Iterator[int]:
        entries, offset = [], 0
        for name, tensor in self._tensors.items():
            entries.append(directory_entry(name, tensor.ne, tensor.dtype, offset))
            offset += tensor.nbytes + -tensor.nbytes % self._alignment
        head = header(list(self._values.values()), entries)
        at = _put(target, memoryview(head + bytes(-len(head) % self._alignment)), 0)
        done = 0
        yield done
        for tensor in self._tensors.values():
            end = tensor.begin + tensor.nbytes
            for begin in range(tensor.begin, end, COPIED):
                part = _read(spool, begin, min(COPIED, end - begin))
                at = _put(target, part, at)
                done += len(part)
                yield done
            # Behind the last one, too: ggml counts the padding as part of a tensor.
            at = _put(target, memoryview(bytes(-at % self._alignment)), at)

    def _check_open(self, place: str) -> None:
        if self.closed:
            raise InvalidState(f"[GGUFWriter.{place}] {str(self.path)!r} is closed")
        if self._busy:
            raise InvalidState(
                f"[GGUFWriter.{place}] a tensor is still being added: await that first"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        if raised is None:
            self.close()
        else:
            self.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, raised: object, *_: object) -> None:
        if raised is None:
            await self.aclose()
        else:
            self.abandon()

    def __del__(self) -> None:
        if self._spool >= 0:
            self.abandon()
            warnings.warn(
                f"[GGUFWriter] {str(self.path)!r} was never closed: no file was written",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"<GGUFWriter {self.path.name!r}, {len(self._values)} values, "
            f"{len(self._tensors)} tensors of {self._end} bytes{state}>"
        )


def _alignment(value: object) -> int:
    try:
        found = index(value)  # type: ignore[arg-type]
    except TypeError:
        found = 0
    if not 0 < found <= MAX_ALIGNMENT or found & (found - 1):
        raise InvalidArgument(f"[GGUFWriter] {ALIGNMENT_KEY} = {value!r} is no power of two")
    return found


def _size_of(name: object) -> int:
    """Bytes of a name; 0 if it is none."""
    try:
        return len(name.encode()) if isinstance(name, str) else 0
    except UnicodeEncodeError:  # a lone surrogate
        return 0


def _put(target: int, data: memoryview, at: int) -> int:
    """Write all of ``data`` at an offset of a file; return the offset of its end."""
    while data:
        n = os.pwrite(target, data, at)
        data, at = data[n:], at + n
    return at


def _read(source: int, at: int, n: int) -> memoryview:
    """``n`` bytes of a file."""
    found = bytearray()
    while len(found) < n:
        part = os.pread(source, n - len(found), at + len(found))
        if not part:
            raise OSError(
                f"[GGUFWriter.close] the file of tensors ends at byte {at + len(found)}, "
                "before its last tensor"
            )
        found += part
    return memoryview(found)
