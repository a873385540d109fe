"""Convolutions by way of a product: im2col and what is built of it.

Here: shapes, types, checks, and the chains of nodes. Not here: convolutions in one node
(conv_direct.py), kernels (native/*/conv.c).
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from aggml.dtype import DType, DTypeLike
from aggml.errors import InvalidArgument
from aggml.ops._common import (
    F16,
    F32,
    FLOATS,
    HALF_OR_SINGLE,
    all_tensors,
    mismatch,
    pack,
    refuse_type,
    whole,
)
from aggml.ops._windows import places
from aggml.ops.cpy import cont
from aggml.ops.mul_mat import mul_mat
from aggml.ops.shape import permute, reshape_2d, reshape_3d, reshape_4d
from aggml.tensor import Tensor, new_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.tensor import Extents

__all__ = [
    "conv_1d",
    "conv_1d_dw",
    "conv_1d_dw_ph",
    "conv_1d_ph",
    "conv_2d",
    "conv_2d_dw",
    "conv_2d_s1_ph",
    "conv_2d_sk_p0",
    "conv_3d",
    "im2col",
    "im2col_3d",
    "im2col_back",
]

_WINDOWS = struct.Struct("<6i?39x")
_WINDOWS_3D = struct.Struct("<10i24x")


def _operands(op: str, a: Tensor, b: Tensor) -> None:
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors(op, a=a, b=b)


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
    """Lay out every window of an image as a row, zeros where it juts out (``ggml_im2col``).

    Args:
        a: the kernel, of which only the extents are used: [KW, KH, IC, OC], or [K, IC, OC].
        b: f32 or f16, the image: [W, H, IC, N], or [L, IC, N].
        s0: stride along dimension 0.
        s1: stride along dimension 1; like p1 and d1 of no meaning in one dimension.
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
    _operands("im2col", a, b)
    kind = DType.parse(dst_type)
    if b.dtype not in HALF_OR_SINGLE or kind not in FLOATS:
        raise refuse_type(f"im2col to {kind}", a=a, b=b)
    s0, s1, p0, p1, d0, d1 = whole("im2col", s0, s1, p0, p1, d0, d1)
    ne: Extents
    if is_2D:
        if a.ne[2] != b.ne[2]:
            raise mismatch("im2col", "the channels, ne[2], differ", a=a, b=b)
        width = places("im2col", b.ne[0], a.ne[0], s0, p0, d0)
        height = places("im2col", b.ne[1], a.ne[1], s1, p1, d1)
        ne = (a.ne[2] * a.ne[1] * a.ne[0], width, height, b.ne[3])
    else:
        if a.ne[1] != b.ne[1] or b.ne[3] != 1:
            raise mismatch("im2col", "the channels, ne[1], differ, or b is no [L, IC, N]", a=a, b=b)
        width = places("im2col", b.ne[0], a.ne[0], s0, p0, d0)
        ne = (a.ne[1] * a.ne[0], width, b.ne[2], 1)
    params = pack("im2col", _WINDOWS, s0, s1, p0, p1, d0, d1, bool(is_2D))
    return new_node("im2col", kind, ne, (a, b), params, ndim=4 if is_2D else 3)


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
    _operands("im2col_back", a, b)
    if a.dtype is not F32:
        raise refuse_type("im2col_back", a=a, b=b)
    given = whole("im2col_back", *ne)
    if len(given) != 4 or min(given) < 0:
        raise InvalidArgument(f"[im2col_back] ne = {list(given)} is not four extents")
    s0, s1, p0, p1, d0, d1 = whole("im2col_back", s0, s1, p0, p1, d0, d1)
    n0, n1, n2, n3 = given
    rows: Extents
    width = places("im2col_back", n0, b.ne[0], s0, p0, d0)
    if is_2D:
        height = places("im2col_back", n1, b.ne[1], s1, p1, d1)
        fits = b.ne[2] == n2
        rows = (n2 * b.ne[1] * b.ne[0], width, height, n3)
    else:
        fits = b.ne[1] == n1 and n3 == 1
        rows = (n1 * b.ne[0], width, n2, 1)
    if a.ne != rows or not fits:
        raise mismatch("im2col_back", f"a is not {list(rows)} for ne {list(given)}", a=a, b=b)
    params = pack("im2col_back", _WINDOWS, s0, s1, p0, p1, d0, d1, bool(is_2D))
    return new_node("im2col_back", F32, (n0, n1, n2, n3), (a, b), params, ndim=4 if is_2D else 3)


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
    _operands("im2col_3d", a, b)
    kind = DType.parse(dst_type)
    if b.dtype not in HALF_OR_SINGLE or kind not in FLOATS:
        raise refuse_type(f"im2col_3d to {kind}", a=a, b=b)
    channels, *rest = whole("im2col_3d", IC, s0, s1, s2, p0, p1, p2, d0, d1, d2)
    if channels < 1 or a.ne[3] % channels or b.ne[3] % channels:
        raise mismatch("im2col_3d", f"ne[3] is no multiple of IC = {channels}", a=a, b=b)
    counts = [
        places("im2col_3d", b.ne[i], a.ne[i], rest[i], rest[3 + i], rest[6 + i]) for i in range(3)
    ]
    ne = (
        channels * math.prod(a.ne[:3]),
        counts[0],
        counts[1],
        b.ne[3] // channels * counts[2],
    )
    params = pack("im2col_3d", _WINDOWS_3D, *rest, channels)
    return new_node("im2col_3d", kind, ne, (a, b), params, ndim=4)


