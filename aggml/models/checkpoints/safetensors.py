"""SafeTensors: a file of tensors, mapped.

The package `safetensors` copies each tensor for numpy. Here the file is mapped, so that a device
that reads host memory can use the bytes where they lie. The header is checked before it is used.
Not here: folders of several files (shards.py).
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import ml_dtypes
import numpy as np

from aggml.models.errors import ModelError
from aggml.process.paths import user_path

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["NUMPY", "SafeTensors", "Stored"]

LONGEST_HEADER: Final = 100 << 20  # bytes; the format's own limit

#: Numpy's types by the format's names. Models do not compute with the types of 8 bits.
NUMPY: Final[dict[str, np.dtype[Any]]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies in a file: ``nbytes`` bytes, beginning at offset ``begin``."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * self.dtype.itemsize


class SafeTensors:
    """An open file: ``SafeTensors.open("model.safetensors")["lm_head.weight"]``.

    Attributes:
        path: of the file.
        bytes: the whole file, mapped copy-on-write: a write would not change the file.
        stored: where each tensor lies, by name.
        notes: the entries of ``__metadata__``.
    """

    path: Path
    bytes: npt.NDArray[np.uint8]
    stored: dict[str, Stored]
    notes: dict[str, str]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map a file and read its header. Blocks meanwhile.

        Raises:
            ModelError: the file cannot be read, is damaged, or is no safetensors file.
        """
        self = object.__new__(cls)
        self.path = user_path(path)
        try:
            with self.path.open("rb") as file:
                whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
            raise ModelError(f"cannot open {str(self.path)!r}: {error}") from error
        self.bytes = np.frombuffer(whole, np.uint8)
        self.stored, self.notes = _header(self.path, self.bytes)
        return self

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """A tensor, read-only, without a copy."""
        found = self.stored[name]
        raw = self.bytes[found.begin : found.begin + found.nbytes]
        if found.begin % found.dtype.itemsize:
            raw = raw.copy()
        made = raw.view(found.dtype).reshape(found.shape)
        made.flags.writeable = False
        return made


def _header(path: Path, raw: npt.NDArray[np.uint8]) -> tuple[dict[str, Stored], dict[str, str]]:
    """The entries of a file's header, checked: all tensors lie in the file and do not overlap."""

    def failure(why: str) -> ModelError:
        return ModelError(f"{str(path)!r} is incomplete, damaged, or no safetensors file: {why}")

    if len(raw) < 8:
        raise failure(f"it has only {len(raw)} bytes")
    length = int.from_bytes(raw[:8].tobytes(), "little")
    if length > min(LONGEST_HEADER, len(raw) - 8):
        raise failure(f"its first 8 bytes give the header {length} bytes, of {len(raw)} in all")
    try:
        told = json.loads(raw[8 : 8 + length].tobytes())
        notes = told.pop("__metadata__", None) or {}
        entries = {name: _entry(name, value, 8 + length) for name, value in told.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise failure(f"its header cannot be read ({error})") from error
    end = 8 + length
    for name, entry in sorted(entries.items(), key=lambda x: (x[1].begin, x[1].nbytes)):
        if entry.begin < end or entry.begin + entry.nbytes > len(raw):
            raise failure(f"tensor {name!r} reaches beyond the end, or overlaps another tensor")
        end = entry.begin + entry.nbytes
    return entries, notes


def _entry(name: str, told: dict[str, Any], base: int) -> Stored:
    element = NUMPY.get(told["dtype"])
    if element is None:
        raise ValueError(f"tensor {name!r} has the unknown type {told['dtype']!r}")
    shape = tuple(told["shape"])
    begin, end = told["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError(f"tensor {name!r} has the shape {shape} at bytes {begin} to {end}")
    found = Stored(element, shape, base + begin)
    if found.nbytes != end - begin:
        raise ValueError(
            f"tensor {name!r} of the shape {shape} needs {found.nbytes} bytes, not {end - begin}"
        )
    return found
