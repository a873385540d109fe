"""im2col: the windows of a convolution as rows of a matrix, and the way back.

Here: shapes, types, checks. Not here: convolutions that use it (conv.py), kernels (native/).
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from aggml.dtype import DType, DTypeLike
from aggml.errors import InvalidArgument
from aggml.ops._common import (
    F32,
    FLOATS,
    HALF_OR_SINGLE,
    mismatch,
    pack,
    refuse_type,
    two_tensors,
    whole,
)
from aggml.ops._spelling import accept_other_names
from aggml.ops._windows import count_windows
from aggml.tensor import Tensor, new_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.tensor import Extents

__all__ = ["im2col", "im2col_3d", "im2col_back"]

_WINDOWS = struct.Struct("<6i?39x")
_WINDOWS_3D = struct.Struct("<10i24x")


@accept_other_names
def im2col(
    a: Tensor,
    b: Tensor,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
    is_2D: bool = True,
    dst_type: DTypeLike = "f16",
) -> Tensor:
    """Lay out every window of an image as a row, with zeros beyond the image (``ggml_im2col``).

    Args:
        a: the kernel, of which only the extents are used: [KW, KH, IC, OC], or [K, IC, OC].
        b: f32 or f16, the image: [W, H, IC, N], or [L, IC, N].
        s0: stride along dimension 0.
        s1: stride along dimension 1. Lines ignore it, and p1 and d1.
        p0: zeros at both ends of dimension 0.
        p1: zeros at both ends of dimension 1.
        d0: distance between elements of a window along dimension 0.
        d1: distance along dimension 1.
        is_2D: whether the image has two dimensions.
        dst_type: f32, f16 or bf16.

    Returns:
        [IC * KH * KW, OW, OH, N], or [IC * K, OL, N].

    Raises:
        InvalidArgument: a stride, padding or dilation out of range, or a kernel larger than the
            image.
        LayoutMismatch: the channels differ.
        Unsupported: other types.
    """
    two_tensors("im2col", a, b)
    dtype = DType.parse(dst_type)
    if b.dtype not in HALF_OR_SINGLE or dtype not in FLOATS:
        raise refuse_type(f"im2col to {dtype}", "b of f32 or f16 to f32, f16 or bf16", a=a, b=b)
    s0, s1, p0, p1, d0, d1 = whole("im2col", s0, s1, p0, p1, d0, d1)
    ne: Extents
    if is_2D:
        if a.ne[2] != b.ne[2]:
            raise mismatch(
                "im2col",
                f"ne[2], the channels, are {a.ne[2]} and {b.ne[2]}, not the same",
                a=a,
                b=b,
            )
        width = count_windows("im2col", b.ne[0], a.ne[0], s0, p0, d0)
        height = count_windows("im2col", b.ne[1], a.ne[1], s1, p1, d1)
        ne = (a.ne[2] * a.ne[1] * a.ne[0], width, height, b.ne[3])
    else:
        if a.ne[1] != b.ne[1] or b.ne[3] != 1:
            raise mismatch("im2col", f"b must be [L, {a.ne[1]}, N]", a=a, b=b)
        width = count_windows("im2col", b.ne[0], a.ne[0], s0, p0, d0)
        ne = (a.ne[1] * a.ne[0], width, b.ne[2], 1)
    params = pack("im2col", _WINDOWS, s0, s1, p0, p1, d0, d1, bool(is_2D))
    return new_node("im2col", dtype, ne, (a, b), params, ndim=4 if is_2D else 3)


@accept_other_names
def im2col_back(
    a: Tensor,
    b: Tensor,
    ne: Sequence[int],
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
    is_2D: bool = True,
) -> Tensor:
    """The gradient of `im2col` with respect to its image (``ggml_im2col_back``).

    Args:
        a: f32, the gradient of the rows, extents as of `im2col`'s result.
        b: the kernel, of which only the extents are used.
        ne: the four extents of the image.
        s0: as for `im2col`, like all further arguments.
        s1: as for `im2col`.
        p0: as for `im2col`.
        p1: as for `im2col`.
        d0: as for `im2col`.
        d1: as for `im2col`.
        is_2D: as for `im2col`.

    Returns:
        f32 of the extents ``ne``.

    Raises:
        InvalidArgument: ``ne`` is not four extents; else as `im2col`.
        LayoutMismatch: ``a`` is not what `im2col` gives for such an image.
        Unsupported: ``a`` is not f32.
    """
    two_tensors("im2col_back", a, b)
    if a.dtype is not F32:
        raise refuse_type("im2col_back", "a of f32", a=a, b=b)
    given = whole("im2col_back", *ne)
    if len(given) != 4 or min(given) < 0:
        raise InvalidArgument(f"[im2col_back] ne = {list(given)}: give four extents of 0 or more")
    s0, s1, p0, p1, d0, d1 = whole("im2col_back", s0, s1, p0, p1, d0, d1)
    n0, n1, n2, n3 = given
    rows: Extents
    width = count_windows("im2col_back", n0, b.ne[0], s0, p0, d0)
    if is_2D:
        height = count_windows("im2col_back", n1, b.ne[1], s1, p1, d1)
        fits = b.ne[2] == n2
        rows = (n2 * b.ne[1] * b.ne[0], width, height, n3)
    else:
        fits = b.ne[1] == n1 and n3 == 1
        rows = (n1 * b.ne[0], width, n2, 1)
    if a.ne != rows or not fits:
        raise mismatch("im2col_back", f"a must be {list(rows)} for ne {list(given)}", a=a, b=b)
    params = pack("im2col_back", _WINDOWS, s0, s1, p0, p1, d0, d1, bool(is_2D))
    return new_node("im2col_back", F32, (n0, n1, n2, n3), (a, b), params, ndim=4 if is_2D else 3)


@accept_other_names
def im2col_3d(
    a: Tensor,
    b: Tensor,
    IC: int,
    s0: int = 1,
    s1: int = 1,
    s2: int = 1,
    p0: int = 0,
    p1: int = 0,
    p2: int = 0,
    d0: int = 1,
    d1: int = 1,
    d2: int = 1,
    dst_type: DTypeLike = "f16",
) -> Tensor:
    """`im2col` in three dimensions (``ggml_im2col_3d``).

    Args:
        a: the kernel, of which only the extents are used: [KW, KH, KD, IC * OC].
        b: f32 or f16, [W, H, D, IC * N].
        IC: channels.
        s0: strides, as of `im2col`.
        s1: along dimension 1.
        s2: along dimension 2.
        p0: zeros at both ends.
        p1: of dimension 1.
        p2: of dimension 2.
        d0: distances between elements of a window.
        d1: along dimension 1.
        d2: along dimension 2.
        dst_type: f32, f16 or bf16.

    Returns:
        [IC * KD * KH * KW, OW, OH, N * OD].

    Raises:
        InvalidArgument: a stride, padding or dilation out of range, or a kernel larger than the
            image.
        LayoutMismatch: dimension 3 is no multiple of ``IC``.
        Unsupported: other types.
    """
    two_tensors("im2col_3d", a, b)
    dtype = DType.parse(dst_type)
    if b.dtype not in HALF_OR_SINGLE or dtype not in FLOATS:
        raise refuse_type(f"im2col_3d to {dtype}", "b of f32 or f16 to f32, f16 or bf16", a=a, b=b)
    channels, *rest = whole("im2col_3d", IC, s0, s1, s2, p0, p1, p2, d0, d1, d2)
    if channels < 1 or a.ne[3] % channels or b.ne[3] % channels:
        raise mismatch(
            "im2col_3d", f"ne[3] of a and b must be multiples of IC = {channels}", a=a, b=b
        )
    counts = [
        count_windows("im2col_3d", b.ne[i], a.ne[i], rest[i], rest[3 + i], rest[6 + i])
        for i in range(3)
    ]
    ne = (
        channels * math.prod(a.ne[:3]),
        counts[0],
        counts[1],
        b.ne[3] // channels * counts[2],
    )
    params = pack("im2col_3d", _WINDOWS_3D, *rest, channels)
    return new_node("im2col_3d", dtype, ne, (a, b), params, ndim=4)
