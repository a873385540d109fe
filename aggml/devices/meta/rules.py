"""How ops treat divided operands: the states that an op wants, and the state of its result.

Here: a table of functions by op. An op that is not in the table wants all operands whole, and every
device computes all of it. Not here: converting one state to another (rounds.py).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.devices.meta.division import SUM, WHOLE, can_divide, seen
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.tensor import Tensor

__all__ = ["Wanted", "all_whole", "wanted"]


class Wanted(NamedTuple):
    """The states that the sources must have, and the state of the result."""

    sources: tuple[int, ...]
    result: int


Rule = "Callable[[Tensor, Sequence[int], int], Wanted | None]"


def all_whole(node: Tensor) -> Wanted:
    """All states whole: every device computes the whole node."""
    return Wanted((WHOLE,) * len(node.src), WHOLE)


def wanted(node: Tensor, states: Sequence[int], n: int) -> Wanted:
    """The states that a node wants on ``n`` devices.

    Args:
        node: computed, so no view.
        states: the present states of the sources; WHOLE for one that is missing.
        n: how many devices.
    """
    rule = _RULES.get(node.op)
    found = None if rule is None else rule(node, states, n)
    return all_whole(node) if found is None else found


def _source(node: Tensor, i: int) -> Tensor:
    found = node.src[i]
    assert found is not None
    return found


def _each(node: Tensor, states: Sequence[int], n: int) -> Wanted | None:
    """Element-wise ops; operands may be broadcast along axes where they have one element."""
    axis = states[0]
    if axis < 0 or _source(node, 0).ne != node.ne or not can_divide(node, axis, n):
        return None
    sources = [axis]
    for source in node.src[1:]:
        if source is None or source.ne[axis] == 1:
            sources.append(WHOLE)
        elif source.ne[axis] == node.ne[axis] and can_divide(source, axis, n):
            sources.append(axis)
        else:
            return None
    return Wanted(tuple(sources), axis)


def _moved(node: Tensor, states: Sequence[int], n: int) -> Wanted | None:
    """cont and dup, whose extents may differ from those of their source."""
    a, axis = _source(node, 0), states[0]
    if axis < 0:
        return None
    if a.ne == node.ne:
        return Wanted((axis,), axis)
    block, size = a.dtype.blck_size, a.dtype.type_size
    row = a.ne[0] // block * size
    nb = (size, row, row * a.ne[1], row * a.ne[1] * a.ne[2])
    found = seen(a.ne, (nb, axis, n), a, (node.ne, node.nb, 0)) if a.dtype is node.dtype else None
    return None if found is None else Wanted((axis,), found.axis)


def _gated(node: Tensor, states: Sequence[int], n: int) -> Wanted | None:
    """Gated units: gates in a tensor of their own, or in the same rows as the gated values."""
    if len(node.src) > 1 and node.src[1] is not None:
        return _each(node, states, n)
    axis = states[0]
    return Wanted((axis,), axis) if axis > 0 else None


def _rows(node: Tensor, states: Sequence[int], n: int) -> Wanted | None:
    """Ops that work row by row."""
    axis = states[0]
    return Wanted((axis,) + (WHOLE,) * (len(node.src) - 1), axis) if axis > 0 else None


def _turned(node: Tensor, states: Sequence[int], n: int) -> Wanted | None:
    """rope: divided by heads, which are treated alike, never by tokens."""
    return _rows(node, states, n) if states[0] in (1, 3) else None


def _float(node: Tensor, slot: int) -> float:
    return float(struct.unpack_from("<f", node.op_params, 4 * slot)[0])


def _soft_max(node: Tensor, states: Sequence[int], n: int) -> Wanted | None:
    """soft_max by heads: one mask for all, a sink per head; no ALiBi, whose slopes count heads."""
    mask = node.src[1] if len(node.src) > 1 else None
    alike = mask is None or mask.ne[2] == 1
    if states[0] != 2 or not alike or _float(node, 1) != 0.0:
        return None
    sinks = node.src[2] if len(node.src) > 2 else None
    sources = (2, WHOLE, WHOLE if sinks is None else 0)
    return Wanted(sources[: len(node.src)], 2)


def _attention(node: Tensor, states: Sequence[int], n: int) -> Wanted | None:
    """Attention by heads: each device has heads of queries with their keys and values."""
    q, k, v = _source(node, 0), _source(node, 1), _source(node, 2)
    mask = node.src[3] if len(node.src) > 3 else None
    if 2 not in states[:3] or not all(can_divide(t, 2, n) for t in (q, k, v)):
        return None
    if (mask is not None and mask.ne[2] != 1) or _float(node, 1) != 0.0:
        return None
    sources = [2, 2, 2, WHOLE, *[0] * (len(node.src) - 4)][: len(node.src)]
    return Wanted(
        tuple([WHOLE if s is None else want for s, want in zip(node.src, sources, strict=True)]), 1
    )


def _product(node: Tensor, states: Sequence[int], n: int) -> Wanted | None:
    """Products, by the weights' state: rows give rows, depth gives summands, heads give heads."""
    a, b = _source(node, 0), _source(node, 1)
    if states[0] == 1:
        return Wanted((1, WHOLE), 0)
    if states[0] == 0:
        return Wanted((0, 0), SUM)
    if states[0] == 2 and can_divide(b, 2, n):
        return Wanted((2, 2), 2)
    if states[0] == WHOLE and states[1] == 1:
        return Wanted((WHOLE, 1), 1)
    if states[0] == WHOLE and states[1] == 2 and a.ne[2] == 1:
        return Wanted((WHOLE, 2), 2)
    return None


def _of_experts(node: Tensor, states: Sequence[int], n: int) -> Wanted | None:
    """mul_mat_id: as `_product`, for the matrices that ids choose."""
    if states[0] == 1:
        return Wanted((1, WHOLE, WHOLE), 0)
    return Wanted((0, 0, WHOLE), SUM) if states[0] == 0 else None


def _taken(node: Tensor, states: Sequence[int], n: int) -> Wanted | None:
    """get_rows: each device takes its part of each row."""
    return Wanted((0, WHOLE), 0) if states[0] == 0 else None


_RULES: Final[dict[str, Callable[[Tensor, Sequence[int], int], Wanted | None]]] = {
    **dict.fromkeys(in_group("unary"), _each),
    **dict.fromkeys(("add", "sub", "mul", "div", "scale"), _each),
    **dict.fromkeys(("cont", "dup"), _moved),
    **dict.fromkeys(in_group("glu"), _gated),
    **dict.fromkeys(in_group("norm"), _rows),
    "rope": _turned,
    "soft_max": _soft_max,
    "flash_attn_ext": _attention,
    "mul_mat": _product,
    "mul_mat_id": _of_experts,
    "get_rows": _taken,
}
