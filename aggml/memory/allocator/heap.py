"""HeapAllocator: tensors in one buffer, placed and released in any order.

Here: ggml's oldest allocator, which can also measure how much memory is needed. Not here: offsets
(arena.py), the allocators that see the whole graph first (memory/allocators.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.errors import (
    AlreadyAllocated,
    CapacityExceeded,
    InvalidArgument,
    InvalidHandle,
)
from aggml.memory.allocator.arena import ArenaChunk
from aggml.memory.buffer import Buffer, align_up
from aggml.memory.buffer_type import BufferType

if TYPE_CHECKING:
    from aggml.tensor import Tensor

__all__ = ["HeapAllocator"]


class HeapAllocator:
    """Places and releases tensors; each gets the smallest hole that fits (``ggml_tallocr_t``).

    Args:
        where: the buffer in which tensors are placed. With a buffer type instead it only measures:
            nothing is placed, and `max_size` tells how large a buffer has to be.

    Raises:
        InvalidHandle: ``where`` is neither of the two.
    """

    __slots__ = ("_chunk", "_held", "_start", "buffer", "type")

    def __init__(self, where: Buffer | BufferType) -> None:
        if not isinstance(where, Buffer | BufferType):
            raise InvalidHandle(f"[HeapAllocator] {where!r} is neither a buffer nor a buffer type")
        self.buffer: Buffer | None = where if isinstance(where, Buffer) else None
        self.type: BufferType = where.type if isinstance(where, Buffer) else where
        self._start = 0 if self.buffer is None else -self.buffer.base % self.type.alignment
        self._held: dict[Tensor, tuple[int, int]] = {}
        self._chunk = ArenaChunk()

    @property
    def measures(self) -> bool:
        """Whether it only measures."""
        return self.buffer is None

    @property
    def max_size(self) -> int:
        """The most bytes in use at any time since the start or the last `reset`."""
        return self._chunk.high

    def alloc(self, tensor: Tensor) -> Tensor:
        """Place ``tensor`` (or note its size, to measure); returns it.

        Raises:
            AlreadyAllocated: it has memory, or was measured.
            CapacityExceeded: no hole is large enough. Nothing has changed then.
            InvalidHandle, InvalidArgument: no tensor, or a view.
        """
        what = "HeapAllocator.alloc"
        if not hasattr(tensor, "placement"):
            raise InvalidHandle(f"[{what}] {tensor!r} is no tensor")
        if tensor.view_src is not None:
            raise InvalidArgument(
                f"[{what}] {tensor!r} is a view, and shares the memory of its storage"
            )
        if tensor.placement is not None or tensor in self._held:
            raise AlreadyAllocated(f"[{what}] {tensor!r} has been placed already")
        size = align_up(self.type.alloc_size(tensor), self.type.alignment)
        high = self._chunk.high
        start = self._chunk.take(size) if size else 0
        if self.buffer is not None:
            try:
                if self._start + start + self.type.alloc_size(tensor) > self.buffer.size:
                    raise CapacityExceeded(
                        f"[{what}] {tensor!r} takes {size} bytes, but {self.buffer!r} has no free "
                        "range of that size"
                    )
                self.buffer.place(tensor, self._start + start)
            except BaseException:
                self._chunk.give(start, size)
                self._chunk.high = high
                raise
        self._held[tensor] = (start, size)
        return tensor

    def free(self, tensor: Tensor) -> None:
        """Release ``tensor``: its bytes may be given to another tensor.

        Raises:
            InvalidArgument: it was not placed by this allocator, or was released.
        """
        found = self._held.get(tensor)
        if found is None:
            raise InvalidArgument(
                f"[HeapAllocator.free] {tensor!r} was not placed by this allocator: free it where "
                "it was placed"
            )
        self._release(tensor)
        del self._held[tensor]
        self._chunk.give(*found)

    def reset(self) -> None:
        """Release all tensors and reset `max_size`."""
        for tensor in self._held:
            self._release(tensor)
        self._held.clear()
        self._chunk = ArenaChunk()

    def _release(self, tensor: Tensor) -> None:
        placement = tensor.placement
        if self.buffer is not None and placement is not None and placement.buffer is self.buffer:
            self.buffer.unplace(tensor)

    def __repr__(self) -> str:
        what = "measures" if self.buffer is None else repr(self.buffer)
        return f"<HeapAllocator {what}, {len(self._held)} tensors, at most {self.max_size} bytes>"
