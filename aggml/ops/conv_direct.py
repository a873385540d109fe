"""Convolutions in one node: conv_2d_direct and similar ones, transposed ones, col2im_1d.

Here: shapes, types, checks. Not here: convolutions by way of im2col (conv.py), kernels
(native/*/conv_direct.c).
"""

from __future__ import annotations

import struct
from typing import overload

from aggml.errors import InvalidArgument, Unsupported
from aggml.ops._common import (
    F32,
    FLOATS,
    HALF_OR_SINGLE,
    all_tensors,
    mismatch,
    need_dense,
    pack,
    refuse_type,
    whole,
)
from aggml.ops._spelling import accept_other_names
from aggml.ops._windows import count_windows
from aggml.tensor import Tensor, change, new_node

__all__ = [
    "col2im_1d",
    "conv_2d_direct",
    "conv_2d_dw_direct",
    "conv_3d_direct",
    "conv_transpose_1d",
    "conv_transpose_2d_p0",
]

_PLANE = struct.Struct("<6i40x")
_VOLUME = struct.Struct("<12i16x")
_THREE = struct.Struct("<3i52x")


def _check(op: str, a: Tensor, b: Tensor) -> None:
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors(op, a=a, b=b)
    if a.dtype not in HALF_OR_SINGLE or b.dtype is not F32:
        raise refuse_type(op, "a of f32 or f16, b of f32", a=a, b=b)


@accept_other_names
def conv_2d_direct(
    a: Tensor,
    b: Tensor,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
) -> Tensor:
    """Convolve images, all channels with all, in one node (``ggml_conv_2d_direct``).

    Args:
        a: f32 or f16 kernel [KW, KH, IC, OC], any strides.
        b: f32 [W, H, IC, N], any strides.
        s0: stride along dimension 0.
        s1: and along dimension 1.
        p0: zeros at both ends of dimension 0.
        p1: and of dimension 1.
        d0: distance between elements of a window along dimension 0.
        d1: and along dimension 1.

    Returns:
        f32 [OW, OH, OC, N].

    Raises:
        InvalidArgument: a stride, padding or dilation out of range, or a kernel larger than the
            image.
        LayoutMismatch: the channels differ.
        Unsupported: other types.
    """
    op = "conv_2d_direct"
    _check(op, a, b)
    s0, s1, p0, p1, d0, d1 = whole(op, s0, s1, p0, p1, d0, d1)
    if a.ne[2] != b.ne[2]:
        raise mismatch(
            op, f"ne[2], the channels, are {a.ne[2]} and {b.ne[2]}, not the same", a=a, b=b
        )
    width = count_windows(op, b.ne[0], a.ne[0], s0, p0, d0)
    height = count_windows(op, b.ne[1], a.ne[1], s1, p1, d1)
    params = pack(op, _PLANE, s0, s1, p0, p1, d0, d1)
    return new_node("conv_2d", F32, (width, height, a.ne[3], b.ne[3]), (a, b), params, ndim=4)


@overload
def conv_2d_dw_direct(
    a: Tensor,
    b: Tensor,
    s0: int = 1,
    s1: int = 1,
    p0: int = 0,
    p1: int = 0,
    d0: int = 1,
    d1: int = 1,
) -> Tensor: ...
@overload
def conv_2d_dw_direct(
    a: Tensor,
    b: Tensor,
    stride0: int = 1,
    stride1: int = 1,
    pad0: int = 0,
    pad1: int = 0,
    dilation0: int = 1,
    dilation1: int = 1,
) -> Tensor: ...
# The decorator takes both names.
@accept_other_names  # type: ignore[misc]
def conv_2d_dw_direct(  # pyright: ignore[reportInconsistentOverload]
    a: Tensor,
    b: Tensor,
    stride0: int = 1,
    stride1: int = 1,
    pad0: int = 0,
    pad1: int = 0,
    dilation0: int = 1,
    dilation1: int = 1,
) -> Tensor:
    """Convolve each channel with a kernel of its own, in one node (``ggml_conv_2d_dw_direct``).

    Args:
        a: f32 or f16 kernels [KW, KH, 1, C], any strides.
        b: f32 [W, H, C, N], any strides. If channels lie innermost, those of the result do, too.
        stride0: stride along dimension 0; or ``s0``, as other builders call it.
        stride1: and along dimension 1; or ``s1``.
        pad0: zeros at both ends of dimension 0; or ``p0``.
        pad1: and of dimension 1; or ``p1``.
        dilation0: distance between elements of a window along dimension 0; or ``d0``.
        dilation1: and along dimension 1; or ``d1``.

    Returns:
        f32 [OW, OH, C, N].

    Raises:
        InvalidArgument: a stride, padding or dilation out of range, or a kernel larger than the
            image.
        LayoutMismatch: not one kernel for each channel.
        Unsupported: other types.
    """
    op = "conv_2d_dw_direct"
    _check(op, a, b)
    s0, s1, p0, p1, d0, d1 = whole(op, stride0, stride1, pad0, pad1, dilation0, dilation1)
    if a.ne[2] != 1 or a.ne[3] != b.ne[2]:
        raise mismatch(op, "a must be [KW, KH, 1, C], a kernel for each channel of b", a=a, b=b)
    width = count_windows(op, b.ne[0], a.ne[0], s0, p0, d0)
    height = count_windows(op, b.ne[1], a.ne[1], s1, p1, d1)
    params = pack(op, _PLANE, s0, s1, p0, p1, d0, d1)
    node = new_node("conv_2d_dw", F32, (width, height, b.ne[2], b.ne[3]), (a, b), params, ndim=4)
    if b.is_contiguous_channels:
        pixel = 4 * b.ne[2]
        change(node, "nb", (pixel, pixel * width, 4, node.nb[3]))
    return node


