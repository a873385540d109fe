"""Launches of ops that reduce to one number: blocks write partial sums, which are then added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import ceil

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite
    from aggml.tensor import Tensor

__all__ = ["OPS", "launches", "scratch"]

#: The ops that are launched here.
OPS = ("sum", "count_equal", "cross_entropy_loss")

_BLOCKS = 1024


def _parts(node: Tensor) -> int:
    a = node.src[0]
    assert a is not None
    if node.op == "cross_entropy_loss":
        return 0 if a.ne[0] == 0 else a.nrows
    return min(ceil(a.nelements, 1024), _BLOCKS)


def scratch(node: Tensor) -> int:
    """Bytes of scratch: a double for each part."""
    return 8 * _parts(node)


def launches(site: NodeSite) -> list[Launch]:
    """Two launches."""
    node = site.node
    a = node.src[0]
    assert a is not None
    parts = _parts(node)
    rows = a.nrows if node.op == "cross_entropy_loss" else 0
    found = []
    kernel, n_src = {
        "sum": ("sum_parts", 1),
        "count_equal": ("count_parts", 2),
        "cross_entropy_loss": ("entropy_parts", 2),
    }[node.op]
    if parts > 0:
        grid = (min(parts, 1 << 20), 1, 1)
        found.append(site.launch("reduce", kernel, grid, (256, 1, 1), n_src))
    found.append(site.launch("reduce", "total", (1, 1, 1), (256, 1, 1), 1, aux=[parts, rows]))
    return found
