"""Attention: tiles on tensor cores, or a plain kernel for wide heads.

If there are few rows of queries, several blocks divide the keys among themselves.
"""

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
    from aggml.devices.cuda.pack import NodeSite
    from aggml.tensor import Tensor

__all__ = ["OPS", "counters_on", "launches", "modules", "refuses", "scratch_on"]

#: The ops that are launched here.
OPS = in_group("flash_attn_ext")

_KEYS = 32
_BLOCKS = 512  # enough for two waves on a large GPU
_DV = (64, 128, 256, 512)  # columns of V, rounded up
_ALONE = 128  # most columns of V that a warp computes; wider heads are divided among warps
_Y = 65535


def modules() -> list[str]:
    """The names of all modules with kernels of tiles."""
    return [_module(*kind) for kind in itertools.product(_DV, (False, True), (False, True))]


def _module(dv: int, bf16: bool, blocks: bool) -> str:
    which = f"tiles[WIDTH={dv}" if dv <= _ALONE else f"wide[SHARE={dv // _ALONE}"
    return f"flash_attn_ext_{which},BF16_TILES={int(bf16)},BLOCKS={int(blocks)}]"


def _are_quantized(k: Tensor, v: Tensor) -> bool:
    return k.dtype.is_quantized or v.dtype.is_quantized


@dataclass(frozen=True)
class _Tiling:
    dv: int  # columns of V of a tile; 0: the plain kernel
    stride: int  # words of a row of q and k in shared memory
    rows: int  # of a block
    stages: int  # tiles of keys and values that shared memory holds
    shared: int
    splits: int
    split_keys: int


def _operands(node: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = node.src[0], node.src[1], node.src[2]
    assert q is not None
    assert k is not None
    assert v is not None
    return q, k, v


def _shares_rows(k: Tensor, v: Tensor) -> bool:
    """Whether V consists of the first columns of K, as in latent attention."""
    shape = (k.root is v.root, k.view_offs, k.dtype, k.nb, k.ne[1:])
    return shape == (True, v.view_offs, v.dtype, v.nb, v.ne[1:]) and v.ne[0] <= k.ne[0]


def _plan(node: Tensor, gpu: Gpu) -> _Tiling:
    q, k, v = _operands(node)
    dv = next((n for n in _DV if n >= v.ne[0]), 0)
    step = 16 if dv <= 2 * _ALONE else 32  # elements of a row that are multiplied at a time
    stride = ceil(q.ne[0], step) * step // 2 + 4
    rows, planes = q.ne[2] // k.ne[2] * q.ne[1], k.ne[2] * q.ne[3]
    if dv and planes <= _Y:
        a_tile = _KEYS * (stride + (0 if _shares_rows(k, v) and dv > _ALONE else dv // 2 + 4))
        most_rows = 64 if dv <= 2 * _ALONE else 32
        for tile_rows, stages in itertools.product((64, 32, 16), (2, 1)):
            each = stride + (0 if dv <= _ALONE else _KEYS + 4)  # a query, its scores
            shared = 4 * (tile_rows * each + stages * a_tile + 8)
            if tile_rows > most_rows or (rows <= tile_rows // 2 and tile_rows > 16):
                continue
            if shared > gpu.shared:
                continue
            blocks = ceil(rows, tile_rows) * planes
            most = min(ceil(k.ne[1], 4 * _KEYS), 128)
            splits = max(1, min(most, _BLOCKS // blocks))
            split_keys = max(1, ceil(ceil(k.ne[1], _KEYS), splits)) * _KEYS
            splits = max(1, ceil(k.ne[1], split_keys))
            return _Tiling(dv, stride, tile_rows, stages, shared, splits, split_keys)
    width = max(q.ne[0], v.ne[0])
    keys = (gpu.shared // 4 - q.ne[0] - v.ne[0]) // (width + 1)
    keys = min(keys, 32)
    shared = 4 * (q.ne[0] + v.ne[0] + keys * (width + 1))
    return _Tiling(0, 0, 1, 1, shared, 1, keys)


def refuses(node: Tensor) -> bool:
    """Whether heads are so wide that not one key fits into the shared memory of every GPU."""
    return node.src[0] is not None and not node.is_empty and _plan(node, Gpu()).split_keys < 1


def scratch_on(node: Tensor, gpu: Gpu) -> int:
    """Bytes of scratch: for each split the sums of V, the maximum and the sum of weights."""
    q, _, v = _operands(node)
    plan = _plan(node, gpu)
    return 0 if plan.splits == 1 else 4 * (v.ne[0] + 2) * plan.splits * q.nrows


def counters_on(node: Tensor, gpu: Gpu) -> int:
    """The number of counters of blocks: if keys are split, one for each tile of rows."""
    q, k, _ = _operands(node)
    plan = _plan(node, gpu)
    if plan.splits == 1:
        return 0
    return ceil(q.ne[2] // k.ne[2] * q.ne[1], plan.rows) * k.ne[2] * q.ne[3]


def launches(site: NodeSite) -> list[Launch]:
    """One launch. If keys are split, the last block of a tile of rows combines the parts."""
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
    module = _module(plan.dv, k.dtype in {DType.F32, DType.BF16}, _are_quantized(k, v))
    grid = (ceil(rows, plan.rows), planes, plan.splits)
    wide = plan.dv > _ALONE
    same = int(wide and _shares_rows(k, v))
    aux = [plan.stride, plan.split_keys, aligned, plan.stages, same]
    block = (2 * plan.rows * (plan.dv // _ALONE if wide else 1), 1, 1)
    kernel = "attend_wide" if wide else "attend_tiles"
    return [site.launch(module, kernel, grid, block, 5, aux=aux, shared=plan.shared)]
