"""Memory of a scheduler: buffers that layouts share and that grow.

Here: the buffers by key, and a type of buffers seen as one that nobody shares. Not here: what lies
where (place.py). Three kinds of keys: ``("type", id)`` for values of all backends with buffers of
that type, ``("own", backend, side)`` for a site that shares its scratch with no other, and
``("slot", number, backend)`` for memory apart of one submission in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from aggml.tensor.placement import BufferUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.memory.buffer import Buffer
    from aggml.memory.buffer_type import BufferType
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = ["Key", "Memory", "Unshared"]

#: What a group of buffers is for.
Key: TypeAlias = tuple[object, ...]


class Memory:
    """Buffers that grow, by key.

    A layout is current as long as it holds the very lists of ``buffers``: growing replaces them.
    """

    def __init__(self) -> None:
        self.buffers: dict[Key, list[Buffer]] = {}

    def grow(self, key: Key, kind: BufferType, sizes: Sequence[int]) -> Steps[list[Buffer]]:
        """Buffers of at least these sizes.

        Raises:
            AllocFailed: no memory; the buffers are as before.
        """
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

    def size(self, key: Key) -> int:
        """Bytes under this key."""
        return sum(b.size for b in self.buffers.get(key, ()))


class Unshared:
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
