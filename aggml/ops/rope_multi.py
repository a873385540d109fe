"""Rotary position embedding with several positions at once: rope_multi and its variants.

Here: sections, checks of their own. Not here: the parts shared with one position (rope.py), kernels
(native/*/rope.c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.errors import InvalidArgument, InvalidHandle
from aggml.ops._common import all_tensors, whole
from aggml.ops.rope import _build
from aggml.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.ops.rope import RopeMode

__all__ = ["rope_multi", "rope_multi_back", "rope_multi_inplace"]


def _four(op: str, a: Tensor, b: Tensor, sections: Sequence[int]) -> tuple[int, ...]:
    if a.__class__ is not Tensor or b.__class__ is not Tensor:
        all_tensors(op, a=a, b=b)
    try:
        given = whole(op, *sections)
    except TypeError:
        raise InvalidHandle(f"[{op}] sections = {sections!r} is no list of integers") from None
    if len(given) != 4:
        raise InvalidArgument(f"[{op}] sections = {list(given)}: give four")
    return given


def rope_multi(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    sections: Sequence[int],
    mode: RopeMode | str | int = "mrope",
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """Turn pairs by up to four positions: time, height, width, one more (``ggml_rope_multi``).

    Args:
        a: f32 or f16 [d, heads, n, batch], rows without gaps.
        b: i32 [4 * n]: all times, then all heights, widths, and the fourth.
        c: f32 that each frequency is divided by, one for each pair, or None.
        n_dims: as of `rope_ext`; in mode "vision" half of d; the whole row is turned.
        sections: how many pairs turn with each of the four positions; they follow each other and
            begin again.
        mode: "mrope"; "imrope", which gives pairs to the first three positions in turn, as long as
            a section has any left; "vision", where the frequencies of each section begin anew. In
            modes "normal" and "neox" as `rope_ext`, b being [n].
        n_ctx_orig: as for `rope_ext`, like all further arguments.
        freq_base: as for `rope_ext`.
        freq_scale: as for `rope_ext`.
        ext_factor: as for `rope_ext`.
        attn_factor: as for `rope_ext`.
        beta_fast: as for `rope_ext`.
        beta_slow: as for `rope_ext`.

    Returns:
        A new tensor of the type and extents of ``a``.

    Raises:
        InvalidArgument: no four sections, or none of the first three has a pair; else as
            `rope_ext`.
        LayoutMismatch: not four positions for each of n, too few factors, or gaps.
        Unsupported: other types.
    """
    floats = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    op = "rope_multi"
    four = _four(op, a, b, sections)
    return _build(op, a, b, c, n_dims, mode, n_ctx_orig, floats, sections=four)


def rope_multi_inplace(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    sections: Sequence[int],
    mode: RopeMode | str | int = "mrope",
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """`rope_multi` in place: the result overwrites ``a`` (``ggml_rope_multi_inplace``)."""
    floats = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    op = "rope_multi_inplace"
    four = _four(op, a, b, sections)
    return _build(op, a, b, c, n_dims, mode, n_ctx_orig, floats, inplace=True, sections=four)


def rope_multi_back(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    n_dims: int,
    sections: Sequence[int],
    mode: RopeMode | str | int = "mrope",
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """The gradient of `rope_multi`: pairs are turned back (``ggml_rope_multi_back``)."""
    floats = (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    op = "rope_multi_back"
    four = _four(op, a, b, sections)
    return _build(op, a, b, c, n_dims, mode, n_ctx_orig, floats, back=True, sections=four)
