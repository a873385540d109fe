"""Windowed attention of images: win_part, win_unpart, get_rel_pos, add_rel_pos.

Here: shapes, types, checks. Not here: kernels (native/*/shape_window.c).
"""

from __future__ import annotations

import struct

from aggml.errors import InvalidArgument
from aggml.ops._common import (
    BF16,
    F16,
    F32,
    all_tensors,
    mismatch,
    need_dense,
    pack,
    refuse_type,
    suffix,
    whole,
)
from aggml.tensor import Tensor, new_node, new_view

__all__ = ["add_rel_pos", "add_rel_pos_inplace", "get_rel_pos", "win_part", "win_unpart"]

_THREE = struct.Struct("<3i52x")


def win_part(a: Tensor, w: int) -> Tensor:
    """Cut an image into square windows, zeros where they reach beyond it (``ggml_win_part``).

    Args:
        a: f32 [c, width, height], any strides.
        w: width and height of a window.

    Returns:
        f32 [c, w, w, n], windows row by row.

    Raises:
        InvalidArgument: ``w`` is not above 0.
        LayoutMismatch: ``a`` has a fourth dimension.
        Unsupported: it is not f32.
    """
    if a.__class__ is not Tensor:
        all_tensors("win_part", a=a)
    (w,) = whole("win_part", w)
    if w < 1:
        raise InvalidArgument(f"[win_part] w = {w} is not above 0")
    if a.dtype is not F32:
        raise refuse_type("win_part", "f32", a=a)
    if a.ne[3] != 1:
        raise mismatch("win_part", "a must be [c, width, height]", a=a)
    across, down = -(-a.ne[1] // w), -(-a.ne[2] // w)
    params = pack("win_part", _THREE, across, down, w)
    return new_node("win_part", F32, (a.ne[0], w, w, across * down), (a,), params, ndim=4)


def win_unpart(a: Tensor, w0: int, h0: int, w: int) -> Tensor:
    """Put windows together again: the way back from `win_part` (``ggml_win_unpart``).

    Args:
        a: f32 [c, w, w, n], any strides.
        w0: width of the image.
        h0: its height.
        w: width and height of a window.

    Returns:
        f32 [c, w0, h0].

    Raises:
        InvalidArgument: a number is not above 0.
        LayoutMismatch: ``a`` is not the windows of such an image.
        Unsupported: it is not f32.
    """
    op = "win_unpart"
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    w0, h0, w = whole(op, w0, h0, w)
    if min(w0, h0, w) < 1:
        raise InvalidArgument(f"[{op}] w0 = {w0}, h0 = {h0}, w = {w}: all must be above 0")
    if a.dtype is not F32:
        raise refuse_type(op, "f32", a=a)
    if a.ne[1:] != (w, w, -(-w0 // w) * -(-h0 // w)):
        raise mismatch(op, f"a must have the windows of {w} x {w} that cover {w0} x {h0}", a=a)
    return new_node(op, F32, (a.ne[0], w0, h0, 1), (a,), pack(op, _THREE, w, 0, 0))


def get_rel_pos(a: Tensor, qh: int, kh: int) -> Tensor:
    """The row of ``a`` for the distance of each query and key (``ggml_get_rel_pos``).

    Bits are copied unchanged into f16. For bf16 that gives other numbers, as in ggml.

    Args:
        a: f16 or bf16 [c, 2 * n - 1], any strides.
        qh: n queries.
        kh: as many keys.

    Returns:
        f16 [c, kh, qh]: row (k, q) is row ``n - 1 - k + q`` of ``a``.

    Raises:
        LayoutMismatch: ``qh`` and ``kh`` differ, or ``a`` has another number of rows.
        Unsupported: other types.
    """
    op = "get_rel_pos"
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    qh, kh = whole(op, qh, kh)
    if a.dtype is not F16 and a.dtype is not BF16:
        raise refuse_type(op, "f16 or bf16", a=a)
    if qh != kh or a.ne[1] != 2 * qh - 1 or not a.is_matrix:
        raise mismatch(
            op, f"a must be [c, 2 n - 1] for n queries and n keys, given {qh} and {kh}", a=a
        )
    return new_node(op, F16, (a.ne[0], kh, qh, 1), (a,), ndim=3)


def _add(op: str, a: Tensor, pw: Tensor, ph: Tensor, inplace: bool) -> Tensor:
    if a.__class__ is not Tensor or pw.__class__ is not Tensor or ph.__class__ is not Tensor:
        all_tensors(op, a=a, pw=pw, ph=ph)
    if a.dtype is not F32 or pw.dtype is not F32 or ph.dtype is not F32:
        raise refuse_type(op, "f32", a=a, pw=pw, ph=ph)
    n, m1, m2, m3 = pw.ne
    if pw.ne != ph.ne or a.ne != (n * n, m1 * m2, m3, 1):
        raise mismatch(op, "pw and ph must be [n, k, l, s] for a [n n, k l, s]", a=a, pw=pw, ph=ph)
    need_dense(op, a=a, pw=pw, ph=ph)
    if inplace:
        name = suffix(a, "view")
        return new_view("add_rel_pos", a, a.ne, a.nb, 0, (a, pw, ph), name=name)
    return new_node("add_rel_pos", F32, a.ne, (a, pw, ph))


def add_rel_pos(a: Tensor, pw: Tensor, ph: Tensor) -> Tensor:
    """Add a number to each column and one to each line of square planes (``ggml_add_rel_pos``).

    Args:
        a: f32 [n * n, k * l, s], contiguous: a row is a plane.
        pw: f32 [n, k, l, s], contiguous, added to the columns.
        ph: f32, likewise, added to the lines.

    Returns:
        A new f32 tensor of the extents of ``a``.

    Raises:
        LayoutMismatch: extents that do not fit, or gaps.
        Unsupported: other types.
    """
    return _add("add_rel_pos", a, pw, ph, False)


def add_rel_pos_inplace(a: Tensor, pw: Tensor, ph: Tensor) -> Tensor:
    """`add_rel_pos` in place: the result overwrites ``a`` (``ggml_add_rel_pos_inplace``)."""
    return _add("add_rel_pos_inplace", a, pw, ph, True)
