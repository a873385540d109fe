"""The header of a GGUF file: metadata values and the directory of its tensors, from bytes.

Here: a strict parser of versions 2 and 3, little-endian. Every count and offset is checked against
the length of the file before it is used. So a damaged file gives an error message, never a crash or
a huge allocation. Not here: opening files, tensors (file.py).
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from aggml.dtype import DType
from aggml.errors import AggmlError, InvalidArgument
from aggml.gguf.value_types import (
    ALIGNMENT_KEY,
    ARRAY,
    BOOL,
    DEFAULT_ALIGNMENT,
    MAX_ALIGNMENT,
    STRING,
    UINT32,
    VALUE_TYPES,
)
from aggml.tensor import MAX_DIMS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GGUFError", "Header", "TensorEntry", "Value", "parse"]

VERSIONS: Final = (2, 3)
MAX_NESTING: Final = 4  # of arrays in arrays; bounds the recursion
MAX_NAME: Final = 65535  # bytes of a key or tensor name
_MAX_EMPTY: Final = 1 << 40  # bytes; limits the product of the non-zero extents of an empty tensor
_COUNT: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct("<Q")
Value = Any  # of metadata; GGUFFile.metadata says what there is


class GGUFError(InvalidArgument):
    """A file is no GGUF file, is damaged or ends too early. Names the file, item and values."""


class TensorEntry(NamedTuple):
    """One tensor's entry of the directory: name, type, extents, offset.

    Attributes:
        name: as it is in the file.
        dtype: element type.
        ne: 0 to 4 extents, innermost first.
        offset: of its bytes, from the beginning of the file; 0 if there are none.
    """

    name: str
    dtype: DType
    ne: tuple[int, ...]
    offset: int


class Header(NamedTuple):
    """The part of a file before the tensors' bytes: version, metadata, directory.

    Attributes:
        version: 2 or 3.
        metadata: values by key, in order.
        types: names of their types by key; of an array, the name of its elements' type.
        alignment: of the tensors' bytes.
        tensors: the directory, in order.
    """

    version: int
    metadata: dict[str, Value]
    types: dict[str, str]
    alignment: int
    tensors: list[TensorEntry]


def parse(path: Path, data: npt.NDArray[np.uint8]) -> Header:
    """Read and check the header of a file.

    Args:
        path: for messages.
        data: the whole file, so that every offset can be checked; only the header is read.

    Raises:
        GGUFError: it is damaged, or the bytes of a tensor are not there.
    """
    return _Parser(path, data).parse()


class _Parser:
    """Reads a header from front to back; raises if bytes that it needs are missing."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8]) -> None:
        self.path = str(path)
        self.view = data.data.toreadonly()
        self.size = len(data)
        self.at = 0

    def fail(self, message: str) -> NoReturn:
        raise GGUFError(f"[GGUFFile.open] {self.path!r}: {message}")

    def take(self, size: int, what: str) -> int:
        """Advance by ``size`` bytes; return the offset where they begin."""
        if size > self.size - self.at:
            self.fail(
                f"{what} needs {size} bytes at byte {self.at}, the file has only {self.size} bytes"
            )
        start = self.at
        self.at += size
        return start

    def number(self, form: struct.Struct, what: str) -> Value:
        return form.unpack_from(self.view, self.take(form.size, what))[0]

    def text(self, what: str, *, limit: int | None = None, errors: str = "surrogateescape") -> str:
        size = self.number(_LENGTH, f"length of {what}")
        if limit is not None and size > limit:
            self.fail(f"{what} at byte {self.at} is {size} bytes long, at most {limit} make sense")
        start = self.take(size, what)
        try:
            return str(self.view[start : start + size], "utf-8", errors)
        except UnicodeDecodeError as error:
            self.fail(f"{what} at byte {start} is not UTF-8: {error.reason}")

    def parse(self) -> Header:
        version = self.version()
        tensors = self.number(_LENGTH, "number of tensors")
        values = self.number(_LENGTH, "number of metadata values")
        # The smallest entries: a tensor without name and extents; an empty key and one byte.
        self.count(tensors, 24, "tensors")
        self.count(values, 13, "metadata values")
        metadata = self.metadata(values)
        alignment = self.alignment(metadata)
        entries = self.directory(tensors)
        start = -(-self.at // alignment) * alignment
        placed = self.check_offsets(entries, start, alignment)
        return Header(version, metadata, self._types, alignment, placed)

    def version(self) -> int:
        if bytes(self.view[:4]) != b"GGUF":
            found = bytes(self.view[:4])
            if not found:
                self.fail("is empty: this is no GGUF file")
            self.fail(f"begins with {found!r} instead of b'GGUF': this is no GGUF file")
        self.at = 4
        version: int = self.number(_COUNT, "version")
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
        self._value_types: dict[str, int] = {}
        self._types: dict[str, str] = {}
        for index in range(count):
            key = self.text(f"key of metadata value {index}", limit=MAX_NAME, errors="strict")
            if key in found:
                self.fail(f"metadata key {key!r} occurs twice")
            value_type = self.number(_COUNT, f"type of {key!r}")
            found[key] = self.value(value_type, f"value of {key!r}", 0)
            self._value_types[key] = value_type
            self._types[key] = VALUE_TYPES[
                self._element if value_type == ARRAY.number else value_type
            ].name
        return found

    def value(self, value_type: int, what: str, depth: int) -> Value:
        form = VALUE_TYPES[value_type].form if value_type < len(VALUE_TYPES) else None
        if form is not None:
            return self.number(form, what)
        if value_type == BOOL.number:
            return self.bools(1, what)[0]
        if value_type == STRING.number:
            return self.text(what)
        if value_type != ARRAY.number:
            self.fail(f"{what} at byte {self.at} is of type {value_type}, which does not exist")
        if depth == MAX_NESTING:
            self.fail(f"{what} is an array nested more than {MAX_NESTING} deep")
        return self.array(what, depth)

    def array(self, what: str, depth: int) -> Value:
        value_type = self.number(_COUNT, f"element type of {what}")
        if depth == 0:
            self._element = value_type
        count = self.number(_LENGTH, f"length of {what}")
        form = VALUE_TYPES[value_type].form if value_type < len(VALUE_TYPES) else None
        if form is not None:
            start = self.take(count * form.size, f"{what}, {count} elements,")
            # Copied, because the header may be unaligned and the metadata may outlive the file.
            items = np.frombuffer(self.view[start : self.at], np.dtype(form.format)).copy()
            items.flags.writeable = False
            return items
        if value_type == BOOL.number:
            return self.bools(count, what)
        smallest = {STRING.number: 8, ARRAY.number: 12}.get(value_type)
        if smallest is None:
            self.fail(
                f"{what} at byte {self.at} has elements of type {value_type}, which does not exist"
            )
        self.count(count, smallest, f"elements of {what}")
        if value_type == STRING.number:
            return self.strings(count, what)
        return [self.value(value_type, what, depth + 1) for _ in range(count)]

    def bools(self, count: int, what: str) -> list[bool]:
        start = self.take(count, what)
        found = bytes(self.view[start : self.at])
        if found.strip(b"\0\1"):
            self.fail(f"{what} at byte {start} is a bool other than 0 and 1")
        return [x == 1 for x in found]

    def strings(self, count: int, what: str) -> list[str]:
        # A vocabulary has 100,000 texts; calling `text` for each would take three times as long.
        view, size, at = self.view, self.size, self.at
        unpack = _LENGTH.unpack_from
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
        alignment = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
        value_type = self._value_types.get(ALIGNMENT_KEY, UINT32.number)
        if (
            value_type != UINT32.number
            or not 0 < alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            self.fail(f"{ALIGNMENT_KEY} = {alignment!r} is no uint32 that is a power of two")
        return int(alignment)

    def directory(self, count: int) -> list[TensorEntry]:
        entries: list[TensorEntry] = []
        names: set[str] = set()
        for index in range(count):
            name = self.text(f"name of tensor {index}", limit=MAX_NAME, errors="strict")
            if name in names:
                self.fail(f"tensor {name!r} occurs twice")
            names.add(name)
            dims = self.number(_COUNT, f"number of extents of tensor {name!r}")
            if dims > MAX_DIMS:
                self.fail(f"tensor {name!r} has {dims} extents, at most {MAX_DIMS} are possible")
            ne = tuple(self.number(_LENGTH, f"extents of tensor {name!r}") for _ in range(dims))
            value_type = self.number(_COUNT, f"type of tensor {name!r}")
            offset = self.number(_LENGTH, f"offset of tensor {name!r}")
            try:
                dtype = DType(value_type)
            except (ValueError, AggmlError):
                self.fail(f"tensor {name!r} is of type {value_type}, which does not exist")
            entries.append(TensorEntry(name, dtype, ne, offset))
        return entries

    def check_offsets(
        self, entries: list[TensorEntry], start: int, alignment: int
    ) -> list[TensorEntry]:
        """The entries with absolute offsets, all within the file and none over another."""
        placed: list[TensorEntry] = []
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
            # An empty tensor has no place, but a buffer must still accept its offset.
            placed.append(TensorEntry(name, dtype, ne, start + offset if size else 0))
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
        # Empty tensors are checked, too: strides are products of extents and must stay bounded.
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
