"""Launches of gated units: x and g are two operands, or the halves of the rows of one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import MISSING, merge, rows_by_columns
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite

__all__ = ["OPS", "launches"]

#: The ops that are launched here.
OPS = in_group("glu")


def launches(site: NodeSite) -> list[Launch]:
    """One launch."""
    dst, x, g = site.dst, site.src(0), site.src(1)
    if g == MISSING:  # the halves of each row of a
        swapped = int.from_bytes(site.node.op_params[4:8], "little", signed=True) != 0
        low = replace(x, ne=dst.ne)
        high = replace(low, data=x.data + dst.ne[0] * x.nb[0])
        x, g = (high, low) if swapped else (low, high)
    operands = merge([dst, x, g])
    grid, block = rows_by_columns(operands[0].ne)
    kernel = f"glu_{site.node.dtype.type_name}"
    return [site.launch("glu", kernel, grid, block, 2, operands=operands)]
