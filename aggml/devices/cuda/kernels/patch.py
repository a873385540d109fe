"""Launches of set and acc: a is copied, then b is copied or added to a part of the copy."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.devices.cuda.kernels.cpy import copy
from aggml.devices.cuda.pack import merge, rows_by_columns
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite, Operand
    from aggml.tensor import Tensor

__all__ = ["OPS", "launches", "refuses"]

#: The ops that are launched here.
OPS = in_group("patch")


def _layout(node: Tensor) -> tuple[int, int, int, int]:
    """The strides of the part, and its offset."""
    nb1, nb2, nb3, offset = struct.unpack_from("<4q", node.op_params)
    return nb1, nb2, nb3, offset


def refuses(node: Tensor) -> bool:
    """Whether elements of the part overlap: the order of threads would decide the result."""
    b = node.src[1]
    assert b is not None
    least = node.nb[0] * b.ne[0]
    for n, step in zip(b.ne[1:], _layout(node)[:3], strict=True):
        if n > 1 and step < least:
            return True
        if n > 1:
            least = step * n
    return False


def launches(site: NodeSite) -> list[Launch]:
    """One or two launches."""
    dst, a, b = site.dst, site.src(0), site.src(1)
    found = [] if dst.data == a.data else copy(site, dst, a)
    if 0 in b.ne:
        return found
    nb1, nb2, nb3, offset = _layout(site.node)
    part: Operand = replace(dst, ne=b.ne, nb=(dst.nb[0], nb1, nb2, nb3), data=dst.data + offset)
    if site.node.op == "set":
        return found + copy(site, part, b)
    operands = merge([part, part, b])
    grid, block = rows_by_columns(operands[0].ne)
    return [*found, site.launch("binary", "acc_f32", grid, block, 2, operands=operands)]
