"""Memory of graphs on one backend: a buffer for values that outlive a run, scratch for all others.

Here: which tensor goes where, and the arena. Not here: lifetimes and offsets inside the arena
(allocator/), compiling, and the plans that are kept (plan/).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from aggml.errors import AlreadyAllocated, InvalidHandle, NotAllocated
from aggml.graph import Graph
from aggml.memory.allocator import scratch_steps
from aggml.memory.buffer import Buffer, align_up
from aggml.memory.shortage import shortage
from aggml.process.locks import new_rlock
from aggml.tensor.placement import PlacementEpoch, placing
from aggml.tensor.tensor import OUTPUT

if TYPE_CHECKING:
    from aggml.errors import AllocFailed
    from aggml.memory.buffer_type import BufferType
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor
    from aggml.tensor.placement import Placement

__all__ = [
    "GraphBuffer",
    "GraphMemory",
    "GraphPlaces",
    "PlaceRecord",
    "ScratchOffsets",
    "place_steps",
]


class PlaceRecord:
    """Where the tensors of a graph lay at one moment, before work in slices began.

    The work may rest on it if it is still current when the work is done.
    It keeps the memory alive.

    Attributes:
        epoch: the epoch of the placements then.
        places: the placement of each tensor, leafs first.
    """

    __slots__ = ("_tensors", "epoch", "places")

    def __init__(self, graph: Graph) -> None:
        # Read first: if a tensor moves right after that, the epoch is known to be an old one.
        self.epoch: int = PlacementEpoch.value
        self._tensors = (*graph.leafs, *graph.nodes)
        self.places: list[Placement | None] = [t.placement for t in self._tensors]

    def is_current(self) -> bool:
        """Whether each tensor lies where it lay then, or has no memory as it had none then."""
        pairs = zip(self._tensors, self.places, strict=True)
        return all(tensor.placement is place for tensor, place in pairs)


class GraphMemory:
    """The scratch arena of a backend; all its graphs share it: a stream runs one plan at a time.

    Attributes:
        block: the arena, None before it is needed.
    """

    def __init__(self, buffer_type: BufferType) -> None:
        self._type = buffer_type
        self._growing = new_rlock()  # reentrant: the garbage collector may run in between
        self.block: Buffer | None = None

    @property
    def size(self) -> int:
        """Bytes of scratch held at present."""
        return 0 if self.block is None else self.block.size

    def arena(self, size: int) -> Buffer | None:
        """Scratch of at least ``size`` bytes. If it grows, queued runs keep the old arena.

        It never shrinks, whichever threads ask: a prepared run takes the arena that is there.

        Raises:
            AllocFailed: no memory.
        """
        have = self.block
        if size > (0 if have is None else have.size):
            with self._growing:
                have = self.block
                if size > (0 if have is None else have.size):
                    made = self._type.alloc_buffer(size)
                    have = self.block  # the allocation may have run code that came here, too
                    if have is None or have.size < made.size:
                        self.block = have = made
        return have

    def drop(self) -> None:
        """Give the arena up, as the backend is closed. Runs that are queued keep it."""
        self.block = None  # without the lock: another thread may allocate under it, for long


class ScratchOffsets(dict["Tensor", int]):
    """Where nodes of a placed graph lie in the arena, relative to its base.

    Only the graph keeps it, for as long as it is placed this way. So what was compiled for these
    places can go together with them: plan/compiled.py watches this object.
    """

    __slots__ = ("__weakref__",)


class GraphBuffer(Buffer):
    """Memory of a placed graph. ``close()`` unplaces it; dropping it does not: the graph keeps it.

    Attributes:
        backend: weak reference to the backend that placed the graph, None if a GraphAllocator did.
        scratch_size: bytes of the arena that its nodes take.
    """

    def __init__(
        self, block: Buffer, graph: Graph, backend: object | None, scratch_size: int
    ) -> None:
        super().__init__(block.type, block.size, block.base, block.memory)
        self._block = block
        self.backend: weakref.ref[object] | None = None if backend is None else weakref.ref(backend)
        self.scratch_size = scratch_size
        self._graph = weakref.ref(graph)

    @property
    def owner(self) -> Buffer:
        """The block in which the tensors lie; unlike this buffer it does not refer to the graph."""
        return self._block

    def serve(self, graph: Graph, offsets: dict[Tensor, int]) -> Self:
        """Become the memory of ``graph``, whose scratch lies at ``offsets`` in the arena."""
        graph.scratch = ScratchOffsets(offsets)
        graph.memory = self  # last: who sees the memory sees the offsets
        return self

    def locate(self, tensor: Tensor) -> tuple[int, bool]:
        """(address, whether it is an offset into the arena) of a tensor that is no view.

        Raises:
            NotAllocated: the buffer of the tensor was closed.
        """
        placement = tensor.placement
        if placement is not None:
            return placement.address, False
        graph = self._graph()
        scratch = None if graph is None else graph.scratch
        offset = None if scratch is None else scratch.get(tensor)
        if offset is None:
            raise NotAllocated(
                f"[compile] {tensor!r} has no memory any more: its buffer was closed"
            )
        return offset, True

    def close(self) -> None:
        """Unplace the graph; it may be placed again. Work in flight keeps the bytes."""
        with placing:
            super().close()
            graph = self._graph()
            if graph is not None and graph.memory is self:
                graph.memory = graph.scratch = None


def _sort(graph: Graph) -> tuple[list[Tensor], set[Tensor]]:
    """The tensors without memory: those that get memory of the graph, those that get scratch."""
    lasting: dict[Tensor, None] = {}
    scratch: set[Tensor] = set()
    kept = {end.root for end in graph.ends}
    for leaf in graph.leafs:
        if leaf.placement is None and leaf.view_src is None:
            lasting.setdefault(leaf)
    for node in graph.nodes:
        root = node.root
        if node.flag_bits & OUTPUT:
            kept.add(root)
        if root.op == "none" and root.placement is None:  # a leaf reached through a view only
            lasting.setdefault(root)
    for node in graph.nodes:
        if node.view_src is None and node.placement is None:
            if node in kept:
                lasting.setdefault(node)
            else:
                scratch.add(node)
    return list(lasting), scratch


class GraphPlaces(NamedTuple):
    """Places for a graph that has none yet: in a block of ``size`` bytes, and in scratch."""

    graph: Graph
    type: BufferType
    lasting: list[Tensor]
    offsets: list[int]
    size: int
    scratch: dict[Tensor, int]
    scratch_size: int
    then: PlaceRecord

    def place(self, backend: object, block: Buffer) -> GraphBuffer | None:
        """Place all tensors of the layout in ``block``, or none.

        Returns:
            None: a tensor of the graph has got or lost memory since the layout was made.

        Raises:
            AlreadyAllocated: another task has placed the graph meanwhile.
        """
        with placing:
            _check_unplaced(self.graph)
            if not self.then.is_current():
                return None
            memory = GraphBuffer(block, self.graph, backend, self.scratch_size)
            try:
                for tensor, offset in zip(self.lasting, self.offsets, strict=True):
                    memory.place(tensor, offset)
            except BaseException:
                memory.close()
                raise
            return memory.serve(self.graph, self.scratch)

    def too_large(self, error: AllocFailed, *, scratch: bool) -> AllocFailed:
        """The exception that says for which tensors there was no memory."""
        size = self.scratch_size if scratch else self.size
        tensors = [*self.scratch] if scratch else self.lasting
        return shortage(error, "Backend.alloc_graph", self.type.name, size, tensors)


# Queries, keys and values are products that may run concurrently, with up to four nodes after each
# of them. So the values must not be placed where the keys have just been.
_LINGER: Final = 8


def place_steps(buffer_type: BufferType, graph: Graph) -> Sliced[GraphPlaces]:
    """Decide where `Backend.alloc_graph` places each tensor, in small steps. Takes no memory."""
    if not isinstance(graph, Graph):
        raise InvalidHandle(f"[Backend.alloc_graph] {graph!r} is no Graph")
    _check_unplaced(graph)
    then = PlaceRecord(graph)
    alignment = buffer_type.alignment
    whole = graph.whole  # memory also for nodes that are not computed
    lasting, scratch = _sort(whole)
    yield
    inside = yield from scratch_steps(
        whole, scratch, alignment=alignment, alloc_size=buffer_type.alloc_size, linger=_LINGER
    )
    offsets, size = [], 0
    for tensor in lasting:
        offsets.append(size)
        size += align_up(buffer_type.alloc_size(tensor), alignment)
    return GraphPlaces(
        graph, buffer_type, lasting, offsets, size, inside.offsets, inside.size, then
    )


def _check_unplaced(graph: Graph) -> None:
    if graph.memory is not None:
        raise AlreadyAllocated(
            f"[Backend.alloc_graph] {graph!r} has been placed; close its memory first"
        )
