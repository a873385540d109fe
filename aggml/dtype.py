"""Element types and quantized blocks: ids, sizes, names, numpy counterparts.

Here: the rows of native/table/types.def as an enum. Not here: conversions and quantizers, which are
C (native/formats/).
"""

from __future__ import annotations

import enum
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias, Union

import ml_dtypes  # noqa: F401 - gives numpy its bfloat16
import numpy as np

from aggml.errors import InvalidArgument, InvalidHandle
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TYPES", "DType", "DTypeLike", "TypeRow"]

# Accepted wherever a type is an argument; see `DType.parse`.
DTypeLike: TypeAlias = Union["DType", str, np.dtype[np.generic], type[np.generic]]


class TypeRow(NamedTuple):
    """One row of native/table/types.def, which says what the columns mean.

    Attributes:
        id: ggml's number.
        key: the name of the member of `DType`.
        type_name: ggml's name.
        numpy: numpy's name of the same type, if it has one.
        blck_size: elements of a block.
        type_size: bytes of a block.
        alignment: the address of an element is a multiple of this number of bytes.
        group: "FLOAT", "INTEGER", "DOUBLE"; "LEGACY", "K", "IQ", ... of quantized types.
        dot: the id of the type to which the other operand of a product is converted; -1 if there
            are no products with this type.
        reads: whether elements can be converted to f32.
        writes: whether f32 can be converted to this type.
        fits: whether there is a quantizer that searches for the best blocks.
        needs_imatrix: whether that quantizer needs an importance matrix.
    """

    id: int
    key: str
    type_name: str
    numpy: str | None
    blck_size: int
    type_size: int
    alignment: int
    group: str
    dot: int
    reads: bool
    writes: bool
    fits: bool
    needs_imatrix: bool


_ROWS: Final = [TypeRow(*row) for row in _native.types()]


class DType(enum.Enum):
    """The element types of ggml, with ggml's ids as values (enum ``ggml_type``).

    ``DType(12)`` is ``DType.Q4_K``, so a GGUF file's type field can be used as it is; an id that
    ggml has retired or never had raises `InvalidArgument`.

    Attributes:
        blck_size: elements of a block; 1 for plain types.
        type_size: bytes of a block.
        type_name: ggml's name: lower case, but ``q4_K``.
        is_quantized: whether a block holds more than one element.
        alignment: the address of an element (of a block) is a multiple of this number of bytes.
        numpy: the numpy type of an element, None for quantized types; bf16 is
            ``ml_dtypes.bfloat16``.
    """

    if TYPE_CHECKING:
        # Only for type checkers and editors, which cannot read the table; made by
        # tools/type_names.py.
        F32 = 0
        F16 = 1
        Q4_0 = 2
        Q4_1 = 3
        Q5_0 = 6
        Q5_1 = 7
        Q8_0 = 8
        Q8_1 = 9
        Q2_K = 10
        Q3_K = 11
        Q4_K = 12
        Q5_K = 13
        Q6_K = 14
        Q8_K = 15
        IQ2_XXS = 16
        IQ2_XS = 17
        IQ3_XXS = 18
        IQ1_S = 19
        IQ4_NL = 20
        IQ3_S = 21
        IQ2_S = 22
        IQ4_XS = 23
        I8 = 24
        I16 = 25
        I32 = 26
        I64 = 27
        F64 = 28
        IQ1_M = 29
        BF16 = 30
        TQ1_0 = 34
        TQ2_0 = 35
        MXFP4 = 39
        NVFP4 = 40
        Q1_0 = 41
        Q2_0 = 42
    else:
        _ignore_ = "row"
        for row in _ROWS:
            vars()[row.key] = (row,)

    _value_: int
    blck_size: int
    type_size: int
    type_name: str
    is_quantized: bool
    alignment: int
    numpy: np.dtype[np.generic] | None

    def __new__(cls, row: object) -> Self:
        """The member of one row."""
        assert isinstance(row, TypeRow)
        self = object.__new__(cls)
        self._value_ = row.id
        self.blck_size = row.blck_size
        self.type_size = row.type_size
        self.type_name = row.type_name
        self.is_quantized = row.blck_size > 1
        self.alignment = row.alignment
        self.numpy = None if row.numpy is None else np.dtype(row.numpy)
        return self

    @classmethod
    def _missing_(cls, value: object) -> DType:
        raise InvalidArgument(f"[DType] no type has the id {value!r}: DType.parse takes names")

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
            raise InvalidArgument(
                f"[DType.parse] no type is like numpy's {wanted}: convert the array with .astype"
            )
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


#: The table's row of each type, for the columns that are no attributes of its member.
TYPES: Final[Mapping[DType, TypeRow]] = {DType(row.id): row for row in _ROWS}

_BY_NUMPY = {x.numpy: x for x in DType if x.numpy is not None}
# ggml's names, and for plain types also numpy's: "f32" and "float32".
_BY_NAME = {x.type_name.lower(): x for x in DType} | {n.name: x for n, x in _BY_NUMPY.items()}
