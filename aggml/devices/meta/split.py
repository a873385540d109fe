"""How a tensor is split among devices: a part of an axis each, all of it, or a summand each.

Here: split states, how a leaf is split, which part a view shows on each device. Not here: how ops
treat split operands (rules.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aggml.tensor import Tensor

__all__ = [
    "SUM",
    "WHOLE",
    "Extents",
    "SplitAxis",
    "SplitState",
    "SplitView",
    "can_hold",
    "check_state",
    "state_by_name",
    "view_of_extents",
    "view_on_devices",
]

Extents = tuple[int, int, int, int]


class SplitAxis(IntEnum):
    """Along which axis a tensor is split (enum ggml_backend_meta_split_axis)."""

    AXIS_0 = 0
    AXIS_1 = 1
    AXIS_2 = 2
    AXIS_3 = 3
    MIRRORED = 10
    PARTIAL = 11

    @property
    def label(self) -> str:
        """ggml's name (ggml_backend_meta_split_axis_name): "0" to "3", "MIRRORED", "PARTIAL"."""
        return self.name.removeprefix("AXIS_")


@dataclass(frozen=True, slots=True)
class SplitState:
    """How a tensor lies on several devices (struct ggml_backend_meta_split_state).

    Attributes:
        axis: an axis in ggml's order: each device has a part along it. MIRRORED: each device has
            the whole tensor. PARTIAL: each has a summand; only nodes are so.
        segments: for an axis, one tuple for each segment of it, with the extent that each device
            has of this segment. Together they are the extent of the tensor. Most tensors have one
            segment. A tensor in which several matrices lie one behind the other (such as a fused
            QKV matrix) has one for each, so that each device gets a part of every matrix.
    """

    axis: SplitAxis
    segments: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(
        cls, axis: int, segments: Sequence[Sequence[int]], repeats: Sequence[int] | None = None
    ) -> SplitState:
        """A state with repeated segments.

        Args:
            axis: 0 to 3.
            segments: for each segment, the extent of each device (``ne`` of ggml's struct).
            repeats: how often each segment comes (``nr``); None: once.

        Raises:
            InvalidArgument: the axis is none, or the lengths differ.
        """
        if axis not in (0, 1, 2, 3):
            raise InvalidArgument(f"[SplitState.of] axis={axis}: expected 0, 1, 2 or 3")
        counts = [1] * len(segments) if repeats is None else list(repeats)
        if len(counts) != len(segments):
            raise InvalidArgument(
                f"[SplitState.of] {len(counts)} repeats for {len(segments)} segments"
            )
        rows = [tuple(s) for s, count in zip(segments, counts, strict=True) for _ in range(count)]
        return cls(SplitAxis(axis), tuple(rows))

    @property
    def is_divided(self) -> bool:
        """Whether each device has a part along an axis."""
        return self.axis <= SplitAxis.AXIS_3

    def part(self, ne: Extents, i: int) -> Extents:
        """The extents of device ``i``'s part of a tensor of extents ``ne``."""
        if not self.is_divided:
            return ne
        found = list(ne)
        found[self.axis] = sum(segment[i] for segment in self.segments)
        return found[0], found[1], found[2], found[3]

    def along(self, axis: int) -> SplitState:
        """The same segments along another axis."""
        return SplitState(SplitAxis(axis), self.segments)

    def times(self, factor: Fraction | int) -> SplitState | None:
        """All extents multiplied; None if some are then no whole numbers."""
        rows = [tuple([extent * factor for extent in segment]) for segment in self.segments]
        if any(Fraction(extent).denominator != 1 for row in rows for extent in row):
            return None
        return SplitState(self.axis, tuple([tuple(map(int, row)) for row in rows]))

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """Consecutive parts of the axis: device, begin in the tensor, begin in the part, extent."""
        at = 0
        local = [0] * len(self.segments[0]) if self.segments else []
        for segment in self.segments:
            for i, extent in enumerate(segment):
                yield i, at, local[i], extent
                at += extent
                local[i] += extent


#: Each device has the whole tensor; each has a summand.
WHOLE: Final = SplitState(SplitAxis.MIRRORED)
SUM: Final = SplitState(SplitAxis.PARTIAL)

