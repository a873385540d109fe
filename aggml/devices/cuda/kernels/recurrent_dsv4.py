"""Launches of lightning_indexer (a block for each key) and dsv4_hc_comb (a thread a token)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import ceil
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite
    from aggml.tensor import Tensor

__all__ = ["OPS", "launches", "refuses"]

#: The ops that are launched here.
OPS = in_group("recurrent_dsv4")

_WIDEST = 48 * 1024 // 4  # floats of a key in shared memory


def refuses(node: Tensor) -> bool:
    """Whether a key does not fit into shared memory."""
    q = node.src[0]
    assert q is not None
    return node.op == "lightning_indexer" and q.ne[0] > _WIDEST


def launches(site: NodeSite) -> list[Launch]:
    """One launch."""
    node = site.node
    if node.op == "dsv4_hc_comb":
        grid = (min(ceil(node.ne[2], 64), 1 << 20), 1, 1)
        return [site.launch("recurrent_dsv4", node.op, grid, (64, 1, 1), 3)]
    if node.op in {"dsv4_hc_pre", "dsv4_hc_post"}:
        n_src = 2 if node.op == "dsv4_hc_pre" else 4
        return site.per_element("recurrent_dsv4", node.op, node.nelements, n_src)
    q = node.src[0]
    assert q is not None
    grid = (min(node.ne[0] * node.ne[3], 1 << 20), 1, 1)
    shared = 4 * q.ne[0]
    return [site.launch("recurrent_dsv4", node.op, grid, (128, 1, 1), 4, shared=shared)]
