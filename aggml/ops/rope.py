"""Rotary position embedding: rope, rope_ext, rope_custom, in modes normal and neox.

Here: shapes, types, checks. Not here: kernels (native/*/rope.c).
"""

from __future__ import annotations

import enum
import struct

from aggml.errors import InvalidArgument
from aggml.ops._common import (
    F32,
    HALF_OR_SINGLE,
    I32,
    all_tensors,
    by_name,
    mismatch,
    no_member,
    pack,
    refuse_type,
    suffix,
)
from aggml.tensor import Tensor, new_node, new_view

__all__ = [
    "RopeMode",
    "rope",
    "rope_custom",
    "rope_custom_inplace",
    "rope_ext",
    "rope_ext_inplace",
    "rope_inplace",
]


class RopeMode(enum.IntEnum):
    """Which elements of a row are turned together (``GGML_ROPE_TYPE_*``)."""

    NORMAL = 0  # 2 i and 2 i + 1
    NEOX = 2  # i and i + n_dims / 2


_MODES = by_name(RopeMode)
# Slot 0 was n_past, slot 3 n_ctx; from slot 11 on come the sections of modes that are not here.
_PARAMS = struct.Struct("<4xii4xi6f20x")


def _build(
    op: str,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    mode: RopeMode | str | int,
    n_ctx_orig: int,
    floats: tuple[float, ...],
    inplace: bool,
) -> Tensor:
    if (
        a.__class__ is not Tensor
        or b.__class__ is not Tensor
        or (c is not None and c.__class__ is not Tensor)
    ):
        all_tensors(op, **({"a": a, "b": b} if c is None else {"a": a, "b": b, "c": c}))
    found = _MODES.get(mode)
    if found is None:
        no_member(op, "mode", mode, _MODES)
    if a.dtype not in HALF_OR_SINGLE or b.dtype is not I32:
        raise refuse_type(op, a=a, b=b)
    if b.ne != (a.ne[2], 1, 1, 1) or not b.is_contiguous:
        raise mismatch(op, f"b is not one position for each of {a.ne[2]} in dimension 2", a=a, b=b)
    if a.nb[0] != a.dtype.type_size:
        raise mismatch(op, f"the rows of a have gaps, nb[0] {a.nb[0]}", a=a)
    params = pack(op, _PARAMS, n_dims, found, n_ctx_orig, *floats)
    if n_dims % 2 or not 0 < n_dims <= a.ne[0]:
        raise InvalidArgument(f"[{op}] n_dims = {n_dims} is not even, from 2 to ne[0] = {a.ne[0]}")
    if c is None:
        src: tuple[Tensor, ...] = (a, b)
    else:
        if c.dtype is not F32:
            raise refuse_type(op, c=c)
        if c.ne[0] < n_dims // 2 or not c.is_contiguous:
            raise mismatch(op, f"c is not one factor for each of {n_dims // 2} angles", c=c)
        src = (a, b, c)
    if inplace:
        return new_view("rope", a, a.ne, a.nb, 0, src, params, suffix(a, "view"))
    return new_node("rope", a.dtype, a.ne, src, params)


_PLAIN = (10000.0, 1.0, 0.0, 1.0, 0.0, 0.0)


def rope(a: Tensor, b: Tensor, n_dims: int, mode: RopeMode | str | int = "normal") -> Tensor:
    """`rope_ext` with base 10000 and none of its options (``ggml_rope``)."""
    return _build("rope", a, b, None, n_dims, mode, 0, _PLAIN, False)


def rope_inplace(
    a: Tensor, b: Tensor, n_dims: int, mode: RopeMode | str | int = "normal"
) -> Tensor:
    """`rope` over the storage of ``a`` (``ggml_rope_inplace``)."""
    return _build("rope_inplace", a, b, None, n_dims, mode, 0, _PLAIN, True)


def rope_ext(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    mode: RopeMode | str | int = "normal",
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """Turn pairs of elements of each row by angles that grow with its position (``ggml_rope_ext``).

    Args:
        a: f32 or f16 [d, heads, n, batch], rows without gaps.
        b: i32 [n], the positions.
        c: f32 [at least n_dims / 2] that each frequency is divided by, or None.
        n_dims: how many elements of a row are turned, an even number; the others are copied.
        mode: "normal" (pairs are neighbours) or "neox" (pairs are half of n_dims apart).
        n_ctx_orig: context of the training, for YaRN.
        freq_base: frequency i is ``freq_base ** (-2 i / n_dims)``.
        freq_scale: factor of all angles.
        ext_factor: share of YaRN's extrapolation; 0 switches it off.
        attn_factor: factor of the result; with YaRN times ``1 + 0.1 ln(1 / freq_scale)``.
        beta_fast: rotations over n_ctx_orig above which YaRN extrapolates.
        beta_slow: and those below which it interpolates.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        InvalidArgument: no such mode, ``n_dims`` odd or beyond the row, a number that does not fit.
        LayoutMismatch: not one position for each of n, too few factors, or gaps.
        Unsupported: other types.
    """
    floats = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    return _build("rope_ext", a, b, c, n_dims, mode, n_ctx_orig, floats, False)


def rope_ext_inplace(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    mode: RopeMode | str | int = "normal",
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """`rope_ext` over the storage of ``a`` (``ggml_rope_ext_inplace``)."""
    floats = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    return _build("rope_ext_inplace", a, b, c, n_dims, mode, n_ctx_orig, floats, True)


def rope_custom(
    a: Tensor,
    b: Tensor,
    n_dims: int,
    mode: RopeMode | str | int = "normal",
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """`rope_ext` without factors for the frequencies (``ggml_rope_custom``)."""
    floats = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    return _build("rope_custom", a, b, None, n_dims, mode, n_ctx_orig, floats, False)


def rope_custom_inplace(
    a: Tensor,
    b: Tensor,
    n_dims: int,
    mode: RopeMode | str | int = "normal",
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """`rope_custom` over the storage of ``a`` (``ggml_rope_custom_inplace``)."""
    floats = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    return _build("rope_custom_inplace", a, b, None, n_dims, mode, n_ctx_orig, floats, True)
