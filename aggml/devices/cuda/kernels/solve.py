"""solve_tri: a look at the diagonals, then a thread for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import ceil
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import Site

__all__ = ["OPS", "launches"]

#: What is launched from here.
OPS = in_group("solve")


def launches(site: Site) -> list[Launch]:
    """Two launches."""
    ne = site.node.ne
    grid = (min(ceil(ne[0] * ne[2] * ne[3], 64), 1 << 20), 1, 1)
    return [
        site.launch("solve", "check_diagonal", (1, 1, 1), (256, 1, 1), 1),
        site.launch("solve", "solve_tri", grid, (64, 1, 1), 2),
    ]