# Names of leafs in GGUF files, and of the caches of `aggml.models`, with the axes to try in turn.
# Weights divided by rows (axis 1) give rows of the result. Weights divided along the depth (axis 0)
# give summands, which are then added up.
_DIVIDED: Final = (
    (r"(blk\.\d+\.(attn_(q|k|v|qkv)|ffn_(gate|up)(_exps|_shexp)?)|output)\.weight", (1, 0)),
    (r"blk\.\d+\.(attn_output|ffn_down(_exps|_shexp)?)\.weight", (0, 1)),
    (r"blk\.\d+\.(attn_(q|k|v|qkv)|ffn_(gate|up))\.bias", (0,)),
    (r"token_embd\.weight", (0,)),
    (r"cache_[kv]\.\d+", (0,)),
)
_PATTERNS: Final = tuple([(re.compile(pattern), axes) for pattern, axes in _DIVIDED])


def state_by_name(leaf: Tensor, shares: Sequence[Fraction]) -> SplitState:
    """How a leaf with a known name is split; WHOLE for one that is not known, or too small.

    Args:
        leaf: its name in GGUF files says along which axes it may be split.
        shares: of the devices; together 1. Parts are whole blocks. With equal shares all parts are
            equal, or the axis is not split.
    """
    for pattern, axes in _PATTERNS:
        if pattern.fullmatch(leaf.name):
            for exact in (True, False):
                for axis in axes:
                    found = _divide(leaf, axis, shares, exact=exact)
                    if found is not None:
                        return found
    return WHOLE


def _divide(
    tensor: Tensor, axis: int, shares: Sequence[Fraction], *, exact: bool
) -> SplitState | None:
    """An axis in parts of these shares; None if a device would get nothing, or not just that."""
    unit = _unit(tensor, axis)
    if tensor.ne[axis] % unit:
        return None
    count = tensor.ne[axis] // unit
    borders = [share * count for share in accumulate(shares)]
    if any(border.denominator != 1 for border in borders) and (exact or len({*shares}) == 1):
        return None
    ends = [round(border) for border in borders]
    parts = [(end - begin) * unit for begin, end in zip([0, *ends], ends, strict=False)]
    return SplitState(SplitAxis(axis), (tuple(parts),)) if min(parts) > 0 else None


def _unit(tensor: Tensor, axis: int) -> int:
    return tensor.dtype.blck_size if axis == 0 else 1


def can_hold(tensor: Tensor, state: SplitState) -> bool:
    """Whether a tensor can be split so: its extent in all, in whole blocks, some for each."""
    if not state.is_divided:
        return True
    unit = _unit(tensor, state.axis)
    parts = [extent for segment in state.segments for extent in segment]
    return sum(parts) == tensor.ne[state.axis] and all(p > 0 and p % unit == 0 for p in parts)


def check_state(leaf: Tensor, state: object, n: int) -> SplitState:
    """The state that a function of the user gave for a leaf.

    Raises:
        InvalidArgument: it is no state of this leaf on ``n`` devices.
    """
    what = "[MetaDevice] the function 'split' gave"
    if not isinstance(state, SplitState):
        raise InvalidArgument(f"{what} {state!r} for {leaf!r}: expected a SplitState, or None")
    if state.axis is SplitAxis.PARTIAL:
        raise InvalidArgument(
            f"{what} PARTIAL for {leaf!r}: only nodes have summands; give an axis, or MIRRORED"
        )
    if any(len(segment) != n for segment in state.segments):
        raise InvalidArgument(
            f"{what} {state!r} for {leaf!r}: a segment has one extent for each of {n} devices"
        )
    if not can_hold(leaf, state):
        unit = _unit(leaf, state.axis)
        raise InvalidArgument(
            f"{what} {state!r} for {leaf!r}: its extents must be above 0, "
            f"{'multiples of ' + str(unit) + ' (the block) and ' if unit > 1 else ''}"
            f"together {leaf.ne[state.axis]}"
        )
    return state