def _rows_type(a: Tensor) -> DType:
    """The type of the windows: f16 for a kernel of f16; else f32, which rounds nothing."""
    return F16 if a.dtype is F16 else F32


def conv_1d(a: Tensor, b: Tensor, s0: int = 1, p0: int = 0, d0: int = 1) -> Tensor:
    """Convolve lines, all channels with all (``ggml_conv_1d``).

    With more than one sequence the result [N * OL, OC] is shown as [OL, OC, N] without moving an
    element, as in ggml.

    Args:
        a: f32 or f16 kernel [K, IC, OC], contiguous.
        b: f32 or f16 [L, IC, N].
        s0: stride.
        p0: zeros at both ends.
        d0: distance between elements of a window.

    Returns:
        f32 [OL, OC, N].

    Raises:
        InvalidArgument: as `im2col`.
        LayoutMismatch: the channels differ, or ``a`` is not contiguous.
        Unsupported: other types.
    """
    _operands("conv_1d", a, b)
    rows = im2col(a, b, s0, 0, p0, 0, d0, 0, False, _rows_type(a))
    product = mul_mat(
        reshape_2d(rows, rows.ne[0], rows.ne[1] * rows.ne[2]),
        reshape_2d(a, a.ne[0] * a.ne[1], a.ne[2]),
    )
    return reshape_3d(product, rows.ne[1], a.ne[2], rows.ne[2])


