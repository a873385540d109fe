"""Convolutions by way of a product: chains of nodes that begin with im2col.

Not here: im2col itself (conv_im2col.py), convolutions in one node (conv_direct.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from aggml.ops._common import (
    F16,
    F32,
    mismatch,
    refuse_type,
    two_tensors,
)
from aggml.ops._spelling import accept_other_names
from aggml.ops.conv_im2col import im2col, im2col_3d
from aggml.ops.cpy import cont
from aggml.ops.mul_mat import mul_mat
from aggml.ops.shape import permute, reshape_2d, reshape_3d, reshape_4d

if TYPE_CHECKING:
    from aggml.dtype import DType
    from aggml.tensor import Tensor

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
]


def _rows_type(a: Tensor) -> DType:
    """The type of the windows: f16 for a kernel of f16; else f32, which rounds nothing."""
    return F16 if a.dtype is F16 else F32


@accept_other_names
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
    two_tensors("conv_1d", a, b)
    rows = im2col(a, b, s0, 0, p0, 0, d0, 0, False, _rows_type(a))
    product = mul_mat(
        reshape_2d(rows, rows.ne[0], rows.ne[1] * rows.ne[2]),
        reshape_2d(a, a.ne[0] * a.ne[1], a.ne[2]),
    )
    return reshape_3d(product, rows.ne[1], a.ne[2], rows.ne[2])


@overload
def conv_1d_ph(a: Tensor, b: Tensor, s0: int = 1, d0: int = 1) -> Tensor: ...
@overload
def conv_1d_ph(a: Tensor, b: Tensor, s: int = 1, d: int = 1) -> Tensor: ...
# The decorator takes both names.
@accept_other_names  # type: ignore[misc]
def conv_1d_ph(  # pyright: ignore[reportInconsistentOverload]
    a: Tensor, b: Tensor, s: int = 1, d: int = 1
) -> Tensor:
    """`conv_1d` padded by half of the kernel (``ggml_conv_1d_ph``).

    ``s`` is s0 and ``d`` is d0; they may be given by these names.
    """
    two_tensors("conv_1d_ph", a, b)
    return conv_1d(a, b, s, a.ne[0] // 2, d)


@accept_other_names
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
    two_tensors("conv_1d_dw", a, b)
    lines = reshape_4d(b, b.ne[0], 1, b.ne[1], b.ne[2])
    rows = im2col(a, lines, s0, 0, p0, 0, d0, 0, False, _rows_type(a))
    if a.ne[2] != b.ne[1]:
        raise mismatch(
            "conv_1d_dw", f"a must be [K, 1, {b.ne[1]}], a kernel for each channel", a=a, b=b
        )
    product = mul_mat(rows, a)
    return reshape_3d(product, product.ne[0], product.ne[2], 1)


@accept_other_names
def conv_1d_dw_ph(a: Tensor, b: Tensor, s0: int = 1, d0: int = 1) -> Tensor:
    """`conv_1d_dw` padded by half of the kernel (``ggml_conv_1d_dw_ph``)."""
    two_tensors("conv_1d_dw_ph", a, b)
    return conv_1d_dw(a, b, s0, a.ne[0] // 2, d0)


@accept_other_names
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
    two_tensors("conv_2d", a, b)
    rows = im2col(a, b, s0, s1, p0, p1, d0, d1, True, _rows_type(a))
    window, width, height, batch = rows.ne
    product = mul_mat(
        reshape_2d(rows, window, width * height * batch),
        reshape_2d(a, a.ne[0] * a.ne[1] * a.ne[2], a.ne[3]),
    )
    return cont(permute(reshape_4d(product, width, height, batch, a.ne[3]), 0, 1, 3, 2))


def conv_2d_sk_p0(a: Tensor, b: Tensor) -> Tensor:
    """`conv_2d` of windows side by side, as for patches of an image (``ggml_conv_2d_sk_p0``)."""
    two_tensors("conv_2d_sk_p0", a, b)
    return conv_2d(a, b, a.ne[0], a.ne[1], 0, 0, 1, 1)


def conv_2d_s1_ph(a: Tensor, b: Tensor) -> Tensor:
    """`conv_2d` with stride 1, padded by half of the kernel (``ggml_conv_2d_s1_ph``)."""
    two_tensors("conv_2d_s1_ph", a, b)
    return conv_2d(a, b, 1, 1, a.ne[0] // 2, a.ne[1] // 2, 1, 1)


@accept_other_names
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
    two_tensors("conv_2d_dw", a, b)
    width, height, channels, batch = b.ne
    if a.ne[2] * a.ne[3] != channels:
        raise mismatch(
            "conv_2d_dw", f"a must have {channels} kernels, one for each channel", a=a, b=b
        )
    if a.dtype is F32:  # the rows of ggml are f16 here, which products with f32 do not take
        raise refuse_type("conv_2d_dw", "a of f16 or a quantized type", a=a, b=b)
    kernels = reshape_4d(a, a.ne[0], a.ne[1], 1, channels)
    images = reshape_4d(b, width, height, 1, channels * batch)
    rows = im2col(kernels, images, s0, s1, p0, p1, d0, d1, True, _rows_type(a))
    window, out0, out1, _ = rows.ne
    product = mul_mat(
        reshape_4d(kernels, window, 1, channels, 1),
        reshape_4d(rows, window, out0 * out1, channels, batch),
    )
    return reshape_4d(product, out0, out1, channels, batch)


@accept_other_names
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
    two_tensors("conv_3d", a, b)
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
