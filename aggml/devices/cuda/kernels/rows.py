"""Launches of ops on rows that indices choose: the first checks the indices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.kernels import quantize
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite, Operand

__all__ = ["OPS", "check_ids", "launches"]

#: The ops that are launched here.
OPS = (*in_group("rows"), *in_group("rows_back"), *in_group("add_id"))


def check_ids(site: NodeSite, ids: Operand, rows: int, *, none: bool = False) -> Launch:
    """The launch that reports a fault if an index is not within 0 and ``rows`` - 1.

    With ``none``, indices may be negative.
    """
    operands = [site.dst, ids]
    return site.launch(
        "rows", "check_ids", (1, 1, 1), (256, 1, 1), 1, operands=operands, aux=[rows, int(none)]
    )


def launches(site: NodeSite) -> list[Launch]:
    """Two launches."""
    node = site.node
    a, b = node.src[0], node.src[1]
    assert a is not None
    assert b is not None
    match node.op:
        case "get_rows":
            check = check_ids(site, site.src(1), a.ne[1])
            groups = node.ne[0] // 32 * 4 if a.dtype.is_quantized else node.ne[0]
            return [check, *site.per_row("rows", "get_rows", node.nrows, groups, 2)]
        case "add_id":
            check = check_ids(site, site.src(2), b.ne[1])
            return [check, *site.per_row("rows", "add_id", node.nrows, node.ne[0], 3)]
        case "get_rows_back":
            check = check_ids(site, site.src(1), node.ne[1])
            return [check, *site.per_element("rows", "get_rows_back", node.nelements, 2)]
        case _:  # set_rows
            if a.is_empty:
                return []
            check = check_ids(site, site.src(1), node.ne[1])
            if node.dtype.is_quantized:
                return [check, *quantize.set_rows(site)]
            return [check, *site.per_row("rows", "set_rows", a.nrows, a.ne[0], 2)]
