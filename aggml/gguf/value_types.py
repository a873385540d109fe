"""The types of metadata values in a GGUF file: one table for the reader and the writer.

Here: numbers, names and forms of the types. Not here: reading (header.py), writing (encode.py).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

__all__ = ["ValueType"]

ALIGNMENT_KEY: Final = "general.alignment"  # of tensors: a power of two, stored as a uint32
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 1 << 30  # a larger one is a mistake, not a layout


class ValueType(NamedTuple):
    """A type of metadata values.

    Attributes:
        number: what stands for it in a file.
        name: as GGUF's specification writes it, in lower case.
        form: packs and unpacks a number, little-endian; None for bool, string and array.
    """

    number: int
    name: str
    form: struct.Struct | None


_TABLE: Final = (
    ("uint8", "B"),
    ("int8", "b"),
    ("uint16", "H"),
    ("int16", "h"),
    ("uint32", "I"),
    ("int32", "i"),
    ("float32", "f"),
    ("bool", None),
    ("string", None),
    ("array", None),
    ("uint64", "Q"),
    ("int64", "q"),
    ("float64", "d"),
)
VALUE_TYPES: Final = tuple(
    ValueType(number, name, None if code is None else struct.Struct(f"<{code}"))
    for number, (name, code) in enumerate(_TABLE)
)
BY_NAME: Final = {value_type.name: value_type for value_type in VALUE_TYPES}
UINT32, BOOL, STRING, ARRAY = (BY_NAME[name] for name in ("uint32", "bool", "string", "array"))
