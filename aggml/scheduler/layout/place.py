"""Placing: where the values of a layout lie: in memory that is shared, or apart for one submission.

Not here: lifetimes and offsets (allocator/), the buffers themselves (memory.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.graph import graph_of
from aggml.memory.allocator.lifetimes import graph_planning
from aggml.memory.buffer import aligned
from aggml.scheduler.layout.memory import Own
from aggml.scheduler.layout.rewrite import Rewriting

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from aggml.memory.allocator.lifetimes import AllocPlan, Sizing
    from aggml.memory.buffer import Buffer, BufferType
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = ["Placing"]


class Placing(Rewriting):
    """The second part of making a Layout."""

    def kept(self) -> list[Tensor]:
        """What can be read after a run."""
        return [self.twins[t] for t in self.program.kept if t in self.twins]

    def place(self) -> Steps[None]:
        """Give each new storage an address; those that several actions touch a Placement."""
        q, layout = self.q, self.layout
        self.shared.update(t for t in self.kept() if t in self.at)
        leafs = [t for t in self.twins.values() if t.op == "none"]
        apart = layout.slot is not None
        if apart:
            yield from self.place_apart()
        shared_type = [sum(1 for t in q.types if t is kind) > 1 for kind in q.types]
        kinds = [q.types[b] for b, _ in self.places]
        own = [lane > 0 or (apart and shared_type[b]) for b, lane in self.places]
        keys: list[Hashable] = [
            ("own", *place) if alone else ("type", id(kind))
            for place, kind, alone in zip(self.places, kinds, own, strict=True)
        ]
        types: list[Sizing] = [
            Own(kind) if alone else kind for kind, alone in zip(kinds, own, strict=True)
        ]
        self.keys = keys
        plan = yield from self.allocation(leafs, types)
        blocks: list[list[Buffer]] = []
        for b, chunks in enumerate(plan.chunks):
            first = keys.index(keys[b])
            if first == b:
                blocks.append((yield from self.buffers(keys[b], kinds[b], chunks)))
            else:
                blocks.append(blocks[first])
        shared = self.shared
        for tensor, slot in plan.slots.items():
            if not blocks[slot.buffer_id]:
                b = slot.buffer_id
                block = (yield from self.buffers(keys[b], kinds[b], [0]))[0]
            else:
                block = blocks[slot.buffer_id][slot.chunk]
            if tensor in shared:
                block.place(tensor, slot.offset)
            else:
                self.addresses[tensor] = block.base + slot.offset

    def allocation(self, leafs: list[Tensor], types: Sequence[Sizing]) -> Steps[AllocPlan]:
        """Offsets of what has no memory yet, as ggml's graph allocator finds them."""
        graph = graph_of(self.order, leafs, self.kept())
        yield
        at = [self.at.get(leaf, 0) for leaf in leafs]
        return (yield from graph_planning(graph, self.ids, at, types=types, reuse_inputs=True))

    def place_apart(self) -> Steps[None]:
        """Memory of this submission alone for what other streams than the computing one touch."""
        program = self.program
        tensors = [self.twins[t] for t in program.direct]
        tensors += [
            twin
            for copy, twin in self.copies.items()
            # Copies of weights stay where memory is shared: they are too large to have many.
            if program.is_upload(copy) or self.q.buffer(copy.tensor.root) is None
        ]
        tensors += [self.twins[t] for t in program.crossing if self.twins[t] in self.at]
        tensors += [t for t in self.kept() if t in self.at]
        tensors += [t for t in self.order if t in self.across]
        by_backend: dict[int, list[Tensor]] = {}
        for tensor in dict.fromkeys(tensors):
            by_backend.setdefault(self.at[tensor], []).append(tensor)
        for b, group in by_backend.items():
            kind = self.q.types[b]
            offsets, size = [], 0
            for tensor in group:
                offsets.append(size)
                size += aligned(kind.alloc_size(tensor), kind.alignment)
            (block,) = yield from self.buffers(("slot", self.layout.slot, b), kind, [size])
            for tensor, offset in zip(group, offsets, strict=True):
                block.place(tensor, offset)

    def buffers(self, key: Hashable, kind: BufferType, sizes: Sequence[int]) -> Steps[list[Buffer]]:
        """Buffers of the scheduler that the layout rests on."""
        have = yield from self.memory.grow(key, kind, sizes)
        self.layout.buffers.append((key, have))
        self.blocks.extend(have)
        return have
