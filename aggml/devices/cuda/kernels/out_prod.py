"""Launches of out_prod: each block computes 32 x 32 elements of the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import ceil
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite

__all__ = ["OPS", "launches"]

#: The ops that are launched here.
OPS = in_group("out_prod")


def launches(site: NodeSite) -> list[Launch]:
    """One launch."""
    ne = site.node.ne
    grid = (ceil(ne[0], 32), min(ceil(ne[1], 32), 65535), min(ne[2] * ne[3], 65535))
    return [site.launch("out_prod", "out_prod", grid, (256, 1, 1), 2)]