def conv_1d_ph(a: Tensor, b: Tensor, s: int = 1, d: int = 1) -> Tensor:
    """`conv_1d` padded by half of the kernel; ``s`` is s0, ``d`` is d0 (``ggml_conv_1d_ph``)."""
    _operands("conv_1d_ph", a, b)
    return conv_1d(a, b, s, a.ne[0] // 2, d)


def conv_1d_dw(a: Tensor, b: Tensor, s0: int = 1, p0: int = 0, d0: int = 1) -> Tensor:
    """Convolve each channel with a kernel of its own (``ggml_conv_1d_dw``).

    Args:
        a: f32 or f16 kernels [K, 1, C].
        b: f32 or f16 [L, C], contiguous.
        s0: stride.
        p0: zeros at both ends.
        d0: distance between elements of a window.

    Returns:
        f32 [OL, C, 1].

    Raises:
        InvalidArgument: as `im2col`.
        LayoutMismatch: the channels differ, or ``b`` is not one contiguous [L, C].
        Unsupported: other types.
    """
    _operands("conv_1d_dw", a, b)
    lines = reshape_4d(b, b.ne[0], 1, b.ne[1], b.ne[2])
    rows = im2col(a, lines, s0, 0, p0, 0, d0, 0, False, _rows_type(a))
    if a.ne[2] != b.ne[1]:
        raise mismatch("conv_1d_dw", "not one kernel for each channel", a=a, b=b)
    product = mul_mat(rows, a)
    return reshape_3d(product, product.ne[0], product.ne[2], 1)


def conv_1d_dw_ph(a: Tensor, b: Tensor, s0: int = 1, d0: int = 1) -> Tensor:
    """`conv_1d_dw` padded by half of the kernel (``ggml_conv_1d_dw_ph``)."""
    _operands("conv_1d_dw_ph", a, b)
    return conv_1d_dw(a, b, s0, a.ne[0] // 2, d0)


def conv_2d(
    a: Tensor,
    b: Tensor,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
) -> Tensor:
    """Convolve images, all channels with all (``ggml_conv_2d``).

    Args:
        a: f32 or f16 kernel [KW, KH, IC, OC], contiguous.
        b: f32 or f16 [W, H, IC, N].
        s0: strides, padding and dilation as of `im2col`.
        s1: along dimension 1.
        p0: zeros at both ends of dimension 0.
        p1: and of dimension 1.
        d0: distance between elements of a window.
        d1: along dimension 1.

    Returns:
        f32 [OW, OH, OC, N].

    Raises:
        InvalidArgument: as `im2col`.
        LayoutMismatch: the channels differ, or ``a`` is not contiguous.
        Unsupported: other types.
    """
    _operands("conv_2d", a, b)
    rows = im2col(a, b, s0, s1, p0, p1, d0, d1, True, _rows_type(a))
    window, width, height, batch = rows.ne
    product = mul_mat(
        reshape_2d(rows, window, width * height * batch),
        reshape_2d(a, a.ne[0] * a.ne[1] * a.ne[2], a.ne[3]),
    )
    return cont(permute(reshape_4d(product, width, height, batch, a.ne[3]), 0, 1, 3, 2))


def conv_2d_sk_p0(a: Tensor, b: Tensor) -> Tensor:
    """`conv_2d` of windows side by side, as for patches of an image (``ggml_conv_2d_sk_p0``)."""
    _operands("conv_2d_sk_p0", a, b)
    return conv_2d(a, b, a.ne[0], a.ne[1], 0, 0, 1, 1)


def conv_2d_s1_ph(a: Tensor, b: Tensor) -> Tensor:
    """`conv_2d` with stride 1, padded by half of the kernel (``ggml_conv_2d_s1_ph``)."""
    _operands("conv_2d_s1_ph", a, b)
    return conv_2d(a, b, 1, 1, a.ne[0] // 2, a.ne[1] // 2, 1, 1)


def conv_2d_dw(
    a: Tensor,
    b: Tensor,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
) -> Tensor:
    """Convolve each channel with a kernel of its own (``ggml_conv_2d_dw``).

    Args:
        a: f16 or bf16 kernels [KW, KH, 1, C], contiguous; of f32, `conv_2d_dw_direct` takes them.
        b: f32 or f16 [W, H, C, N], contiguous.
        s0: strides, padding and dilation as of `im2col`.
        s1: along dimension 1.
        p0: zeros at both ends of dimension 0.
        p1: and of dimension 1.
        d0: distance between elements of a window.
        d1: along dimension 1.

    Returns:
        f32 [OW, OH, C, N].

    Raises:
        InvalidArgument: as `im2col`.
        LayoutMismatch: not one kernel for each channel, or an operand is not contiguous.
        Unsupported: other types.
    """
    _operands("conv_2d_dw", a, b)
    width, height, channels, batch = b.ne
    if a.ne[2] * a.ne[3] != channels:
        raise mismatch("conv_2d_dw", "not one kernel for each channel", a=a, b=b)
    if a.dtype is F32:  # the rows of ggml are f16 here, which products with f32 do not take
        raise refuse_type("conv_2d_dw", a=a, b=b)
    kernels = reshape_4d(a, a.ne[0], a.ne[1], 1, channels)
    images = reshape_4d(b, width, height, 1, channels * batch)
    rows = im2col(kernels, images, s0, s1, p0, p1, d0, d1, True, _rows_type(a))
    window, out0, out1, _ = rows.ne
    product = mul_mat(
        reshape_4d(kernels, window, 1, channels, 1),
        reshape_4d(rows, window, out0 * out1, channels, batch),
    )
    return reshape_4d(product, out0, out1, channels, batch)


def conv_3d(
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
) -> Tensor:
    """Convolve volumes, all channels with all (``ggml_conv_3d``).

    Args:
        a: f32 or f16 kernel [KW, KH, KD, IC * OC], contiguous.
        b: f32 or f16 [W, H, D, IC * N].
        IC: channels.
        s0: strides, padding and dilation as of `im2col_3d`.
        s1: along dimension 1.
        s2: along dimension 2.
        p0: zeros at both ends of dimension 0.
        p1: of dimension 1.
        p2: of dimension 2.
        d0: distance between elements of a window.
        d1: along dimension 1.
        d2: along dimension 2.

    Returns:
        f32 [OW, OH, OD, OC * N].

    Raises:
        InvalidArgument: as `im2col_3d`.
        LayoutMismatch: dimension 3 is no multiple of ``IC``, or ``a`` is not contiguous.
        Unsupported: other types.
    """
    _operands("conv_3d", a, b)
    rows = im2col_3d(a, b, IC, s0, s1, s2, p0, p1, p2, d0, d1, d2, _rows_type(a))
    window, width, height, depths = rows.ne
    out_channels, batch = a.ne[3] // IC, b.ne[3] // IC
    depth = depths // batch if batch else 0
    product = mul_mat(
        reshape_2d(rows, window, width * height * depths), reshape_2d(a, window, out_channels)
    )
    volumes = reshape_4d(product, width * height, depth, batch, out_channels)
    return reshape_4d(
        cont(permute(volumes, 0, 1, 3, 2)), width, height, depth, out_channels * batch
    )
