"""Norms that also write their rows as int8, for the quantized product that is launched next.

Here: which two launches become one. Not here: columns that are in scratch already (once.py), chains
of nodes (fusion_chain.py), the kernels (norm.cu, columns.cu).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from aggml.devices.cuda.launch import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.devices.cuda.once import Lowered

__all__ = ["fuse_norm_with_quantize"]

# Layout of the arguments of a launch with one operand: the node, its operand, aux, scratch.
_DST, _SRC, _AUX, _SCRATCH = 0, 80, 224, 288
_ACTS: Final = _AUX + 2 * 8  # the word of aux with the address for the int8 rows
_TENSOR: Final = struct.Struct("<10q")  # data, ne, nb, type
_F32: Final = 0


def fuse_norm_with_quantize(nodes: Sequence[list[Lowered]]) -> int:
    """Remove each launch that converts to int8 the rows that a norm has just written.

    The norm does the conversion instead. No launch comes between the two, so the product's scratch
    is free when the norm writes to it.

    Args:
        nodes: the launches of each node, in order; changed in place.

    Returns:
        How many launches were removed.
    """
    left_out = 0
    before: list[Lowered] | None = None
    for launches in nodes:
        if before is not None and launches:
            norm = _with_acts(before[-1], launches[0])
            if norm is not None:
                before[-1] = norm
                del launches[0]
                left_out += 1
        before = launches or before
    return left_out


def _with_acts(norm: Lowered, columns: Lowered) -> Lowered | None:
    """A launch of the norm that does the work of both; None if there is none."""
    (one, args, relative), (other, theirs, also) = norm, columns
    if one.kernel != "norm_rows" or other.kernel != "quantize_columns":
        return None
    if other.when != ALWAYS or one.when != ALWAYS:
        return None
    if args[_DST:_SRC] != theirs[_SRC : 2 * _SRC] or (_DST in relative) != (_SRC in also):
        return None  # other rows
    for at in (_DST, _SRC):
        data, width, _, _, _, *nb, dtype = _TENSOR.unpack_from(args, at)
        if dtype != _F32 or data % 16 or width % 32 or any(step % 16 for step in nb[1:]):
            return None
    rows = _TENSOR.unpack_from(args, _DST)
    if rows[5:8] != (4, 4 * rows[1], 4 * rows[1] * rows[2]):
        return None
    (scratch,), (offset,) = (
        struct.unpack_from("<q", theirs, _SCRATCH),
        struct.unpack_from("<q", theirs, _AUX),
    )
    where = struct.pack("<q", scratch + offset)
    told = args[:_ACTS] + where + args[_ACTS + 8 :]
    return one, told, [*relative, _ACTS] if _SCRATCH in also else relative
