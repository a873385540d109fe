"""Rotary position embedding: rope, rope_ext, rope_custom, rope_ext_back, rope_set_offset.

Here: shapes, types, checks. Not here: several positions at once (rope_multi.py), kernels
(native/*/rope.c).
"""

from __future__ import annotations

import enum
import struct

from aggml.errors import InvalidArgument, InvalidState
from aggml.ops._common import (
    F32,
    HALF_OR_SINGLE,
    I32,
    all_tensors,
    by_name,
    gaps,
    member,
    mismatch,
    pack,
    refuse_type,
    suffix,
    whole,
)
from aggml.tensor import Tensor, change, describe, new_node, new_view

__all__ = [
    "RopeMode",
    "rope",
    "rope_custom",
    "rope_custom_inplace",
    "rope_ext",
    "rope_ext_back",
    "rope_ext_inplace",
    "rope_inplace",
    "rope_set_offset",
]


class RopeMode(enum.IntEnum):
    """Which elements of a row are turned together (``GGML_ROPE_TYPE_*``)."""

    NORMAL = 0  # 2 i and 2 i + 1
    NEOX = 2  # i and i + n_dims / 2
    MROPE = 8  # as neox; sections of pairs, each with a position of its own
    VISION = 24  # i and i + ne[0] / 2; the frequencies of each section begin anew
    IMROPE = 40  # as mrope, the sections' pairs dealt out in threes


_MODES = by_name(RopeMode)
# Slot 0 was n_past, slot 3 n_ctx; slots 11 to 14 are the sections, slot 15 the offset.
_PARAMS = struct.Struct("<4xii4xi6f4i4x")
_INT = struct.Struct("<i")
_N_DIMS_AT, _MODE_AT, _OFFSET_AT = 4, 8, 60


def _build(
    op: str,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    mode: RopeMode | str | int,
    n_ctx_orig: int,
    floats: tuple[float, ...],
    inplace: bool = False,
    back: bool = False,
    sections: tuple[int, ...] = (0, 0, 0, 0),
) -> Tensor:
    """The node of every function here and in rope_multi.py, after all checks."""
    if (
        a.__class__ is not Tensor
        or b.__class__ is not Tensor
        or (c is not None and c.__class__ is not Tensor)
    ):
        all_tensors(op, **({"a": a, "b": b} if c is None else {"a": a, "b": b, "c": c}))
    found = member(op, "mode", mode, _MODES)
    if a.dtype not in HALF_OR_SINGLE or b.dtype is not I32:
        raise refuse_type(op, "a of f32 or f16, b of i32", a=a, b=b)
    multi = bool(found & RopeMode.MROPE)
    n_positions = 4 * a.ne[2] if multi else a.ne[2]
    if b.ne != (n_positions, 1, 1, 1) or not b.is_contiguous:
        raise mismatch(
            op, f"b must have {n_positions} positions, as ne[2] of a is {a.ne[2]}", a=a, b=b
        )
    if a.nb[0] != a.dtype.type_size:
        raise gaps(op, a=a)
    params = pack(op, _PARAMS, n_dims, found, n_ctx_orig, *floats, *sections)
    if n_dims % 2 or not 0 < n_dims <= a.ne[0]:
        raise InvalidArgument(f"[{op}] n_dims = {n_dims} must be even, and 2 to ne[0] = {a.ne[0]}")
    if multi and (min(sections) < 0 or not any(sections[:3])):
        raise InvalidArgument(
            f"[{op}] sections {list(sections)}: none may be negative, nor the first three all 0"
        )
    if found is RopeMode.VISION and 2 * n_dims != a.ne[0]:
        raise InvalidArgument(
            f"[{op}] n_dims = {n_dims} must be half of ne[0] = {a.ne[0]} in mode VISION"
        )
    if c is None:
        src: tuple[Tensor, ...] = (a, b)
    else:
        angles = n_dims if found is RopeMode.VISION else n_dims // 2
        if c.dtype is not F32:
            raise refuse_type(op, "c of f32", c=c)
        if c.ne[0] < angles or c.is_empty or not c.is_contiguous:
            raise mismatch(
                op, f"c must be contiguous, with a factor for each of {angles} angles", c=c
            )
        src = (a, b, c)
    if inplace:
        return new_view("rope", a, a.ne, a.nb, 0, src, params, suffix(a, "view"))
    return new_node("rope_back" if back else "rope", a.dtype, a.ne, src, params)


_PLAIN = (10000.0, 1.0, 0.0, 1.0, 0.0, 0.0)


def rope(a: Tensor, b: Tensor, n_dims: int, mode: RopeMode | str | int = "normal") -> Tensor:
    """`rope_ext` with base 10000 and none of its options (``ggml_rope``)."""
    return _build("rope", a, b, None, n_dims, mode, 0, _PLAIN)


def rope_inplace(
    a: Tensor, b: Tensor, n_dims: int, mode: RopeMode | str | int = "normal"
) -> Tensor:
    """`rope` in place: the result overwrites ``a`` (``ggml_rope_inplace``)."""
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
        beta_slow: rotations below which YaRN interpolates.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        InvalidArgument: no such mode, ``n_dims`` odd or beyond the row, a number that does not fit.
        LayoutMismatch: not one position for each of n, too few factors, or gaps.
        Unsupported: other types.
    """
    floats = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    return _build("rope_ext", a, b, c, n_dims, mode, n_ctx_orig, floats)


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
    """`rope_ext` in place: the result overwrites ``a`` (``ggml_rope_ext_inplace``)."""
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
    return _build("rope_custom", a, b, None, n_dims, mode, n_ctx_orig, floats)


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
    """`rope_custom` in place: the result overwrites ``a`` (``ggml_rope_custom_inplace``)."""
    floats = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    return _build("rope_custom_inplace", a, b, None, n_dims, mode, n_ctx_orig, floats, True)


def rope_ext_back(
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
    """The gradient of `rope_ext`: pairs are turned back (``ggml_rope_ext_back``)."""
    floats = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    return _build("rope_ext_back", a, b, c, n_dims, mode, n_ctx_orig, floats, back=True)


def rope_set_offset(a: Tensor, n_offs: int) -> Tensor:
    """Turn the elements from ``n_offs`` on instead of the first ones (``ggml_rope_set_offset``).

    Args:
        a: a node of one of the functions here or in rope_multi.
        n_offs: elements of each row that come before those that are turned.

    Returns:
        ``a``.

    Raises:
        InvalidArgument: ``a`` is no rope, or the turned elements would end beyond the row.
        InvalidState: ``a`` is in a Graph.
    """
    op = "rope_set_offset"
    if a.__class__ is not Tensor:
        all_tensors(op, a=a)
    if a.op not in {"rope", "rope_back"}:
        raise InvalidArgument(f"[{op}] {describe(a)} comes from {a.op}, not from rope")
    (offset,) = whole(op, n_offs)
    (n_dims,) = _INT.unpack_from(a.op_params, _N_DIMS_AT)
    (mode,) = _INT.unpack_from(a.op_params, _MODE_AT)
    turned = 2 * n_dims if mode == RopeMode.VISION else n_dims
    if not 0 <= offset <= a.ne[0] - turned:
        raise InvalidArgument(
            f"[{op}] offset = {offset}: {turned} elements from there do not fit into {a.ne[0]}"
        )
    if a.frozen:
        raise InvalidState(
            f"[{op}] {describe(a)} is part of a Graph: change it before the Graph is made"
        )
    params = bytearray(a.op_params)
    _INT.pack_into(params, _OFFSET_AT, offset)
    change(a, "op_params", bytes(params))
    return a
