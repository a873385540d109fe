"""Launches of recurrent ops: a warp for each row of a state, or a thread for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.devices.cuda.kernels.rows import check_ids
from aggml.devices.cuda.pack import ceil
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import NodeSite
    from aggml.tensor import Tensor

__all__ = ["OPS", "launches", "refuses"]

#: The ops that are launched here.
OPS = in_group("recurrent")

_WIDEST = 256  # elements of a row that a warp keeps in registers


def _source(node: Tensor, i: int) -> Tensor:
    tensor = node.src[i]
    assert tensor is not None
    return tensor


def refuses(node: Tensor) -> bool:
    """Whether the state is too wide for a warp, or the grid would be empty."""
    match node.op:
        case "ssm_conv":
            return False
        case "ssm_scan":
            return _source(node, 0).ne[0] > _WIDEST or _source(node, 1).is_empty
        case "gated_delta_net":
            return _source(node, 2).ne[0] > _WIDEST or _source(node, 2).is_empty
        case "rwkv_wkv7":
            return _source(node, 0).ne[0] > _WIDEST or _source(node, 0).is_empty
        case _:
            return _source(node, 0).is_empty


def launches(site: NodeSite) -> list[Launch]:
    """One launch; for ssm_scan, another one before it that checks the indices."""
    node = site.node

    def warps(kernel: str, n: int, n_src: int) -> Launch:
        grid = (min(ceil(n, 4), 1 << 20), 1, 1)
        return site.launch("recurrent", kernel, grid, (128, 1, 1), n_src)

    match node.op:
        case "ssm_conv":
            return site.per_element("recurrent", "ssm_conv", node.nelements, 2)
        case "ssm_scan":
            s, x = _source(node, 0), _source(node, 1)
            check = check_ids(site, site.src(6), s.ne[3])
            return [check, warps("ssm_scan", s.ne[1] * s.ne[2] * x.ne[3], 7)]
        case "gated_delta_net":
            v = _source(node, 2)
            return [warps("delta", v.ne[0] * v.ne[1] * v.ne[3], 6)]
        case "rwkv_wkv7":
            r = _source(node, 0)
            return [warps("wkv7", r.ne[0] * r.ne[1] * _source(node, 6).ne[1], 7)]
        case _:  # rwkv_wkv6, gated_linear_attn
            k, state = _source(node, 0), _source(node, 5 if node.op == "rwkv_wkv6" else 4)
            grid = (ceil(k.ne[0], 64), min(k.ne[1] * state.ne[1], 65535), 1)
            return [site.launch("recurrent", "outer", grid, (64, 1, 1), 6)]
