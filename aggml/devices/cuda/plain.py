"""Families whose kernels walk the node as it is: which kernel computes an op, and in what grid.

Here: the table. Not here: families whose host part decides more (kernels/<family>.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import Site

__all__ = ["PLAIN", "plain"]

#: op -> module, kernel, number of operands, who gets threads: "e" each element of the node,
#: "r" each row of the node gets a block, "a" each row of source 0 does.
PLAIN: dict[str, tuple[str, str, int, str]] = {}


def plain(site: Site) -> list[Launch]:
    """The launch of an op of the table."""
    module, kernel, n_src, mode = PLAIN[site.node.op]
    if mode == "e":
        return site.per_element(module, kernel, site.node.nelements, n_src)
    tensor = site.node if mode == "r" else site.node.src[0]
    assert tensor is not None
    if tensor.is_empty:
        return []
    return site.per_row(module, kernel, tensor.nrows, tensor.ne[0], n_src)
