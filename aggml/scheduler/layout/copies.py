"""Copies: by which route bytes get from one backend to another, and in which pieces.

Here: the choice for a pair of backends, pieces of a staged copy. Not here: which tensors are copied
(deciding/split.py), enqueuing (running/).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.memory.buffer_type import HOST
from aggml.ops import view_1d
from aggml.tensor import new_like, new_tensor

if TYPE_CHECKING:
    from aggml.backend.backend import Device
    from aggml.memory.buffer_type import BufferType
    from aggml.tensor import Tensor

__all__ = ["CopyPiece", "Route", "pieces", "route"]

# A piece should take much longer than starting it (some us here, 10 us on a device), and there
# should be enough pieces for the two halves of the route to overlap.
PIECE_BYTES: Final = 256 << 10
MAX_PIECES: Final = 16


class Route(Enum):
    """A way by which a value crosses from one device to another."""

    PULL = "pulled by the target"  # it reads the source's memory
    PUSH = "pushed by the source"  # it writes the target's memory
    STAGED = "staged through host memory"


class CopyPiece(NamedTuple):
    """Part of a staged copy: ``source`` -> ``staging`` -> ``target``, all of one layout."""

    source: Tensor
    staging: Tensor
    target: Tensor


def route(source: Device, here: BufferType, target: Device, there: BufferType) -> Route:
    """The shortest way from memory ``here`` of one device to memory ``there`` of another.

    If both are possible, it is pushed: the source's stream knows when the transfer may begin.
    """
    if there.is_host or source.supports_buffer_type(there):
        return Route.PUSH
    if here.is_host or target.supports_buffer_type(here):
        return Route.PULL
    return Route.STAGED


def pieces(source: Tensor, target: Tensor, through: BufferType = HOST) -> list[CopyPiece]:
    """Cut a staged copy into pieces, each with its own host memory, so that they fail separately.

    One piece (a bounce) if the tensor is small or has gaps.

    Args:
        source: placed.
        target: of the same layout.
        through: pinned host memory if the device has any.
    """
    block = source.dtype.blck_size
    n = source.nelements // block
    count = min(source.nbytes // PIECE_BYTES, MAX_PIECES, n)
    if count < 2 or not (source.is_contiguous and target.is_contiguous):
        staging = new_like(source, "none", ())
        through.alloc_tensors([staging])
        return [CopyPiece(source, staging, target)]
    found = []
    size = source.dtype.type_size
    for i in range(count):
        start, end = n * i // count, n * (i + 1) // count
        staging = new_tensor(source.dtype, ((end - start) * block,), source.name)
        through.alloc_tensors([staging])
        views = [view_1d(t, (end - start) * block, start * size) for t in (source, target)]
        found.append(CopyPiece(views[0], staging, views[1]))
    return found
