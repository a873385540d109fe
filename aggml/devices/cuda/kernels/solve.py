"""Launches of solve_tri: the first checks the diagonals, the second has a thread a column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import ceil
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite

__all__ = ["OPS", "launches"]

#: The ops that are launched here.
OPS = in_group("solve")


def launches(site: NodeSite) -> list[Launch]:
    """Two launches."""
    ne = site.node.ne
    grid = (min(ceil(ne[0] * ne[2] * ne[3], 64), 1 << 20), 1, 1)
    return [
        site.launch("solve", "check_diagonal", (1, 1, 1), (256, 1, 1), 1),
        site.launch("solve", "solve_tri", grid, (64, 1, 1), 2),
    ]
