"""Transfers of parts: which bytes of an array belong to which device.

Here: the parts of a tensor, and arrays and ranges of bytes cut into the same parts. Not here:
enqueuing (backend.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aggml.devices.meta.memory import shard_of
from aggml.devices.meta.split import SplitState, view_on_devices
from aggml.errors import Unsupported
from aggml.tensor import checking, new_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.devices.meta.memory import Each
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Divided", "cuts", "division_of", "is_uneven", "pieces", "reads", "slice_of"]


class Divided(NamedTuple):
    """The parts of a tensor: how it is split, and a tensor on each device."""

    state: SplitState
    each: Each


def division_of(tensor: Tensor) -> Divided:
    """The parts of a placed tensor, which may be a view.

    Raises:
        Unsupported: a view that is not split where its bytes are.
        NotAllocated: it has no memory, or was not computed yet.
    """
    shard = shard_of(tensor.root)
    if tensor.view_src is None:
        return Divided(shard.state, shard.each)
    state = shard.state
    views = ((tensor.ne, tensor.nb, tensor.view_offs),) * len(shard.each)
    if state.is_divided:
        found = view_on_devices(tensor.root, state, tensor)
        if found is None:
            raise Unsupported(
                f"[MetaDevice] {tensor!r} is a view that takes unequal parts of the tensors of "
                f"{len(shard.each)} devices, which is not supported"
            )
        state, views = found
    each = [
        new_view("view", part, ne, nb, offset, (part,))
        for part, (ne, nb, offset) in zip(shard.each, views, strict=True)
    ]
    return Divided(state, tuple(each))


def is_uneven(tensor: Tensor) -> bool:
    """Whether it is a view that takes unequal parts of the devices, so that it is not divided."""
    if tensor.view_src is None:
        return False
    state = shard_of(tensor.root).state
    return state.is_divided and view_on_devices(tensor.root, state, tensor) is None


def slice_of(part: Tensor, axis: int, begin: int, extent: int) -> Tensor:
    """A view of a range of one axis."""
    ne = list(part.ne)
    ne[axis] = extent
    offset = begin // (part.dtype.blck_size if axis == 0 else 1) * part.nb[axis]
    return new_view("view", part, (ne[0], ne[1], ne[2], ne[3]), part.nb, offset, (part,))


def _ranges(state: SplitState, array: Array) -> Iterator[tuple[int, int, int, Array]]:
    """Consecutive parts of an array: the device, begin and extent in its part, the elements."""
    axis = 3 - state.axis
    total = sum(map(sum, state.segments))
    length = array.shape[axis]  # of bytes, if the elements are blocks
    whole = (slice(None),) * axis
    for i, begin, local, extent in state.runs():
        cut = slice(begin * length // total, (begin + extent) * length // total)
        yield i, local, extent, array[(*whole, cut)]


def cuts(of: Divided, array: Array) -> list[Array]:
    """The part of an array (innermost axis last) that belongs to each device, with four axes.

    The parts of several segments are put together in a copy.
    """
    array = array[(None,) * (4 - array.ndim)]
    if not of.state.is_divided:
        return [array] * len(of.each)
    found: list[list[Array]] = [[] for _ in of.each]
    for i, _, _, elements in _ranges(of.state, array):
        found[i].append(elements)
    axis = 3 - of.state.axis
    return [one[0] if len(one) == 1 else np.concatenate(one, axis) for one in found]


def reads(of: Divided, array: Array) -> Iterator[tuple[int, Tensor, Array]]:
    """What to read into an array of four axes: the device, a tensor there, the elements to fill."""
    if not of.state.is_divided:
        yield 0, of.each[0], array  # all devices have the same
        return
    for i, begin, extent, elements in _ranges(of.state, array):
        part = of.each[i]
        if extent != part.ne[of.state.axis]:
            part = slice_of(part, of.state.axis, begin, extent)
        yield i, part, elements


def pieces(
    tensor: Tensor, data: Array, offset: int
) -> Iterator[tuple[int, Tensor, Array, int | None]]:
    """A range of bytes of a tensor's span, cut at the borders between devices.

    Args:
        tensor: placed; the span of a view begins at its first byte.
        data: a flat array of the bytes of the range.
        offset: of the first byte in the span.

    Yields:
        For each piece: the device, the tensor there, the part of ``data``, and the offset in that
        tensor. An offset of None means the whole tensor; the part of ``data`` is then a 4-D array.
    """
    root = tensor.root
    shard = shard_of(root)
    data = data.reshape(-1)
    start = tensor.view_offs + offset
    if not shard.state.is_divided:
        for i, part in enumerate(shard.each):
            yield i, part, data, start
        return
    borders = _Borders(root, shard.state)
    span = borders.span
    end = start + data.size
    first, last = -(-start // span), end // span  # the whole spans
    if first >= last:
        yield from _runs(shard.each, data, start, borders, (start, end))
        return
    yield from _runs(shard.each, data, start, borders, (start, first * span))
    size, blck = root.dtype.type_size, root.dtype.blck_size
    rows = data[first * span - start : last * span - start].reshape(last - first, span)
    for i, begin, local, length in borders.runs:
        stride = borders.parts[i]
        ne = (length // size * blck, last - first, 1, 1)
        nb = (size, stride, stride * ne[1], stride * ne[1])
        part = shard.each[i]
        view = new_view("view", part, ne, nb, first * stride + local, (part,))
        yield i, view, _elements(rows[:, begin : begin + length], view), None
    yield from _runs(shard.each, data, start, borders, (last * span, end))


class _Borders:
    """The runs of a split storage in bytes.

    Attributes:
        span: bytes from the first run to its next repetition.
        parts: the bytes that each device has of a span.
        runs: device, begin in the span, begin in the device's part of it, bytes.
    """

    def __init__(self, root: Tensor, state: SplitState) -> None:
        unit = root.dtype.blck_size if state.axis == 0 else 1
        step = root.nb[state.axis]
        self.runs = [
            (i, begin // unit * step, local // unit * step, extent // unit * step)
            for i, begin, local, extent in state.runs()
        ]
        self.span = step * (root.ne[state.axis] // unit)
        n = len(state.segments[0])
        self.parts = [sum(run[3] for run in self.runs if run[0] == i) for i in range(n)]


def _elements(rows: Array, view: Tensor) -> Array:
    """Rows of bytes as a 4-D array of the tensor's elements; no copy."""
    kind = checking.array_dtype(view)
    return (rows if kind.itemsize == 1 else rows.view(kind))[None, None]


def _runs(
    each: Each, data: Array, start: int, borders: _Borders, where: tuple[int, int]
) -> Iterator[tuple[int, Tensor, Array, int]]:
    """Consecutive pieces, each the bytes of one device between two borders."""
    at, end = where
    while at < end:
        outer, inner = divmod(at, borders.span)
        for i, begin, local, length in borders.runs:
            if begin + length <= inner or at >= end:
                continue
            within = inner - begin
            n = min(end - at, length - within)
            offset = outer * borders.parts[i] + local + within
            yield i, each[i], data[at - start : at - start + n], offset
            at += n
            inner += n
