"""What the CPU kernels do with an element type.

Not here: layout of types (dtype.py), the conversions themselves (native/formats/).
"""

from __future__ import annotations

from typing import NamedTuple

from aggml.dtype import TYPES, DType, DTypeLike

__all__ = ["TypeTraits", "type_traits"]


class TypeTraits(NamedTuple):
    """The CPU's side of a type (ggml_type_traits_cpu).

    Attributes:
        dtype: which.
        to_float: whether rows of it can be read: `aggml.dequantize`, get_rows, mul_mat.
        from_float: whether operations can write it: cpy, set_rows.
        quantize: whether `aggml.quantize` makes it.
        needs_imatrix: whether `aggml.quantize` needs an importance matrix for it.
        vec_dot_type: what rows of the second operand of mul_mat are converted to; None if the
            type cannot be its first operand.
        n_rows: rows of the first operand that a call of the inner kernel takes at least.
    """

    dtype: DType
    to_float: bool
    from_float: bool
    quantize: bool
    needs_imatrix: bool
    vec_dot_type: DType | None
    n_rows: int = 1


def type_traits(dtype: DTypeLike) -> TypeTraits:
    """What the CPU kernels do with a type (ggml_get_type_traits_cpu).

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