class SplitView(NamedTuple):
    """The part of a view that lies on each device.

    Attributes:
        state: how the view is split.
        views: for each device, extents, strides and offset of the view of its part.
    """

    state: SplitState
    views: tuple[tuple[Extents, Extents, int], ...]


def view_on_devices(root: Tensor, state: SplitState, view: Tensor) -> SplitView | None:
    """A view of a tensor that is split along an axis, as seen on each device.

    Args:
        root: lies without gaps.
        state: how it is split, along an axis.
        view: shows bytes of ``root``.

    Returns:
        None if the view is not split where the bytes are. Then it needs the whole tensor.
    """
    return view_of_extents((root.ne, root.nb), state, root, (view.ne, view.nb, view.view_offs))


def view_of_extents(
    storage: tuple[Extents, Extents],
    state: SplitState,
    like: Tensor,
    view: tuple[Extents, Extents, int],
) -> SplitView | None:
    """`view_on_devices` for plain extents instead of tensors.

    Args:
        storage: its extents and strides.
        state: how it is split, along an axis.
        like: a tensor of the element type.
        view: extents, strides and offset of the view.
    """
    ne, nb = storage
    unit = _unit(like, state.axis)
    span = nb[state.axis] * (ne[state.axis] // unit)  # bytes from a device's part to its next
    lengths = [[e // unit * nb[state.axis] for e in segment] for segment in state.segments]
    block = like.dtype.blck_size
    extents = (view[0][0] // block, *view[0][1:])
    for axis in range(4):
        if extents[axis] > 1 and view[1][axis] < span:
            segments = _segments_along(axis, like.dtype.type_size, (extents, view), lengths)
            if segments is not None:
                return _view_along(axis, block, view, lengths, segments)
    return None


def _segments_along(
    axis: int,
    size: int,
    view: tuple[tuple[int, ...], tuple[Extents, Extents, int]],
    lengths: list[list[int]],
) -> range | None:
    """The segments that a view shows along one of its axes, if these are whole ones.

    The bytes along the other axes must lie within one unit of this axis, or whole spans apart.
    """
    extents, (_, nb, offset) = view
    span = sum(map(sum, lengths))
    unit = nb[axis]
    inner = offset % span
    below = inner % unit + size  # bytes of a unit that are shown
    for k in range(4):
        if k == axis or extents[k] == 1:
            continue
        if nb[k] < span:
            below += nb[k] * (extents[k] - 1)
        elif nb[k] % span:
            return None
    borders = [0, *accumulate(map(sum, lengths))]
    begin, end = inner - inner % unit, inner - inner % unit + unit * extents[axis]
    if below > unit or begin not in borders or end not in borders:
        return None
    found = range(borders.index(begin), borders.index(end))
    whole = all(length % unit == 0 for s in found for length in lengths[s])
    return found if whole else None


def _view_along(
    axis: int,
    block: int,
    view: tuple[Extents, Extents, int],
    lengths: list[list[int]],
    segments: range,
) -> SplitView:
    ne, nb, offset = view
    span = sum(map(sum, lengths))
    outer, inner = divmod(offset, span)
    unit = nb[axis]
    each = block if axis == 0 else 1
    state = SplitState(
        SplitAxis(axis),
        tuple([tuple([length // unit * each for length in lengths[s]]) for s in segments]),
    )
    views = []
    for i in range(len(lengths[0])):
        part = sum(segment[i] for segment in lengths)
        begin = sum(lengths[s][i] for s in range(segments.start))
        new_ne, new_nb = list(state.part(ne, i)), list(nb)
        for k in range(4):
            if ne[k] == 1 and k > 0:
                new_nb[k] = new_nb[k - 1] * (new_ne[k - 1] // (block if k == 1 else 1))
            elif nb[k] >= span and ne[k] > (block if k == 0 else 1):
                new_nb[k] = nb[k] // span * part
        views.append(
            (
                (new_ne[0], new_ne[1], new_ne[2], new_ne[3]),
                (new_nb[0], new_nb[1], new_nb[2], new_nb[3]),
                outer * part + begin + inner % unit,
            )
        )
    return SplitView(state, tuple(views))
