"""quantize and dequantize: rows of floats to blocks of an element type and back, natively.

Here: arrays in, arrays out. Not here: block layouts (native/types.h), types as operands (ops/).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.dtype import DType
from aggml.errors import InvalidArgument, LayoutMismatch, Unsupported
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["dequantize", "quantize"]

Array = np.ndarray[Any, Any]


def _supported(dtype: DType | str, what: str) -> DType:
    kind = DType.parse(dtype)
    if _native.type_name(kind.value) is None:
        raise Unsupported(f"[{what}] {kind.type_name} is not supported by this build")
    return kind


def quantize(x: Array, dtype: DType | str, imatrix: Array | None = None) -> Array:
    """Convert rows of floats to blocks, bit for bit as ggml_quantize_chunk does.

    Args:
        x: float32, the last axis a multiple of the type's block.
        dtype: the target type.
        imatrix: one weight per column, float32; types that cannot use it ignore it.

    Returns:
        uint8, the shape of ``x`` with the bytes of a row in the last axis.

    Raises:
        LayoutMismatch: ``x`` is not float32, or its rows are no multiple of the block.
        Unsupported: there is no quantizer for the type.
    """
    kind = _supported(dtype, "quantize")
    x = np.asarray(x)
    if x.dtype != np.float32:
        raise LayoutMismatch(f"[quantize] x holds {x.dtype}: convert with .astype(numpy.float32)")
    if x.ndim == 0 or x.shape[-1] % kind.blck_size:
        raise LayoutMismatch(
            f"[quantize] rows of {x.shape} are no multiple of "
            f"the {kind.blck_size} of {kind.type_name}"
        )
    if imatrix is not None:
        imatrix = np.ascontiguousarray(imatrix, np.float32)
        if imatrix.shape != x.shape[-1:]:
            raise InvalidArgument(
                f"[quantize] imatrix has shape {imatrix.shape}, "
                f"one weight per column is {x.shape[-1:]}"
            )
    out = np.empty((*x.shape[:-1], kind.row_size(x.shape[-1])), np.uint8)
    if x.size:
        _native.quantize(kind.value, np.ascontiguousarray(x), out, x.shape[-1], imatrix)
    return out


def dequantize(blocks: Array, dtype: DType | str, ne: Sequence[int]) -> Array:
    """Convert blocks back to float32.

    Args:
        blocks: uint8, of the size that ``ne`` asks for, contiguous or not.
        dtype: the type of the blocks.
        ne: extents in ggml order, ``ne[0]`` innermost.

    Returns:
        float32 of shape reversed ``ne``.

    Raises:
        LayoutMismatch: the number of bytes is another.
        Unsupported: the type is not known to this build.
    """
    kind = _supported(dtype, "dequantize")
    blocks = np.ascontiguousarray(blocks)
    if any(n < 0 for n in ne) or (ne and ne[0] % kind.blck_size):
        raise InvalidArgument(f"[dequantize] ne={tuple(ne)} are no extents for {kind.type_name}")
    wanted = kind.row_size(ne[0]) * math.prod(ne[1:])
    if blocks.nbytes != wanted:
        raise LayoutMismatch(
            f"[dequantize] ne={tuple(ne)} of {kind.type_name} take {wanted} bytes, "
            f"got {blocks.nbytes}"
        )
    out = np.empty(tuple(reversed(ne)), np.float32)
    if out.size:
        _native.to_float(kind.value, blocks.view(np.uint8).reshape(-1), out)
    return out
