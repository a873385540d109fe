"""Attention: tiles on tensor cores, keys split over blocks for few rows, a plain kernel else."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml.devices.cuda.launch import Gpu
from aggml.devices.cuda.pack import ceil
from aggml.dtype import DType
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Launch
    from aggml.devices.cuda.pack import Site
    from aggml.tensor import Tensor

__all__ = ["OPS", "launches", "modules", "refuses", "scratch_on"]

#: What is launched from here.
OPS = in_group("flash_attn_ext")

_KEYS = 32
_BLOCKS = 512  # enough for two waves on a large GPU
_DV = (64, 128, 256)
_Y = 65535


def modules() -> list[str]:
    """Every module of tiles."""
    return [_module(*kind) for kind in itertools.product(_DV, (False, True), (False, True))]


def _module(dv: int, bf16: bool, blocks: bool) -> str:
    return f"flash_attn_ext_tiles[WIDTH={dv},BF16_TILES={int(bf16)},BLOCKS={int(blocks)}]"


def _quantized(k: Tensor, v: Tensor) -> bool:
    return k.dtype.is_quantized or v.dtype.is_quantized


@dataclass(frozen=True)
class _Plan:
    dv: int  # columns of V of a tile; 0: the plain kernel
    stride: int  # words of a row of q and k in shared memory
    warps: int
    shared: int
    splits: int
    split_keys: int


def _operands(node: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = node.src[0], node.src[1], node.src[2]
    assert q is not None
    assert k is not None
    assert v is not None
    return q, k, v


def _plan(node: Tensor, gpu: Gpu) -> _Plan:
    q, k, v = _operands(node)
    dv = next((n for n in _DV if n >= v.ne[0]), 0)
    stride = ceil(q.ne[0], 16) * 8 + 4
    rows, planes = q.ne[2] // k.ne[2] * q.ne[1], k.ne[2] * q.ne[3]
    if dv and planes <= _Y:
        for warps in (4, 2, 1):
            shared = 4 * (dv * 20 + (16 * warps + _KEYS) * stride + 4)
            if shared > gpu.shared or (rows <= 8 * warps and warps > 1):
                continue
            blocks = ceil(rows, 16 * warps) * planes
            most = min(ceil(k.ne[1], 4 * _KEYS), 128)
            splits = max(1, min(most, _BLOCKS // blocks))
            split_keys = max(1, ceil(ceil(k.ne[1], _KEYS), splits)) * _KEYS
            return _Plan(dv, stride, warps, shared, max(1, ceil(k.ne[1], split_keys)), split_keys)
    width = max(q.ne[0], v.ne[0])
    keys = (gpu.shared // 4 - q.ne[0] - v.ne[0]) // (width + 1)
    keys = min(keys, 32)
    shared = 4 * (q.ne[0] + v.ne[0] + keys * (width + 1))
    return _Plan(0, 0, 4, shared, 1, keys)


def refuses(node: Tensor) -> bool:
    """Heads so wide that not even one key fits, in what every GPU has."""
    return node.src[0] is not None and not node.is_empty and _plan(node, Gpu()).split_keys < 1


def scratch_on(node: Tensor, gpu: Gpu) -> int:
    """Sums of each split: columns of V, the maximum, the sum of weights."""
    q, _, v = _operands(node)
    plan = _plan(node, gpu)
    return 0 if plan.splits == 1 else 4 * (v.ne[0] + 2) * plan.splits * q.nrows


def launches(site: Site) -> list[Launch]:
    """One launch, or two where keys are split."""
    q, k, v = _operands(site.node)
    plan = _plan(site.node, site.gpu)
    rows, planes = q.ne[2] // k.ne[2] * q.ne[1], k.ne[2] * q.ne[3]
    per_row = (min(rows * planes, 1 << 20), 1, 1)
    if plan.dv == 0:
        aux = [plan.split_keys]
        return [
            site.launch(
                "flash_attn_ext",
                "attend_rows",
                per_row,
                (128, 1, 1),
                5,
                aux=aux,
                shared=plan.shared,
            )
        ]
    aligned = int(
        all(
            o.data % 16 == 0
            and all(s % 16 == 0 for n, s in zip(o.ne[1:], o.nb[1:], strict=True) if n > 1)
            for o in (site.src(1), site.src(2))
        )
    )
    module = _module(plan.dv, k.dtype in {DType.F32, DType.BF16}, _quantized(k, v))
    grid = (ceil(rows, 16 * plan.warps), planes, plan.splits)
    aux = [plan.stride, plan.split_keys, aligned]
    block = (32 * plan.warps, 1, 1)
    found = [site.launch(module, "attend_tiles", grid, block, 5, aux=aux, shared=plan.shared)]
    if plan.splits > 1:
        found.append(
            site.launch("flash_attn_ext", "combine", per_row, (128, 1, 1), 5, aux=[plan.splits])
        )
    return found
