"""Memory of a scheduler: buffers that layouts share and that grow.

Here: the buffers by key, and a type of buffers seen as one that nobody shares. Not here: what lies
where (place.py). Kinds of keys: ``("type", id)`` for values of all backends with buffers of that
type, ``("own", backend, side)`` for a site that shares its scratch with no other, ``("slot",
number, backend)`` for memory apart of one submission, ``("experts", backend, number)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from aggml.tensor.placement import BufferUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.memory.buffer import Buffer
    from aggml.memory.buffer_type import BufferType
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["EXPERT_BLOCKS", "SIDE_STREAMS", "Key", "SharedBuffers", "Unshared"]

#: Streams beside its own on which a backend may compute: for so many crossings of a graph there and
#: back the submissions do not hold each other up.
SIDE_STREAMS: Final = 3

#: Blocks of a backend to which stacks of experts are copied in turn: for all three of a layer, and
#: one of the next layer.
EXPERT_BLOCKS: Final = 4

#: What a group of buffers is for.
Key: TypeAlias = tuple[object, ...]


class SharedBuffers:
    """Buffers that grow, by key.

    A layout is current as long as it holds the very lists of ``buffers``: growing replaces them.
    """

    def __init__(self) -> None:
        self.buffers: dict[Key, list[Buffer]] = {}

    def grow(self, key: Key, buffer_type: BufferType, sizes: Sequence[int]) -> Sliced[list[Buffer]]:
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
                buffer = yield from buffer_type.take_buffer(n)
                buffer.usage = BufferUsage.COMPUTE
                new.append(buffer)
            if self.buffers.get(key) is have:  # else another task was first: there may be enough
                self.buffers[key] = new

    def forget_experts(self) -> None:
        """Give back the blocks for experts; layouts that have them keep them while they last."""
        for key in [key for key in self.buffers if key[0] == "experts"]:
            del self.buffers[key]

    def buffers_of(self, buffer_type: BufferType) -> list[Buffer] | None:
        """The buffers that all backends with this type share; None before there are any."""
        return self.buffers.get(("type", id(buffer_type)))

    def size_for(self, b: int, types: Sequence[BufferType], n_copies: int) -> int:
        """Bytes of backend ``b``; what several share counts for the first of them.

        Args:
            b: its index.
            types: of the buffers of all backends.
            n_copies: submissions that may have memory apart.
        """
        keys: list[Key] = [("own", b, side) for side in range(1 + SIDE_STREAMS)]
        keys += [("slot", number, b) for number in range(n_copies)]
        keys += [("experts", b, number) for number in range(EXPERT_BLOCKS)]
        if next(i for i, buffer_type in enumerate(types) if buffer_type is types[b]) == b:
            keys.append(("type", id(types[b])))
        return sum(buffer.size for key in keys for buffer in self.buffers.get(key, ()))


class Unshared:
    """A buffer type seen as one that no other backend shares."""

    def __init__(self, buffer_type: BufferType) -> None:
        self._type = buffer_type

    @property
    def alignment(self) -> int:
        """That of the type."""
        return self._type.alignment

    @property
    def max_size(self) -> int:
        """That of the type."""
        return self._type.max_size

    def alloc_size(self, tensor: Tensor) -> int:
        """As the type says."""
        return self._type.alloc_size(tensor)
