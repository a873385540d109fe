"""How ops treat divided operands: the states that an op wants, and the state of its result.

Here: a table of functions by op. An op that is not in the table wants all operands whole, and every
device computes all of it. Not here: converting one state to another (rounds.py).
"""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.devices.meta.split import SUM, WHOLE, SplitState, can_hold, view_of_extents
from aggml.ops.table import in_group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.tensor import Tensor

__all__ = ["Wanted", "all_whole", "wanted_states"]


class Wanted(NamedTuple):
    """The states that the sources must have, and the state of the result."""

    sources: tuple[SplitState, ...]
    result: SplitState


def all_whole(node: Tensor) -> Wanted:
    """All states whole: every device computes the whole node."""
    return Wanted((WHOLE,) * len(node.src), WHOLE)


def wanted_states(node: Tensor, states: Sequence[SplitState]) -> Wanted:
    """The states that a node wants.

    Args:
        node: computed, so no view.
        states: the present states of the sources; WHOLE for one that is missing.
    """
    rule = _RULES.get(node.op)
    found = None if rule is None else rule(node, states)
    return all_whole(node) if found is None else found


def _source(node: Tensor, i: int) -> Tensor:
    found = node.src[i]
    assert found is not None
    return found


def _each(node: Tensor, states: Sequence[SplitState]) -> Wanted | None:
    """Element-wise ops; operands may be broadcast along axes where they have one element."""
    state = states[0]
    if not state.is_divided or _source(node, 0).ne != node.ne or not can_hold(node, state):
        return None
    sources = [state]
    for source in node.src[1:]:
        if source is None or source.ne[state.axis] == 1:
            sources.append(WHOLE)
        elif can_hold(source, state):
            sources.append(state)
        else:
            return None
    return Wanted(tuple(sources), state)


def _cont(node: Tensor, states: Sequence[SplitState]) -> Wanted | None:
    """cont and dup, whose extents may differ from those of their source."""
    a, state = _source(node, 0), states[0]
    if not state.is_divided:
        return None
    if a.ne == node.ne:
        return Wanted((state,), state)
    block, size = a.dtype.blck_size, a.dtype.type_size
    row = a.ne[0] // block * size
    nb = (size, row, row * a.ne[1], row * a.ne[1] * a.ne[2])
    found = (
        view_of_extents((a.ne, nb), state, a, (node.ne, node.nb, 0))
        if a.dtype is node.dtype
        else None
    )
    return None if found is None else Wanted((state,), found.state)


def _glu(node: Tensor, states: Sequence[SplitState]) -> Wanted | None:
    """Gated units: gates in a tensor of their own, or in the same rows as the gated values."""
    if len(node.src) > 1 and node.src[1] is not None:
        return _each(node, states)
    state = states[0]
    return Wanted((state,), state) if _is_by_rows(state) else None


def _rows(node: Tensor, states: Sequence[SplitState]) -> Wanted | None:
    """Ops that work row by row."""
    state = states[0]
    if not _is_by_rows(state):
        return None
    return Wanted((state,) + (WHOLE,) * (len(node.src) - 1), state)


def _is_by_rows(state: SplitState) -> bool:
    """Whether each device has whole rows."""
    return state.is_divided and state.axis > 0


def _rope(node: Tensor, states: Sequence[SplitState]) -> Wanted | None:
    """rope: divided by heads, which are treated alike, never by tokens."""
    return _rows(node, states) if states[0].axis in (1, 3) else None


def _float(node: Tensor, slot: int) -> float:
    return float(struct.unpack_from("<f", node.op_params, 4 * slot)[0])


def _soft_max(node: Tensor, states: Sequence[SplitState]) -> Wanted | None:
    """soft_max by heads: one mask for all, a sink per head; no ALiBi, whose slopes count heads."""
    mask = node.src[1] if len(node.src) > 1 else None
    alike = mask is None or mask.ne[2] == 1
    state = states[0]
    if state.axis != 2 or not alike or _float(node, 1) != 0.0:
        return None
    sinks = node.src[2] if len(node.src) > 2 else None
    sources = (state, WHOLE, WHOLE if sinks is None else state.along(0))
    return Wanted(sources[: len(node.src)], state)


def _attention(node: Tensor, states: Sequence[SplitState]) -> Wanted | None:
    """Attention by heads: each device has heads of queries with their keys and values."""
    q, k, v = _source(node, 0), _source(node, 1), _source(node, 2)
    mask = node.src[3] if len(node.src) > 3 else None
    if k.ne[2] != v.ne[2] or q.ne[2] % k.ne[2]:
        return None
    if (mask is not None and mask.ne[2] != 1) or _float(node, 1) != 0.0:
        return None
    group = q.ne[2] // k.ne[2]  # heads of queries for each head of keys
    shared = next((s for s in states[1:3] if s.axis == 2), None)
    if shared is None and states[0].axis == 2:
        shared = states[0].times(Fraction(1, group))
    heads = None if shared is None else shared.times(group)
    if shared is None or heads is None or not can_hold(q, heads) or not can_hold(k, shared):
        return None
    sources = [heads, shared, shared, WHOLE, *[heads.along(0)] * (len(node.src) - 4)]
    found = [
        WHOLE if s is None else want
        for s, want in zip(node.src, sources[: len(node.src)], strict=True)
    ]
    return Wanted(tuple(found), heads.along(1))


def _product(node: Tensor, states: Sequence[SplitState]) -> Wanted | None:
    """Products, by the weights' state: rows give rows, depth gives summands, heads give heads."""
    a, b = _source(node, 0), _source(node, 1)
    weights, columns = states[0], states[1]
    if weights.axis == 1:
        return Wanted((weights, WHOLE), weights.along(0))
    if weights.axis == 0:
        return Wanted((weights, weights), SUM)
    if weights.axis == 2 and b.ne[2] % a.ne[2] == 0:
        heads = weights.times(b.ne[2] // a.ne[2])
        return None if heads is None else Wanted((weights, heads), heads)
    if weights == WHOLE and columns.axis == 1:
        return Wanted((WHOLE, columns), columns)
    if weights == WHOLE and columns.axis == 2 and a.ne[2] == 1:
        return Wanted((WHOLE, columns), columns)
    return None


def _of_experts(node: Tensor, states: Sequence[SplitState]) -> Wanted | None:
    """mul_mat_id: as `_product`, for the matrices that ids choose."""
    state = states[0]
    if state.axis == 1:
        return Wanted((state, WHOLE, WHOLE), state.along(0))
    return Wanted((state, state, WHOLE), SUM) if state.axis == 0 else None


def _get_rows(node: Tensor, states: Sequence[SplitState]) -> Wanted | None:
    """get_rows: each device takes its part of each row."""
    return Wanted((states[0], WHOLE), states[0]) if states[0].axis == 0 else None


_RULES: Final[dict[str, Callable[[Tensor, Sequence[SplitState]], Wanted | None]]] = {
    **dict.fromkeys(in_group("unary"), _each),
    **dict.fromkeys(("add", "sub", "mul", "div", "scale"), _each),
    **dict.fromkeys(("cont", "dup"), _cont),
    **dict.fromkeys(in_group("glu"), _glu),
    **dict.fromkeys(in_group("norm"), _rows),
    "rope": _rope,
    "soft_max": _soft_max,
    "flash_attn_ext": _attention,
    "mul_mat": _product,
    "mul_mat_id": _of_experts,
    "get_rows": _get_rows,
}
