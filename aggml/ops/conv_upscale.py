"""Other resolutions: upscale, upscale_ext, interpolate.

Here: shapes, types, checks. Not here: kernels (native/*/conv_upscale.c).
"""

from __future__ import annotations

import enum
import struct

from aggml.errors import InvalidArgument, InvalidHandle
from aggml.ops._common import F32, all_tensors, mismatch, pack, refuse_type, whole
from aggml.tensor import Tensor, new_node

__all__ = ["ScaleFlag", "ScaleMode", "interpolate", "upscale", "upscale_ext"]


class ScaleMode(enum.IntEnum):
    """How a new pixel is made of the old ones (enum ``ggml_scale_mode``)."""

    NEAREST = 0
    BILINEAR = 1
    BICUBIC = 2


class ScaleFlag(enum.IntFlag):
    """Flags that may be joined to a mode by ``|`` (enum ``ggml_scale_flag``)."""

    ALIGN_CORNERS = 1 << 8  # centres of the corners coincide, not their outer edges
    ANTIALIAS = 1 << 9  # bilinear only: the filter is as wide as a new pixel


_MODE = struct.Struct("<i60x")
_WORDS = {(member.name or "").lower(): int(member) for member in (*ScaleMode, *ScaleFlag)}
_FLAGS = int(ScaleFlag.ALIGN_CORNERS | ScaleFlag.ANTIALIAS)


def _mode(op: str, mode: ScaleMode | str | int) -> int:
    """The number of a mode given by number, or by names joined by ``|``."""
    if isinstance(mode, str):
        words = [word.strip() for word in mode.lower().split("|")]
        unknown = [word for word in words if word not in _WORDS]
        if unknown:
            raise InvalidArgument(f"[{op}] mode = {mode!r}, which is none of {', '.join(_WORDS)}")
        if sum(_WORDS[word] <= ScaleMode.BICUBIC for word in words) != 1:
            raise InvalidArgument(
                f"[{op}] mode = {mode!r} must name exactly one of nearest, bilinear and bicubic"
            )
        number = 0
        for word in words:
            number |= _WORDS[word]
    elif isinstance(mode, int):
        number = int(mode)
    else:
        raise InvalidHandle(f"[{op}] mode = {mode!r} is no mode")
    if number & ~_FLAGS not in set(ScaleMode) or number < 0:
        raise InvalidArgument(f"[{op}] there is no mode {number}")
    if number & ScaleFlag.ANTIALIAS and number & ~_FLAGS != ScaleMode.BILINEAR:
        raise InvalidArgument(f"[{op}] antialias works with bilinear only")
    return number


def _build(op: str, a: Tensor, ne: tuple[int, ...], mode: ScaleMode | str | int) -> Tensor:
    number = _mode(op, mode)
    if a.dtype is not F32:
        raise refuse_type(op, "f32", a=a)
    n0, n1, n2, n3 = ne
    if min(ne) < 0:
        raise InvalidArgument(f"[{op}] ne = {list(ne)} has a negative extent")
    if a.is_empty and 0 not in ne:
        raise mismatch(op, f"a is empty, so it cannot be scaled to {list(ne)}", a=a)
    return new_node("upscale", F32, (n0, n1, n2, n3), (a,), pack(op, _MODE, number))


def upscale(a: Tensor, scale_factor: int, mode: ScaleMode | str | int = "nearest") -> Tensor:
    """`interpolate` to a multiple of width and height (``ggml_upscale``).

    Raises:
        InvalidArgument: ``scale_factor`` is not above 1; else as `interpolate`.
        Unsupported: ``a`` is not f32.
    """
    if a.__class__ is not Tensor:
        all_tensors("upscale", a=a)
    (factor,) = whole("upscale", scale_factor)
    if factor <= 1:
        raise InvalidArgument(f"[upscale] scale_factor = {factor} is not above 1")
    ne = (a.ne[0] * factor, a.ne[1] * factor, a.ne[2], a.ne[3])
    return _build("upscale", a, ne, mode)


def upscale_ext(
    a: Tensor, ne0: int, ne1: int, ne2: int, ne3: int, mode: ScaleMode | str | int = "nearest"
) -> Tensor:
    """The older name of `interpolate` (``ggml_upscale_ext``)."""
    if a.__class__ is not Tensor:
        all_tensors("upscale_ext", a=a)
    return _build("upscale_ext", a, whole("upscale_ext", ne0, ne1, ne2, ne3), mode)


def interpolate(
    a: Tensor, ne0: int, ne1: int, ne2: int, ne3: int, mode: ScaleMode | str | int = "nearest"
) -> Tensor:
    """Show images at another resolution, larger or smaller (``ggml_interpolate``).

    Args:
        a: f32 [w, h, s, t], any strides.
        ne0: new width.
        ne1: new height.
        ne2: new extent of dimension 2. Dimensions 2 and 3 always take the nearest element.
        ne3: new extent of dimension 3.
        mode: "nearest", "bilinear" or "bicubic", with flags joined by ``|``: "align_corners";
            "antialias" (bilinear only).

    Returns:
        f32 [ne0, ne1, ne2, ne3].

    Raises:
        InvalidArgument: no such mode, or a negative extent.
        LayoutMismatch: ``a`` is empty, and the result is not.
        Unsupported: ``a`` is not f32.
    """
    if a.__class__ is not Tensor:
        all_tensors("interpolate", a=a)
    return _build("interpolate", a, whole("interpolate", ne0, ne1, ne2, ne3), mode)
