"""Launches of functions of one operand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import merge, rows_by_columns
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite

__all__ = ["OPS", "launches"]

#: The ops that are launched here.
OPS = in_group("unary")


def launches(site: NodeSite) -> list[Launch]:
    """One launch."""
    operands = merge([site.dst, site.src(0)])
    grid, block = rows_by_columns(operands[0].ne)
    kernel = f"unary_{site.node.dtype.type_name}"
    return [site.launch("unary", kernel, grid, block, 1, operands=operands)]
