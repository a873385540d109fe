"""Memory of a scheduler: buffers that layouts share and that grow, and how types of them are seen.

Not here: what lies where (placing.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.memory.graph_memory import GraphBuffer
from aggml.tensor.placement import BufferUsage

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from aggml.backend import Backend
    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer, BufferType
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = ["Memory", "Own", "SplitMemory"]


class Memory:
    """Buffers that grow, by key; what was compiled for an old one looks whether it is still it."""

    def __init__(self) -> None:
        self.buffers: dict[Hashable, list[Buffer]] = {}

    def grow(self, key: Hashable, kind: BufferType, sizes: Sequence[int]) -> Steps[list[Buffer]]:
        """Buffers of at least these sizes."""
        while True:
            have = self.buffers.setdefault(key, [])
            if len(sizes) <= len(have) and all(
                n <= b.size for n, b in zip(sizes, have, strict=False)
            ):
                return have
            wanted = [max(n, have[i].size if i < len(have) else 0) for i, n in enumerate(sizes)]
            new: list[Buffer] = []
            for n in wanted:
                buffer = yield from kind.taking(n)
                buffer.usage = BufferUsage.COMPUTE
                new.append(buffer)
            if self.buffers.get(key) is have:  # else another task was first: there may be enough
                self.buffers[key] = new

    def size(self, key: Hashable) -> int:
        """Bytes under this key."""
        return sum(b.size for b in self.buffers.get(key, ()))


class Own:
    """A buffer type seen as one that no other backend shares."""

    def __init__(self, kind: BufferType) -> None:
        self._kind = kind

    @property
    def alignment(self) -> int:
        """That of the type."""
        return self._kind.alignment

    @property
    def max_size(self) -> int:
        """That of the type."""
        return self._kind.max_size

    def alloc_size(self, tensor: Tensor) -> int:
        """As the type says."""
        return self._kind.alloc_size(tensor)


class SplitMemory(GraphBuffer):
    """What a device's compiler asks: where the tensors of one split lie, all of them for good."""

    def __init__(
        self,
        block: Buffer,
        graph: Graph,
        backend: Backend,
        addresses: dict[Tensor, int],
        blocks: tuple[Buffer, ...],
    ) -> None:
        super().__init__(block, graph, backend, {}, 0)
        self._addresses = addresses
        self._blocks = blocks  # kept for as long as the plan

    def locate(self, tensor: Tensor) -> tuple[int, bool]:
        """See `GraphBuffer.locate`; never in the arena."""
        placement = tensor.placement
        if placement is not None:
            return placement.address, False
        return self._addresses[tensor], False