@accept_other_names
def conv_3d_direct(
    a: Tensor,
    b: Tensor,
    s0: int,
    s1: int,
    s2: int,
    p0: int,
    p1: int,
    p2: int,
    d0: int,
    d1: int,
    d2: int,
    n_channels: int,
    n_batch: int,
    n_channels_out: int,
) -> Tensor:
    """Convolve volumes, all channels with all, in one node (``ggml_conv_3d_direct``).

    Args:
        a: f32 or f16 kernel [KW, KH, KD, n_channels * n_channels_out], any strides.
        b: f32 [W, H, D, n_channels * n_batch], any strides.
        s0: stride along dimension 0.
        s1: along dimension 1.
        s2: along dimension 2.
        p0: zeros at both ends of dimension 0.
        p1: of dimension 1.
        p2: of dimension 2.
        d0: distance between elements of a window along dimension 0.
        d1: along dimension 1.
        d2: along dimension 2.
        n_channels: channels of the input.
        n_batch: how many volumes.
        n_channels_out: channels of the result.

    Returns:
        f32 [OW, OH, OD, n_channels_out * n_batch].

    Raises:
        InvalidArgument: a stride, padding or dilation out of range, or a kernel larger than the
            volume.
        LayoutMismatch: dimension 3 of an operand is not the product given above.
        Unsupported: other types.
    """
    op = "conv_3d_direct"
    _check(op, a, b)
    *windows, channels, batch, out_channels = whole(
        op, s0, s1, s2, p0, p1, p2, d0, d1, d2, n_channels, n_batch, n_channels_out
    )
    if min(channels, batch, out_channels) < 0 or (
        a.ne[3] != channels * out_channels or b.ne[3] != channels * batch
    ):
        raise mismatch(
            op,
            f"ne[3] must be {channels} x {out_channels} in a, {channels} x {batch} in b",
            a=a,
            b=b,
        )
    n0, n1, n2 = (
        count_windows(op, b.ne[i], a.ne[i], windows[i], windows[3 + i], windows[6 + i])
        for i in range(3)
    )
    params = pack(op, _VOLUME, *windows, channels, batch, out_channels)
    return new_node("conv_3d", F32, (n0, n1, n2, out_channels * batch), (a, b), params, ndim=4)


@accept_other_names
def conv_transpose_1d(a: Tensor, b: Tensor, s0: int = 1, p0: int = 0, d0: int = 1) -> Tensor:
    """The transpose of a convolution of lines (``ggml_conv_transpose_1d``).

    Args:
        a: f32 or f16 kernel [K, OC, IC], any strides.
        b: f32 [L, IC], any strides.
        s0: distance of the elements of ``b`` in the result.
        p0: has to be 0.
        d0: has to be 1.

    Returns:
        f32 [(L - 1) * s0 + K, OC].

    Raises:
        InvalidArgument: a stride below 1.
        LayoutMismatch: the channels differ, or ``b`` is no matrix.
        Unsupported: other types, padding or dilation.
    """
    op = "conv_transpose_1d"
    _check(op, a, b)
    s0, p0, d0 = whole(op, s0, p0, d0)
    if p0 != 0 or d0 != 1:
        raise Unsupported(f"[{op}] padding is {p0} and dilation {d0}: only 0 and 1 are supported")
    if s0 < 1:
        raise InvalidArgument(f"[{op}] stride {s0} is not 1 or more")
    if not b.is_matrix or a.ne[2] != b.ne[1] or a.ne[3] != 1:
        raise mismatch(op, "a [K, OC, IC] does not fit b [L, IC]", a=a, b=b)
    if a.is_empty or b.is_empty:
        raise mismatch(op, "an operand is empty: there is nothing to convolve", a=a, b=b)
    ne = ((b.ne[0] - 1) * s0 + a.ne[0], a.ne[1], 1, 1)
    return new_node(op, F32, ne, (a, b), pack(op, _THREE, s0, p0, d0), ndim=max(a.ndim, 2))


