"""GGUF in bytes: metadata values and the directory of tensors, as a writer needs them.

Here: which type a Python value gets, and how values and entries are encoded. Not here: files
(writer.py), reading (header.py), the table of types (value_types.py).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from aggml.errors import InvalidArgument
from aggml.gguf.value_types import ARRAY, BOOL, BY_NAME, STRING, ValueType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.dtype import DType

Values: TypeAlias = list[Any] | tuple[Any, ...] | np.ndarray[Any, Any]

__all__ = ["directory_entry", "encode_entry", "header", "string"]

VERSION: Final = 3
LARGEST_KEY: Final = 65535  # bytes; what the specification allows
DEEPEST: Final = 4  # arrays in arrays; readers refuse more
# A whole number gets the first of these types that can hold it. llama.cpp reads counts and token
# ids as uint32 and refuses any other width. The elements of its arrays (token types, heads of each
# layer) are int32.
_OF_VALUE: Final = ("uint32", "int32", "uint64", "int64")
_OF_ELEMENTS: Final = ("int32", "uint32", "int64", "uint64")


def encode_entry(key: str, value: object, type: str | None) -> bytes:  # noqa: A002 GGUF's word for it
    """The bytes of a key and its value.

    Args:
        key: name of the value.
        value: as `GGUFWriter.add` takes it.
        type: name of the value's type, or of the type of an array's elements.

    Raises:
        InvalidArgument: the key is none, or the value cannot be of that type or of any.
    """
    if not _is_key(key):
        raise InvalidArgument(
            f"[GGUFWriter.add] {key!r} is no key: give a string of 1 to 65535 bytes"
        )
    name = string(key, f"key {key!r}")
    if len(name) - 8 > LARGEST_KEY:
        raise InvalidArgument(
            f"[GGUFWriter.add] key {key[:40]!r}... has {len(name) - 8} bytes, at most "
            f"{LARGEST_KEY} are possible"
        )
    value_type = None if type is None else _type_named(key, type)
    return name + _value(key, value, value_type)


def string(text: str | bytes, what: str) -> bytes:
    """Encode a text: its length, then its bytes. Surrogate escapes stand for non-UTF-8 bytes."""
    try:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"[GGUFWriter] {what} is no UTF-8: {error.reason}") from error
    return struct.pack("<Q", len(data)) + data


def directory_entry(name: str, ne: Sequence[int], dtype: DType, offset: int) -> bytes:
    """A tensor's entry of the directory; ``offset`` is relative to the first tensor's byte."""
    extents = struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
    return string(name, "the name") + extents + struct.pack("<IQ", dtype.value, offset)


def header(values: Sequence[bytes], entries: Sequence[bytes]) -> bytes:
    """The part of a file before the tensors, without the padding behind it."""
    counts = struct.pack("<IQQ", VERSION, len(entries), len(values))
    return b"".join([b"GGUF", counts, *values, *entries])


# -- values


def _type_named(key: str, name: str) -> ValueType:
    value_type = BY_NAME.get(name)
    if value_type is None or value_type is ARRAY:
        known = ", ".join(x for x in BY_NAME if x != ARRAY.name)
        raise InvalidArgument(f"[GGUFWriter.add] {key!r}: type {name!r} is none of {known}")
    return value_type


def _value(key: str, value: object, value_type: ValueType | None) -> bytes:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (list, tuple, np.ndarray)):
        return _number(ARRAY) + _array(key, value, value_type, 1)
    value_type = value_type or _type_of(key, [value], _OF_VALUE)
    return _number(value_type) + _elements(key, [value], value_type)


def _array(key: str, values: Values, value_type: ValueType | None, depth: int) -> bytes:
    """Element type, length, elements."""
    if depth > DEEPEST:
        raise InvalidArgument(
            f"[GGUFWriter.add] {key!r}: arrays are nested more than {DEEPEST} deep"
        )
    if len(values) and all(_is_array(x) for x in values):
        parts = [_array(key, x, value_type, depth + 1) for x in values]
        return _number(ARRAY) + struct.pack("<Q", len(parts)) + b"".join(parts)
    if isinstance(values, np.ndarray):
        value_type = value_type or _type_of_numpy(key, values.dtype)
    elif value_type is None and not values:
        raise InvalidArgument(
            f"[GGUFWriter.add] {key!r}: for an empty array name the type of its elements, "
            'for example add(key, [], "string")'
        )
    value_type = value_type or _type_of(key, values, _OF_ELEMENTS)
    return _number(value_type) + struct.pack("<Q", len(values)) + _elements(key, values, value_type)


def _is_array(x: object) -> bool:
    """Whether a value is an array itself; a numpy array without axes is a number."""
    return x.ndim > 0 if isinstance(x, np.ndarray) else isinstance(x, (list, tuple))


def _number(value_type: ValueType) -> bytes:
    return struct.pack("<I", value_type.number)


def _type_of(key: str, values: Values, integers: Sequence[str]) -> ValueType:
    """The metadata type that can hold each of these Python values."""
    numpy = {np.dtype(type(x)) for x in values if isinstance(x, np.generic) and not _is_text(x)}
    if len(numpy) == 1 and all(isinstance(x, np.generic) for x in values):
        return _type_of_numpy(key, numpy.pop())
    if all(_is_text(x) for x in values):
        return STRING
    if all(isinstance(x, (bool, np.bool_)) for x in values):
        return BOOL
    if all(_is_integer(x) for x in values):
        for name in integers:
            low, high = _range(BY_NAME[name])
            if all(low <= int(x) <= high for x in values):
                return BY_NAME[name]
        low, high = min(values), max(values)
        raise InvalidArgument(
            f"[GGUFWriter.add] {key!r}: no integer type holds both {low} and {high}"
        )
    if all(_is_integer(x) or isinstance(x, (float, np.floating)) for x in values):
        return BY_NAME["float32"]
    wrong = next((x for x in values if not _is_plain(x)), values)
    raise InvalidArgument(
        f"[GGUFWriter.add] {key!r}: {wrong!r} is no number, bool, string, nor a list of such"
    )


def _type_of_numpy(key: str, dtype: np.dtype[Any]) -> ValueType:
    value_type = STRING if dtype.kind in "US" else BY_NAME.get(dtype.name)
    if value_type is None:
        raise InvalidArgument(f"[GGUFWriter.add] {key!r}: GGUF has no values of numpy's {dtype}")
    return value_type


def _is_key(x: object) -> bool:
    return isinstance(x, str) and x != ""


def _is_text(x: object) -> bool:
    return isinstance(x, (str, bytes))


def _is_integer(x: object) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _is_plain(x: object) -> bool:
    return _is_text(x) or isinstance(x, (bool, int, float, np.number, np.bool_))


def _range(value_type: ValueType) -> tuple[int, int]:
    limits = np.iinfo(value_type.name)
    return int(limits.min), int(limits.max)


def _elements(key: str, values: Values, value_type: ValueType) -> bytes:
    """Encode values of one type, one after the other."""
    if value_type is STRING:
        if not all(_is_text(x) for x in values):
            wrong = next(x for x in values if not _is_text(x))
            raise InvalidArgument(f"[GGUFWriter.add] {key!r}: {wrong!r} is no string")
        return b"".join([string(x, f"a value of {key!r}") for x in values])
    if value_type is BOOL:
        if not all(isinstance(x, (bool, np.bool_)) for x in values):
            wrong = next(x for x in values if not isinstance(x, (bool, np.bool_)))
            raise InvalidArgument(f"[GGUFWriter.add] {key!r}: {wrong!r} is no bool")
        return bytes(map(bool, values))
    return _numbers(key, values, value_type)


def _numbers(key: str, values: Values, value_type: ValueType) -> bytes:
    """Encode numbers of one type, after a check that each is within its range."""
    assert value_type.form is not None
    form = np.dtype(value_type.form.format)
    if isinstance(values, np.ndarray) and values.dtype == form:
        return values.tobytes()
    whole = form.kind in "iu"
    least, most = _range(value_type) if whole else (0, 0)
    for x in values:
        if not (_is_integer(x) or (not whole and isinstance(x, (float, np.floating)))):
            raise InvalidArgument(f"[GGUFWriter.add] {key!r}: {x!r} is no {value_type.name}")
        if whole and not least <= int(x) <= most:
            raise InvalidArgument(
                f"[GGUFWriter.add] {key!r}: {x!r} is outside of {value_type.name}"
            )
    try:
        with np.errstate(over="ignore"):
            made = np.asarray(values, form)
        wide = made if whole else np.asarray(values, np.float64)
    except OverflowError as error:
        raise InvalidArgument(f"[GGUFWriter.add] {key!r}: {error}") from error
    if not whole and not np.array_equal(np.isinf(made), np.isinf(wide)):
        wrong = wide[np.isinf(made) & ~np.isinf(wide)][0]
        raise InvalidArgument(
            f"[GGUFWriter.add] {key!r}: {wrong!r} is outside of {value_type.name}; "
            'name the type "float64"'
        )
    return made.tobytes()
