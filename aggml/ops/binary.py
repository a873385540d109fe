"""Sums, differences, products and quotients of two tensors, and scaling by numbers.

Here: shapes, types, checks. Not here: kernels (native/*/binary.c, native/lower/add_id.c); sums
with a part (patch.py).
"""

from __future__ import annotations

import struct

from aggml.dtype import DType, DTypeLike
from aggml.ops._common import (
    BF16,
    F16,
    F32,
    FLOATS,
    I32,
    READ_ONLY,
    all_tensors,
    gaps,
    mismatch,
    pack,
    refuse_type,
    suffix,
    wider,
)
from aggml.tensor import Tensor, can_repeat, describe, new_node, new_view

__all__ = [
    "add",
    "add1",
    "add1_inplace",
    "add_cast",
    "add_id",
    "add_inplace",
    "div",
    "div_inplace",
    "mul",
    "mul_inplace",
    "scale",
    "scale_bias",
    "scale_bias_inplace",
    "scale_inplace",
    "sub",
    "sub_inplace",
]

_TYPES = frozenset(((F32, F32), (F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)))
_PAIRS = "f32 with f32, f16 or bf16 with itself or f32, and quantized a with f32 for add"
_SCALE = struct.Struct("<2f56x")


def _build(op: str, a: Tensor, b: Tensor, inplace: bool) -> Tensor:
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors(op, a=a, b=b)
    if a.ne != b.ne and not can_repeat(b, a):
        raise mismatch(op, "each extent of a must be a multiple of that of b", a=a, b=b)
    if (a.dtype, b.dtype) not in _TYPES and not (op == "add" and _is_quantized(a, b)):
        raise refuse_type(op, _PAIRS, a=a, b=b)
    if a.nb[0] != a.dtype.type_size:
        raise gaps(op, a=a, b=b)
    if b.nb[0] != b.dtype.type_size and a.dtype.is_quantized:
        raise gaps(op, a=a, b=b)
    m, n = a.ndim, b.ndim
    if n > m:
        m = n
    if inplace:
        return new_view(op, a, a.ne, a.nb, 0, (a, b), name=suffix(a, "view"), ndim=m)
    return new_node(op, a.dtype, a.ne, (a, b), ndim=m)


def _is_quantized(a: Tensor, b: Tensor) -> bool:
    return a.dtype.is_quantized and a.dtype not in READ_ONLY and b.dtype is F32


def add(a: Tensor, b: Tensor) -> Tensor:
    """Add ``b``, repeated where it is smaller, to ``a`` (``ggml_add``).

    Args:
        a: [n, r, s, t] f32, f16 or bf16, or quantized (the sum is quantized anew), rows without
            gaps.
        b: extents that divide those of ``a``; f32 or the type of ``a``, f32 if that is quantized.
            Its rows may have gaps if it is not repeated.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        LayoutMismatch: repeating ``b`` does not give the extents of ``a``, or rows have gaps.
        Unsupported: a pair of types for which there is no sum.
    """
    return _build("add", a, b, False)


def add_inplace(a: Tensor, b: Tensor) -> Tensor:
    """`add` in place: the result overwrites ``a`` (``ggml_add_inplace``)."""
    return _build("add", a, b, True)