@overload
def conv_transpose_2d_p0(a: Tensor, b: Tensor, s0: int = 1) -> Tensor: ...
@overload
def conv_transpose_2d_p0(a: Tensor, b: Tensor, stride: int = 1) -> Tensor: ...
# The decorator takes both names.
@accept_other_names  # type: ignore[misc]
def conv_transpose_2d_p0(  # pyright: ignore[reportInconsistentOverload]
    a: Tensor, b: Tensor, stride: int = 1
) -> Tensor:
    """The transpose of a convolution of images, without padding (``ggml_conv_transpose_2d_p0``).

    ggml computes the first image only; this computes all images.

    Args:
        a: f32 or f16 kernel [KW, KH, OC, IC], any strides.
        b: f32 [W, H, IC, N], any strides.
        stride: distance of the elements of ``b`` in the result, in both dimensions; or ``s0``.

    Returns:
        f32 [(W - 1) * stride + KW, (H - 1) * stride + KH, OC, N].

    Raises:
        InvalidArgument: a stride below 1.
        LayoutMismatch: the channels differ.
        Unsupported: other types.
    """
    op = "conv_transpose_2d_p0"
    _check(op, a, b)
    (stride,) = whole(op, stride)
    if stride < 1:
        raise InvalidArgument(f"[{op}] stride {stride} is not 1 or more")
    if a.ne[3] != b.ne[2]:
        raise mismatch(op, "a [KW, KH, OC, IC] does not fit b [W, H, IC, N]", a=a, b=b)
    if a.is_empty or b.is_empty:
        raise mismatch(op, "an operand is empty: there is nothing to convolve", a=a, b=b)
    ne = (
        (b.ne[0] - 1) * stride + a.ne[0],
        (b.ne[1] - 1) * stride + a.ne[1],
        a.ne[2],
        b.ne[3],
    )
    return new_node("conv_transpose_2d", F32, ne, (a, b), pack(op, _THREE, stride, 0, 0), ndim=4)


@accept_other_names
def col2im_1d(a: Tensor, s0: int, oc: int, p0: int = 0) -> Tensor:
    """Add up columns where they overlap, the end of a transposed convolution (``ggml_col2im_1d``).

    Args:
        a: f32, f16 or bf16 [oc * K, T], contiguous: a column for each place, channel by channel.
        s0: distance of the places in the result.
        oc: channels of the result.
        p0: elements cut off at both ends.

    Returns:
        [(T - 1) * s0 + K - 2 * p0, oc] of the type of ``a``.

    Raises:
        InvalidArgument: a number out of range, or nothing is left.
        LayoutMismatch: ``a`` is no matrix, not ``oc`` channels of one length, or has gaps.
        Unsupported: other types.
    """
    op = "col2im_1d"
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.dtype not in FLOATS:
        raise refuse_type(op, "f32, f16 or bf16", a=a)
    s0, oc, p0 = whole(op, s0, oc, p0)
    if s0 < 1 or oc < 1 or p0 < 0:
        raise InvalidArgument(f"[{op}] s0 = {s0}, oc = {oc}, p0 = {p0}: must be >= 1, >= 1, >= 0")
    if not a.is_matrix or a.ne[0] % oc:
        raise mismatch(op, f"a must be a matrix whose ne[0] is a multiple of oc = {oc}", a=a)
    need_dense(op, a=a)
    length = (a.ne[1] - 1) * s0 + a.ne[0] // oc - 2 * p0
    if length < 1:
        raise InvalidArgument(f"[{op}] the result would have {length} elements: give a smaller p0")
    params = pack(op, _THREE, s0, oc, p0)
    return new_node(op, a.dtype, (length, oc, 1, 1), (a,), params, ndim=max(a.ndim, 2))
