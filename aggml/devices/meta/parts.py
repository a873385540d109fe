"""Transfers of parts: which bytes of an array belong to which device.

Here: the parts of a tensor, and arrays and ranges of bytes cut into the same parts. Not here:
enqueuing (backend.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from aggml.devices.meta.division import shown
from aggml.devices.meta.memory import shard_of
from aggml.errors import Unsupported
from aggml.tensor import checking, new_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from aggml.devices.meta.memory import Each
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Divided", "cuts", "divided", "pieces"]


class Divided(NamedTuple):
    """The parts of a tensor: the axis or WHOLE, and a tensor on each device."""

    state: int
    each: Each


def divided(tensor: Tensor) -> Divided:
    """The parts of a placed tensor, which may be a view.

    Raises:
        Unsupported: a view that is not divided in the same parts as its bytes.
        NotAllocated: it has no memory, or was not computed yet.
    """
    shard = shard_of(tensor.root)
    if tensor.view_src is None:
        return Divided(shard.state, shard.each)
    state, ne, nb, offset = shard.state, tensor.ne, tensor.nb, tensor.view_offs
    if state >= 0:
        found = shown(tensor.root, state, len(shard.each), tensor)
        if found is None:
            raise Unsupported(
                f"[MetaDevice] {tensor!r} is a view that takes unequal parts of the tensors of "
                f"{len(shard.each)} devices, which is not supported"
            )
        state, ne, nb, offset = found
    each = [new_view("view", part, ne, nb, offset, (part,)) for part in shard.each]
    return Divided(state, tuple(each))


def cuts(of: Divided, array: Array) -> list[Array]:
    """The part of an array (innermost axis last) that belongs to each device, with four axes."""
    n = len(of.each)
    array = array[(None,) * (4 - array.ndim)]
    if of.state < 0:
        return [array] * n
    axis = 3 - of.state
    step = array.shape[axis] // n
    whole = (slice(None),) * axis
    return [array[(*whole, slice(i * step, (i + 1) * step))] for i in range(n)]


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
    if shard.state < 0:
        for i, part in enumerate(shard.each):
            yield i, part, data, start
        return
    n, axis = len(shard.each), shard.state
    unit = root.dtype.blck_size if axis == 0 else 1
    span = root.nb[axis] * (root.ne[axis] // unit)  # bytes from one part of a device to its next
    part_span = span // n
    end = start + data.size
    first, last = -(-start // span), end // span  # the whole spans
    if first >= last:
        yield from _runs(shard.each, data, start, (span, start, end))
        return
    yield from _runs(shard.each, data, start, (span, start, first * span))
    size, blck = root.dtype.type_size, root.dtype.blck_size
    rows = data[first * span - start : last * span - start].reshape(last - first, span)
    for i, part in enumerate(shard.each):
        ne = (part_span // size * blck, last - first, 1, 1)
        nb = (size, part_span, part_span * ne[1], part_span * ne[1])
        view = new_view("view", part, ne, nb, first * part_span, (part,))
        mine = rows[:, i * part_span : (i + 1) * part_span]
        yield i, view, _elements(mine, view), None
    yield from _runs(shard.each, data, start, (span, last * span, end))


def _elements(rows: Array, view: Tensor) -> Array:
    """Rows of bytes as a 4-D array of the tensor's elements; no copy."""
    kind = checking.array_dtype(view)
    return (rows if kind.itemsize == 1 else rows.view(kind))[None, None]


def _runs(
    each: Each, data: Array, start: int, where: tuple[int, int, int]
) -> Iterator[tuple[int, Tensor, Array, int]]:
    """Consecutive pieces, each the bytes of one device between two borders."""
    span, at, end = where
    part_span = span // len(each)
    while at < end:
        outer, inner = divmod(at, span)
        i, within = divmod(inner, part_span)
        n = min(end - at, part_span - within)
        yield i, each[i], data[at - start : at - start + n], outer * part_span + within
        at += n
