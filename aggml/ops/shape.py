"""Other shapes: views, reshape, permute and transpose over the same bytes, and concat.

Here: shapes, strides, checks. Not here: kernels (native/*/shape.c); copies (cpy.py).
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from aggml.errors import InvalidArgument
from aggml.ops._common import all_tensors, mismatch, need_rows, pack, suffix, view_of, whole, wider
from aggml.tensor import NO_PARAMS, ONES, Tensor, fresh_strides, new_node, new_permuted

if TYPE_CHECKING:
    from aggml.tensor import Extents

__all__ = [
    "concat",
    "permute",
    "reshape",
    "reshape_1d",
    "reshape_2d",
    "reshape_3d",
    "reshape_4d",
    "transpose",
    "view_1d",
    "view_2d",
    "view_3d",
    "view_4d",
    "view_tensor",
]

_DIM = struct.Struct("<i60x")
_AXES = struct.Struct("<4i48x")
_ALL_AXES = {0, 1, 2, 3}


def concat(a: Tensor, b: Tensor, dim: int = 0) -> Tensor:
    """Join two tensors along dimension ``dim`` (``ggml_concat``).

    Args:
        a: any type, rows of blocks without gaps.
        b: the same type, the same extents but for ``dim``.
        dim: 0 to 3.

    Returns:
        A new tensor, ``ne[dim]`` the sum of both.

    Raises:
        InvalidArgument: no such dimension.
        LayoutMismatch: types or other extents differ.
    """
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("concat", a=a, b=b)
    params = pack("concat", _DIM, dim)
    if not 0 <= dim <= 3:
        raise InvalidArgument(f"[concat] dim = {dim} is not 0 to 3")
    ne = list(a.ne)
    ne[dim] = b.ne[dim]
    if a.dtype is not b.dtype or tuple(ne) != b.ne:
        raise mismatch("concat", f"types must be the same, and extents except ne[{dim}]", a=a, b=b)
    if a.dtype.is_quantized:
        need_rows("concat", "a", a)
        need_rows("concat", "b", b)
    ne[dim] += a.ne[dim]
    ndim = wider(a, b, dim + 1)
    return new_node("concat", a.dtype, (ne[0], ne[1], ne[2], ne[3]), (a, b), params, ndim=ndim)


def _reshape(op: str, a: Tensor, ne: Extents, ndim: int) -> Tensor:
    if not a.is_contiguous_n(0):
        raise mismatch(op, f"a is not contiguous, nb {list(a.nb)}; call ops.cont first", a=a)
    if min(ne) < 0 or math.prod(ne) != math.prod(a.ne):
        raise mismatch(op, f"{list(ne)} does not have the {a.nelements} elements of a", a=a)
    if ne[0] % a.dtype.blck_size:
        raise mismatch(op, f"ne[0] = {ne[0]} cuts blocks of {a.dtype.blck_size} elements", a=a)
    nb = fresh_strides(a.dtype, ne)
    return new_permuted("reshape", a, ne, nb, (a,), NO_PARAMS, suffix(a, "reshaped"), ndim)


def reshape(a: Tensor, b: Tensor) -> Tensor:
    """`reshape_4d` to the extents and axes of ``b``, which is not read (``ggml_reshape``)."""
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors("reshape", a=a, b=b)
    return _reshape("reshape", a, b.ne, b.ndim)


def _reshape_n(op: str, a: Tensor, *ne: int) -> Tensor:
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    n0, n1, n2, n3 = whole(op, *ne, *ONES[len(ne)])
    return _reshape(op, a, (n0, n1, n2, n3), len(ne))


def reshape_1d(a: Tensor, ne0: int) -> Tensor:
    """`reshape_4d` to [ne0] (``ggml_reshape_1d``)."""
    return _reshape_n("reshape_1d", a, ne0)


def reshape_2d(a: Tensor, ne0: int, ne1: int) -> Tensor:
    """`reshape_4d` to [ne0, ne1] (``ggml_reshape_2d``)."""
    return _reshape_n("reshape_2d", a, ne0, ne1)


def reshape_3d(a: Tensor, ne0: int, ne1: int, ne2: int) -> Tensor:
    """`reshape_4d` to [ne0, ne1, ne2] (``ggml_reshape_3d``)."""
    return _reshape_n("reshape_3d", a, ne0, ne1, ne2)


def reshape_4d(a: Tensor, ne0: int, ne1: int, ne2: int, ne3: int) -> Tensor:
    """Show the elements of ``a`` with other extents, in the same order (``ggml_reshape_4d``).

    Args:
        a: contiguous, any type.
        ne0: first of four extents with the same product.
        ne1: the second.
        ne2: the third.
        ne3: the fourth.

    Returns:
        A view of ``a``, contiguous.

    Raises:
        LayoutMismatch: ``a`` has gaps, the number of elements differs, or blocks would be cut.
    """
    return _reshape_n("reshape_4d", a, ne0, ne1, ne2, ne3)


def view_tensor(src: Tensor) -> Tensor:
    """Show all of ``src`` with the same strides (``ggml_view_tensor``).

    Unlike in ggml the result is a node like other views, so a graph that holds it computes ``src``.

    Returns:
        A view of the type, extents and strides of ``src``.

    Raises:
        InvalidHandle: ``src`` is no tensor.
    """
    if src.__class__ is not Tensor:
        all_tensors("view_tensor", src=src)
    return view_of("view_tensor", src, src.ne, src.nb, 0, src.ndim)


def view_1d(a: Tensor, ne0: int, offset: int = 0) -> Tensor:
    """Show ``ne0`` elements from byte ``offset`` of ``a`` on; as `view_4d` (``ggml_view_1d``)."""
    if a.__class__ is not Tensor:
        all_tensors("view_1d", a=a)
    n0, offset = whole("view_1d", ne0, offset)
    ne = (n0, 1, 1, 1)
    return view_of("view_1d", a, ne, fresh_strides(a.dtype, ne), offset, 1)


def view_2d(a: Tensor, ne0: int, ne1: int, nb1: int, offset: int = 0) -> Tensor:
    """Show [ne0, ne1] elements of ``a``; as `view_4d` (``ggml_view_2d``)."""
    if a.__class__ is not Tensor:
        all_tensors("view_2d", a=a)
    n0, n1, s1, offset = whole("view_2d", ne0, ne1, nb1, offset)
    s2 = s1 * n1
    return view_of("view_2d", a, (n0, n1, 1, 1), (a.dtype.type_size, s1, s2, s2), offset, 2)


def view_3d(a: Tensor, ne0: int, ne1: int, ne2: int, nb1: int, nb2: int, offset: int = 0) -> Tensor:
    """Show [ne0, ne1, ne2] elements of ``a``; as `view_4d` (``ggml_view_3d``)."""
    if a.__class__ is not Tensor:
        all_tensors("view_3d", a=a)
    n0, n1, n2, s1, s2, offset = whole("view_3d", ne0, ne1, ne2, nb1, nb2, offset)
    nb = (a.dtype.type_size, s1, s2, s2 * n2)
    return view_of("view_3d", a, (n0, n1, n2, 1), nb, offset, 3)


def view_4d(
    a: Tensor,
    ne0: int,
    ne1: int,
    ne2: int,
    ne3: int,
    nb1: int,
    nb2: int,
    nb3: int,
    offset: int = 0,
) -> Tensor:
    """Show [ne0, ne1, ne2, ne3] elements of ``a`` at other strides (``ggml_view_4d``).

    Args:
        a: any type and layout.
        ne0: elements of a row, which follow each other without gaps.
        ne1: extent of dimension 1.
        ne2: extent of dimension 2.
        ne3: extent of dimension 3.
        nb1: bytes from row to row, a multiple of the type's size like all of these.
        nb2: stride of dimension 2 in bytes.
        nb3: stride of dimension 3 in bytes.
        offset: bytes from the first element of ``a``.

    Returns:
        A view of the storage of ``a``.

    Raises:
        InvalidArgument: a negative number, or ``ne0`` cuts a block.
        Misaligned: a stride or ``offset`` is no multiple of the type's size.
        OutOfBounds: the view ends beyond the storage.
    """
    if a.__class__ is not Tensor:
        all_tensors("view_4d", a=a)
    n0, n1, n2, n3, s1, s2, s3, offset = whole("view_4d", ne0, ne1, ne2, ne3, nb1, nb2, nb3, offset)
    return view_of("view_4d", a, (n0, n1, n2, n3), (a.dtype.type_size, s1, s2, s3), offset, 4)


def permute(a: Tensor, axis0: int, axis1: int, axis2: int, axis3: int) -> Tensor:
    """Show ``a`` with its dimensions in another order (``ggml_permute``).

    Args:
        a: any type and layout.
        axis0: which dimension of the result dimension 0 of ``a`` becomes.
        axis1: the same for dimension 1.
        axis2: likewise for dimension 2.
        axis3: likewise for dimension 3.

    Returns:
        A view of ``a``. Its rank is one more than the highest axis that an axis of ``a`` becomes.

    Raises:
        InvalidArgument: the axes are not 0 to 3 in some order.
        LayoutMismatch: ``a`` is quantized and dimension 0 moves. (ggml does not check that.)
    """
    if a.__class__ is not Tensor:
        all_tensors("permute", a=a)
    axes = (axis0, axis1, axis2, axis3)
    if {*axes} != _ALL_AXES:
        raise InvalidArgument(f"[permute] axes {axes}: give each of 0, 1, 2, 3 once")
    params = pack("permute", _AXES, axis0, axis1, axis2, axis3)
    if axis0 and a.dtype.is_quantized:
        raise mismatch(
            "permute", "axis 0 of quantized blocks cannot move: ops.cast to f32 first", a=a
        )
    ne, nb = [0] * 4, [0] * 4
    ne[axis0], ne[axis1], ne[axis2], ne[axis3] = a.ne
    nb[axis0], nb[axis1], nb[axis2], nb[axis3] = a.nb
    return new_permuted(
        "permute",
        a,
        (ne[0], ne[1], ne[2], ne[3]),
        (nb[0], nb[1], nb[2], nb[3]),
        (a,),
        params,
        suffix(a, "permuted"),
        max(axes[: a.ndim]) + 1,
    )


def transpose(a: Tensor) -> Tensor:
    """Show ``a`` with dimensions 0 and 1 exchanged (``ggml_transpose``).

    Args:
        a: any plain type and layout.

    Returns:
        A view of ``a``, [ne1, ne0, ne2, ne3].

    Raises:
        LayoutMismatch: ``a`` is quantized. (ggml does not check that.)
    """
    if a.__class__ is not Tensor:
        all_tensors("transpose", a=a)
    if a.dtype.is_quantized:
        raise mismatch(
            "transpose", "axis 0 of quantized blocks cannot move: ops.cast to f32 first", a=a
        )
    n0, n1, n2, n3 = a.ne
    s0, s1, s2, s3 = a.nb
    name, ndim = suffix(a, "transposed"), max(a.ndim, 2)
    nb = (s1, s0, s2, s3)
    return new_permuted("transpose", a, (n1, n0, n2, n3), nb, (a,), NO_PARAMS, name, ndim)
