"""Launches of rope. Factors of all pairs and positions are computed here, in double."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from aggml.devices.cuda.pack import ceil
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite, Operand

__all__ = ["OPS", "launch", "launches"]

#: The ops that are launched here.
OPS = in_group("rope")


def _pair_of_turns(n_dims: int, n_ctx: int, turns: float, base: float) -> float:
    """The pair that makes ``turns`` turns over the context of the training (YaRN)."""
    return n_dims * math.log(n_ctx / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))


def launches(site: NodeSite) -> list[Launch]:
    """One launch."""
    return [launch(site, f"rope_{site.node.dtype.type_name}")]


def launch(site: NodeSite, kernel: str, operands: Sequence[Operand] | None = None) -> Launch:
    """One launch: blocks of 32 pairs and 8 heads.

    Args:
        site: of the rope.
        kernel: of rope.cu.
        operands: used instead of the node and its three sources; None: the node and these.
    """
    node = site.node
    raw = node.op_params
    _, n_dims, mode, _, n_ctx = struct.unpack_from("<5i", raw)
    base, scale, mix, attn, fast, slow = struct.unpack_from("<6f", raw, 20)
    step = math.log2(base) * -2.0 / n_dims if n_dims and base > 0 else 0.0
    low, high = 0.0, 0.0
    if mix != 0.0:
        try:
            low = max(0.0, math.floor(_pair_of_turns(n_dims, n_ctx, fast, base)))
            high = min(n_dims - 1.0, math.ceil(_pair_of_turns(n_dims, n_ctx, slow, base)))
            attn *= 1.0 + 0.1 * math.log(1.0 / scale)
        except (ValueError, ZeroDivisionError, OverflowError):  # what C makes NaN
            low = high = attn = math.nan
    aux = struct.unpack("<4q", struct.pack("<4d", step, low, high, attn))
    dims = 2 * n_dims if mode == 24 else n_dims
    grid = (max(1, ceil(dims // 2, 32)), min(node.ne[2] * node.ne[3], 65535), 1)
    n_src = 3 if operands is None else len(operands) - 1
    return site.launch("rope", kernel, grid, (32, 8, 1), n_src, operands=operands, aux=aux)