def add_cast(a: Tensor, b: Tensor, type: DTypeLike) -> Tensor:  # noqa: A002 - ggml's name
    """`add` with a result of type ``type`` (``ggml_add_cast``).

    Args:
        a: [n, r, s, t] f16, bf16 or quantized, rows without gaps.
        b: [n, ...] f32 without gaps in rows; extents 1 to 3 divide those of ``a``.
        type: f32 or the type of ``a``; if that is quantized, also f16, bf16 or any quantized type
            that ops write.

    Raises:
        LayoutMismatch: repeating ``b`` does not give the extents of ``a``, or rows have gaps.
        Unsupported: types for which there is no such sum.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("add_cast", a=a, b=b)
    dtype = DType.parse(type)
    if a.ne[0] != b.ne[0] or not can_repeat(b, a):
        raise mismatch(
            "add_cast",
            f"rows of b must repeat to {list(a.ne)}: ne[0] equal, the other extents divisors",
            a=a,
            b=b,
        )
    if a.dtype.is_quantized:
        known = dtype in FLOATS or (dtype.is_quantized and dtype not in READ_ONLY)
    else:
        known = a.dtype in (F16, BF16) and dtype in (F32, a.dtype)
    if not known or b.dtype is not F32:
        raise refuse_type(
            f"add_cast to {dtype}",
            "b of f32, and a of a quantized type, or of f16 or bf16 if the result is f32 or like a",
            a=a,
            b=b,
        )
    if a.nb[0] != a.dtype.type_size or b.nb[0] != 4:
        raise gaps("add_cast", a=a, b=b)
    return new_node("add", dtype, a.ne, (a, b), ndim=wider(a, b))


def _build_add1(op: str, a: Tensor, b: Tensor, inplace: bool) -> Tensor:
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors(op, a=a, b=b)
    if (a.dtype, b.dtype) not in _TYPES and not _is_quantized(a, b):
        raise refuse_type(op, _PAIRS, a=a, b=b)
    if not b.is_scalar:
        raise mismatch(op, "b must be one element: ops.add takes more", a=a, b=b)
    if not a.is_padded_1d:
        raise mismatch(op, f"the rows of a are not at equal distances, nb {list(a.nb)}", a=a, b=b)
    if inplace:
        return new_view("add1", a, a.ne, a.nb, 0, (a, b), name=suffix(a, "view"), ndim=wider(a, b))
    return new_node("add1", a.dtype, a.ne, (a, b), ndim=wider(a, b))


def add1(a: Tensor, b: Tensor) -> Tensor:
    """Add the single element of ``b`` to each element of ``a`` (``ggml_add1``).

    Args:
        a: f32, f16, bf16 or quantized (the sum is quantized anew), rows without gaps, all at one
            distance.
        b: one element; f32 or the type of ``a``, f32 if that is quantized.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        LayoutMismatch: ``b`` is not one element, or the rows have no common distance.
        Unsupported: a pair of types for which there is no sum.
    """
    return _build_add1("add1", a, b, False)


def add1_inplace(a: Tensor, b: Tensor) -> Tensor:
    """`add1` in place: the result overwrites ``a`` (``ggml_add1_inplace``)."""
    return _build_add1("add1_inplace", a, b, True)


def add_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """Add to each row of ``a`` the row of ``b`` that its index names (``ggml_add_id``).

    Args:
        a: f32 [n, used, tokens, t], rows without gaps.
        b: f32 [n, experts], rows without gaps.
        ids: i32 [used, tokens] of indices into dimension 1 of ``b``. One out of range fails the
            computation before anything is written.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        LayoutMismatch: extents that do not fit, or gaps.
        Unsupported: other types.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor or ids.__class__ is not Tensor:
        all_tensors("add_id", a=a, b=b, ids=ids)
    if a.dtype is not F32 or b.dtype is not F32 or ids.dtype is not I32:
        raise refuse_type("add_id", "a and b of f32, ids of i32", a=a, b=b, ids=ids)
    if a.ne[0] != b.ne[0] or a.ne[1] != ids.ne[0] or a.ne[2] != ids.ne[1]:
        raise mismatch("add_id", "expected a [n, k, t], b [n, rows], ids [k, t]", a=a, b=b, ids=ids)
    if a.nb[0] != 4 or b.nb[0] != 4:
        raise gaps("add_id", a=a, b=b)
    return new_node("add_id", F32, a.ne, (a, b, ids), ndim=wider(a, b))


def sub(a: Tensor, b: Tensor) -> Tensor:
    """Subtract ``b`` from ``a``; as `add`, without quantized types (``ggml_sub``)."""
    return _build("sub", a, b, False)


def sub_inplace(a: Tensor, b: Tensor) -> Tensor:
    """`sub` in place: the result overwrites ``a`` (``ggml_sub_inplace``)."""
    return _build("sub", a, b, True)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """The product of ``a`` and ``b``; as `add`, without quantized types (``ggml_mul``)."""
    return _build("mul", a, b, False)


def mul_inplace(a: Tensor, b: Tensor) -> Tensor:
    """`mul` in place: the result overwrites ``a`` (``ggml_mul_inplace``)."""
    return _build("mul", a, b, True)


def div(a: Tensor, b: Tensor) -> Tensor:
    """The quotient of ``a`` and ``b``; as `add`, without quantized types (``ggml_div``)."""
    return _build("div", a, b, False)


def div_inplace(a: Tensor, b: Tensor) -> Tensor:
    """`div` in place: the result overwrites ``a`` (``ggml_div_inplace``)."""
    return _build("div", a, b, True)


def _build_scale(op: str, a: Tensor, s: float, b: float, inplace: bool) -> Tensor:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype is not F32:
        raise refuse_type(op, "f32", a=a)
    if not a.is_padded_1d:
        raise mismatch(op, f"the rows of {describe(a)} are not at equal distances, nb {list(a.nb)}")
    params = pack(op, _SCALE, s, b)
    if inplace:
        return new_view("scale", a, a.ne, a.nb, 0, (a,), params, suffix(a, "view"))
    return new_node("scale", F32, a.ne, (a,), params)


def scale(a: Tensor, s: float) -> Tensor:
    """Multiply each element by the number ``s`` (``ggml_scale``).

    Args:
        a: f32 of any extents, rows without gaps, all at one distance.
        s: the factor.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        InvalidArgument: ``s`` is no number that f32 can hold.
        LayoutMismatch: the rows have no common distance.
        Unsupported: ``a`` is not f32.
    """
    return _build_scale("scale", a, s, 0.0, False)


def scale_inplace(a: Tensor, s: float) -> Tensor:
    """`scale` in place: the result overwrites ``a`` (``ggml_scale_inplace``)."""
    return _build_scale("scale_inplace", a, s, 0.0, True)


def scale_bias(a: Tensor, s: float, b: float) -> Tensor:
    """``s * x + b`` of each element x; else as `scale` (``ggml_scale_bias``)."""
    return _build_scale("scale_bias", a, s, b, False)


def scale_bias_inplace(a: Tensor, s: float, b: float) -> Tensor:
    """`scale_bias` in place: the result overwrites ``a`` (``ggml_scale_bias_inplace``)."""
    return _build_scale("scale_bias_inplace", a, s, b, True)
