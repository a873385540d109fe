"""Launches of group_norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import ceil
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite

__all__ = ["OPS", "launches"]

#: The ops that are launched here.
OPS = in_group("group_norm")


def launches(site: NodeSite) -> list[Launch]:
    """A block for each group."""
    node = site.node
    size = ceil(node.ne[2], int.from_bytes(node.op_params[:4], "little", signed=True))
    groups = ceil(node.ne[2], size)
    grid = (min(groups * node.ne[3], 1 << 20), 1, 1)
    return [site.launch("norm", "norm_groups", grid, (256, 1, 1), 1, aux=[size, groups])]
