"""TypeTraits: which conversions and products the CPU kernels have for an element type.

Not here: layout of types (dtype.py), the conversions themselves (native/formats/).
"""

from __future__ import annotations

from typing import NamedTuple

from aggml.dtype import TYPES, DType, DTypeLike

__all__ = ["TypeTraits", "type_traits"]


class TypeTraits(NamedTuple):
    """The CPU's side of a type (ggml_type_traits_cpu).

    Attributes:
        dtype: the type.
        to_float: whether rows of it can be read: `aggml.dequantize`, get_rows, mul_mat.
        from_float: whether operations can write it: cpy, set_rows.
        quantize: whether `aggml.quantize` makes it.
        needs_imatrix: whether `aggml.quantize` needs an importance matrix for it.
        vec_dot_type: the type to which mul_mat converts rows of its second operand if this type is
            that of the first; None if it cannot be the first.
        n_rows: the fewest rows of the first operand that one call of the inner kernel takes.
    """

    dtype: DType
    to_float: bool
    from_float: bool
    quantize: bool
    needs_imatrix: bool
    vec_dot_type: DType | None
    n_rows: int = 1


def type_traits(dtype: DTypeLike) -> TypeTraits:
    """The traits of a type on the CPU (ggml_get_type_traits_cpu).

    Raises:
        InvalidArgument, InvalidHandle: ``dtype`` names no type.
    """
    element = DType.parse(dtype)
    row = TYPES[element]
    return TypeTraits(
        element,
        row.reads,
        row.writes,
        row.fits or row.writes,
        row.needs_imatrix,
        None if row.dot < 0 else DType(row.dot),
    )
