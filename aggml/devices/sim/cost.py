"""operations: the amount of arithmetic in a node, which a simulated device converts to time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aggml.ops.table import IDLE, OPS

if TYPE_CHECKING:
    from aggml.tensor import Tensor

__all__ = ["operations"]


def operations(node: Tensor) -> int:
    """Approximate floating point operations of a node: 2 k per element of a product, else 1."""
    n = math.prod(node.ne)
    first, second = (*node.src, None, None)[:2]
    op = OPS.get(node.op)
    units = None if op is None else op.units
    if units in ("DOTS", "EXPERTS") and first is not None:
        return 2 * n * first.ne[0]
    if units == "OUTER" and first is not None:
        return 2 * n * first.ne[1]
    if units == "KEYS" and first is not None and second is not None:
        return 4 * math.prod(first.ne) * second.ne[1]  # q k, then times v
    return 0 if node.op in IDLE else n
