"""Element types and quantized blocks: ids, sizes, names, numpy counterparts.

Here: what any part must know of a type to lay out a tensor. Not here: conversions and quantizers,
which are C (native/formats/quant.c).
"""

from __future__ import annotations

import enum
from difflib import get_close_matches
from typing import Self, TypeAlias, Union

import ml_dtypes
import numpy as np

from aggml.errors import InvalidArgument, InvalidHandle

__all__ = ["DType", "DTypeLike"]

# What `DType.parse` takes: wherever a type is asked for.
DTypeLike: TypeAlias = Union["DType", str, np.dtype[np.generic], type[np.generic]]

# Of the structs in native/formats/blocks.h by id: most begin with a scale of two bytes; mxfp4 and
# nvfp4 hold bytes only, q8_K begins with a float.
_BLOCK_ALIGNMENT = {39: 1, 40: 1, 15: 4}


class DType(enum.Enum):
    """The element types of ggml, with ggml's ids as values (enum ``ggml_type``).

    ``DType(12)`` is ``DType.Q4_K``, so a GGUF file's type field can be used as it is; an id that
    ggml has retired or never had raises `InvalidArgument`.

    Attributes:
        blck_size: elements of a block; 1 for plain types.
        type_size: bytes of a block.
        type_name: ggml's name: lower case, but ``q4_K``.
        is_quantized: whether a block holds more than one element.
        alignment: what the address of an element (of a block) has to be a multiple of, in bytes.
        numpy: the numpy type of an element, None for quantized types; bf16 is
            ``ml_dtypes.bfloat16``.
    """

    F32 = 0, 1, 4, "f4"
    F16 = 1, 1, 2, "f2"
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 36
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1, "i1"
    I16 = 25, 1, 2, "i2"
    I32 = 26, 1, 4, "i4"
    I64 = 27, 1, 8, "i8"
    F64 = 28, 1, 8, "f8"
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2, ml_dtypes.bfloat16
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18
    Q2_0 = 42, 64, 18

    _value_: int
    blck_size: int
    type_size: int
    type_name: str
    is_quantized: bool
    alignment: int
    numpy: np.dtype[np.generic] | None

    def __new__(cls, number: int, blck_size: int, type_size: int, numpy: object = None) -> Self:
        """One row of the table above."""
        self = object.__new__(cls)
        self._value_ = number
        self.blck_size = blck_size
        self.type_size = type_size
        self.is_quantized = blck_size > 1
        self.alignment = _BLOCK_ALIGNMENT.get(number, 2) if blck_size > 1 else type_size
        self.numpy = None if numpy is None else np.dtype(numpy)  # type: ignore[call-overload]
        return self

    def __init__(self, *row: object) -> None:
        stem, _, last = self.name.rpartition("_")
        self.type_name = f"{stem.lower()}_K" if last == "K" else self.name.lower()

    @classmethod
    def _missing_(cls, value: object) -> DType:
        raise InvalidArgument(f"[DType] {value!r} is the id of no type")

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    def __str__(self) -> str:
        return self.type_name

    @classmethod
    def parse(cls, x: object) -> DType:
        """Return the type that ``x`` names.

        Args:
            x: a DType; ggml's name of one ("f32", "q4_K") or numpy's name of a plain one
                ("float32", "bfloat16"), case ignored; or the numpy type of a plain one
                (``np.dtype("f2")``, ``np.float32``, ``ml_dtypes.bfloat16``).

        Raises:
            InvalidArgument: a name or numpy type that stands for none.
            InvalidHandle: an object of another kind.
        """
        if isinstance(x, DType):
            return x
        if isinstance(x, str):
            found = _BY_NAME.get(x.lower())
            if found is None:
                near = get_close_matches(x.lower(), _BY_NAME, 4) or ["f32", "float32", "q4_0"]
                raise InvalidArgument(
                    f"[DType.parse] no type is named {x!r}; there are {', '.join(near)}, ..."
                )
            return found
        if not isinstance(x, np.dtype) and not (isinstance(x, type) and issubclass(x, np.generic)):
            raise InvalidHandle(f"[DType.parse] {x!r} is neither a type nor the name of one")
        wanted = np.dtype(x)
        found = _BY_NUMPY.get(wanted)
        if found is None:
            raise InvalidArgument(f"[DType.parse] numpy's {wanted} has no counterpart")
        return found

    def row_size(self, n: int) -> int:
        """Bytes of ``n`` consecutive elements (``ggml_row_size``).

        Raises:
            InvalidArgument: ``n`` is negative or not a multiple of ``blck_size``.
        """
        if n < 0 or n % self.blck_size:
            raise InvalidArgument(
                f"[DType.row_size] {n} elements are no whole number of {self.type_name} blocks "
                f"of {self.blck_size}"
            )
        return n // self.blck_size * self.type_size


_BY_NUMPY = {x.numpy: x for x in DType if x.numpy is not None}
# Both ggml's names and, of plain types, numpy's: "f32" and "float32".
_BY_NAME = {x.type_name.lower(): x for x in DType} | {n.name: x for n, x in _BY_NUMPY.items()}
