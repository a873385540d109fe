"""Chains around the products of experts: normalized weights, and the weighted sum; one launch each.

Here: which nodes form such chains, and their launches. Not here: the experts' products
(mul_mat.py), which chains are safe (aggml/plan/fusion.py), the kernels (`shares` in rows.cu,
`weigh` in binary.cu).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.devices.cuda.once import are_sorted
from aggml.devices.cuda.pack import MISSING, NodeSite, ceil
from aggml.dtype import DType
from aggml.plan.fusion import ChainStage, FusionChain

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Address, Gpu, Launch
    from aggml.plan.fusion import Readers
    from aggml.tensor import Tensor

__all__ = ["find", "is_of_experts", "launches"]

_BEHIND: Final = 2  # sums that may follow the experts' sum: a shared expert's, the residual
_THREADS: Final = 256
_GRID: Final = 65535
_MOST: Final = 128  # the most weights that a warp sums in the same order as sum_rows


def find(node: Tensor, readers: Readers) -> FusionChain | None:
    """The chain whose first sum is ``node``, or the chain that the division ``node`` ends."""
    if node.op == "div":
        return _shares(node, readers)
    return _sums(node, readers) if node.op == "add" else None


def _shares(node: Tensor, readers: Readers) -> FusionChain | None:
    """Weights gathered by sorted indices and divided by their sum, which is clamped from below."""
    values, whole = node.src[:2]
    if values is None or whole is None or whole.op != "clamp" or whole.src[0] is None:
        return None
    total, rows = whole.src[0], values.view_src
    if total.op != "sum_rows" or total.src[0] is not values or rows is None:
        return None
    if rows.op != "get_rows" or not _are_shares(rows, values, node):
        return None
    mine = readers.only_viewed(rows, 1) and readers.only_viewed(total, 1)
    mine = mine and readers.reads[values] == 2 and readers.reads[whole] == 1
    if not mine or readers.is_watched(values) or readers.is_watched(whole):
        return None
    stages = (
        ChainStage(total, None, False),
        ChainStage(whole, None, False),
        ChainStage(node, None, False),
    )
    return FusionChain((rows, total, whole, node), stages)


def _are_shares(rows: Tensor, values: Tensor, node: Tensor) -> bool:
    """Whether [1, used, tokens] is gathered from [1, all, tokens] and divided as [used, tokens]."""
    table, ids = rows.src[:2]
    if table is None or ids is None or table.dtype is not DType.F32:
        return False
    _, used, tokens, _ = rows.ne
    shapes = table.ne[0] == 1 and table.ne[3] == 1 and values.ne == node.ne == (used, tokens, 1, 1)
    whole = values.view_offs == 0 and values.is_contiguous and node.is_contiguous
    plain = values.dtype is DType.F32 and used <= _MOST
    return shapes and whole and plain and are_sorted(ids, table.ne[1])


def _sums(node: Tensor, readers: Readers) -> FusionChain | None:
    """Sums that add each part of one weighted product once; ``node`` is the first sum."""
    first = node.src[0]
    weighed = None if first is None else first.view_src
    if weighed is None or not _is_product(weighed, readers):
        return None
    used = weighed.ne[1]
    sums: list[Tensor] = []
    for i in range(1, used):
        before, total = (sums[-1], readers.next_of(sums[-1])) if sums else (first, node)
        if total is None or total.op != "add" or total.src[0] is not before:
            return None
        if not all(_is_part(part, k, total, weighed, readers) for part, k in _parts(total, i)):
            return None
        sums.append(total)
    stages = [ChainStage(sums[0], None, False)]
    for _ in range(_BEHIND):
        added = _behind(sums[-1], readers)
        if added is None:
            break
        sums.append(added.node)
        stages.append(added)
    return FusionChain((weighed, *sums), tuple(stages)) if sums[-1].is_contiguous else None


def is_of_experts(chain: FusionChain) -> bool:
    """Whether a chain is one of `find`."""
    return chain.nodes[0].op in {"mul", "get_rows"} and chain.stages[0].node is chain.nodes[1]


def _is_product(node: Tensor, readers: Readers) -> bool:
    """Whether it is [columns, used, tokens] times a weight per used expert, read only by views."""
    if node.op != "mul" or node.dtype is not DType.F32 or node.ne[3] != 1 or node.ne[1] < 2:
        return False
    a, b = node.src[:2]
    if a is None or b is None or a.dtype is not DType.F32 or b.dtype is not DType.F32:
        return False
    if a.ne != node.ne or b.ne != (1, *node.ne[1:]) or a.nb[0] != 4 or not node.is_contiguous:
        return False
    return readers.only_viewed(node, node.ne[1])


def _parts(total: Tensor, i: int) -> list[tuple[Tensor | None, int]]:
    """The operands of sum ``i`` that should be parts of the product, with their numbers."""
    return [(total.src[1], i)] if i > 1 else [(total.src[0], 0), (total.src[1], 1)]


def _is_part(part: Tensor | None, i: int, total: Tensor, weighed: Tensor, readers: Readers) -> bool:
    """Whether it is the result of expert ``i`` for each token, and only ``total`` reads it."""
    if part is None or part.view_src is not weighed or part.dtype is not DType.F32:
        return False
    columns, _, tokens, _ = weighed.ne
    side_by_side = tokens == 1 or part.nb[1] == weighed.nb[2]
    place = part.view_offs == i * weighed.nb[1] and part.nb[0] == 4 and side_by_side
    alone = readers.reader.get(part) is total and not readers.is_watched(part)
    return part.ne == (columns, tokens, 1, 1) == total.ne and place and alone


def _behind(total: Tensor, readers: Readers) -> ChainStage | None:
    """The sum of equal size that directly follows, so no memory is reused in between."""
    node = readers.next_of(total)
    if node is None or node.op != "add" or readers.order[node] != readers.order[total] + 1:
        return None
    first = node.src[0] is not total
    other = node.src[0] if first else node.src[1]
    if other is None or other is total or other.dtype is not DType.F32 or other.nb[0] != 4:
        return None
    return ChainStage(node, other, first) if other.ne == node.ne == total.ne else None


def launches(chain: FusionChain, address: Address, scratch: int, gpu: Gpu) -> list[Launch]:
    """One launch, which writes the last node."""
    lead, last = chain.nodes[0], chain.nodes[-1]
    first = NodeSite(lead, address, scratch, 0, gpu)
    if lead.op == "get_rows":
        limits = NodeSite(chain.nodes[2], address, scratch, 0, gpu)
        operands = [limits.operand(last), first.src(0), first.src(1)]
        grid = (min(last.ne[1], _GRID), 1, 1)
        return [limits.launch("rows", "shares", grid, (32, 1, 1), 2, operands=operands)]
    site = NodeSite(last, address, scratch, 0, gpu)
    behind = [site.operand(x.other) for x in chain.stages[1:] if x.other is not None]
    operands = [site.dst, first.src(0), first.src(1), *behind, *[MISSING] * (_BEHIND - len(behind))]
    grid = (ceil(last.ne[0], _THREADS), min(last.ne[1], _GRID), 1)
    return [site.launch("binary", "weigh", grid, (_THREADS, 1, 1), 4, operands=operands)]
