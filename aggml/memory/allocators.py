"""TensorAllocator and GraphAllocator: they place tensors in a given buffer, or in their own.

Here: growing buffers, placing and unplacing tensors, all or nothing. Not here: offsets
(allocator/lifetimes.py), the ownership of bytes (buffer.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aggml.errors import (
    AlreadyAllocated,
    CapacityExceeded,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
)
from aggml.graph import Graph
from aggml.memory.allocator.lifetimes import GraphLayout, kept_storages, lay_out_graph
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import BufferType
from aggml.memory.graph_memory import GraphBuffer
from aggml.memory.multi_buffer import MultiBuffer
from aggml.process.alive import there
from aggml.tensor import change
from aggml.tensor.checking import integer
from aggml.tensor.placement import BufferUsage, PlacementEpoch, placing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.tensor import Tensor

__all__ = ["GraphAllocator", "TensorAllocator"]


class TensorAllocator:
    """Places one tensor after the other in a buffer; never releases one (``ggml_tallocr``).

    Args:
        buffer: the buffer to fill, from its aligned start on.

    Attributes:
        buffer: as given.
        offset: bytes from the start of the buffer at which the next tensor is placed.

    Raises:
        InvalidHandle: ``buffer`` is no buffer.
        InvalidArgument: it is a `MultiBuffer`; take one of its parts.
    """

    __slots__ = ("buffer", "offset")

    def __init__(self, buffer: Buffer) -> None:
        if not isinstance(buffer, Buffer):
            raise InvalidHandle(f"[TensorAllocator] {buffer!r} is no buffer")
        if isinstance(buffer, MultiBuffer):
            raise InvalidArgument(
                f"[TensorAllocator] {buffer!r} has several parts: give one of them"
            )
        self.buffer: Buffer = buffer
        self.offset: int = -buffer.base % buffer.type.alignment

    @property
    def base(self) -> int:
        """Address of the buffer's first byte."""
        return self.buffer.base

    @property
    def alignment(self) -> int:
        """Tensors start at multiples of it."""
        return self.buffer.alignment

    def alloc(self, tensor: Tensor) -> Tensor:
        """Place ``tensor`` after the earlier ones (``ggml_tallocr_alloc``); returns it.

        Raises:
            AlreadyAllocated: it has memory.
            CapacityExceeded: the rest of the buffer is too small.
            InvalidArgument: it is a view.
            InvalidHandle: no tensor.
        """
        if not hasattr(tensor, "placement"):
            raise InvalidHandle(f"[TensorAllocator.alloc] {tensor!r} is no tensor")
        buffer_type = self.buffer.type
        needed = buffer_type.alloc_size(tensor)
        size = -(-needed // buffer_type.alignment) * buffer_type.alignment
        with placing:
            if tensor.view_src is None and self.offset + needed > self.buffer.size:
                raise CapacityExceeded(
                    f"[TensorAllocator.alloc] {tensor!r} takes {size} bytes, but {self.buffer!r} "
                    f"has {max(self.buffer.size - self.offset, 0)} left"
                )
            self.buffer.place(tensor, self.offset)
            self.offset += size
        return tensor

    def __repr__(self) -> str:
        return f"<TensorAllocator {self.offset} of {self.buffer!r}>"


class GraphAllocator:
    """Memory for one graph at a time, shared where lifetimes do not overlap (``ggml_gallocr``).

    The buffers only grow. Placing a graph unplaces the one before; ordering their work is up to the
    user.

    Args:
        types: a buffer type, or several; the same one twice shares a buffer.
        reuse_inputs: whether leafs may be overwritten after their last use, as ggml does; they must
            then be set again before each computation.

    Raises:
        InvalidArgument: there is no type.
        InvalidHandle: a type is no buffer type.
    """

    __slots__ = ("_buffers", "_graph", "_reserved", "reuse_inputs", "types")

    def __init__(
        self, types: BufferType | Sequence[BufferType], *, reuse_inputs: bool = False
    ) -> None:
        if not isinstance(types, BufferType | Iterable):
            raise InvalidHandle(f"[GraphAllocator] {types!r} is no buffer type")
        self.types: tuple[BufferType, ...] = (
            (types,) if isinstance(types, BufferType) else tuple(types)
        )
        if not self.types:
            raise InvalidArgument("[GraphAllocator] types is empty: give one buffer type or more")
        for buffer_type in self.types:
            if not isinstance(buffer_type, BufferType):
                raise InvalidHandle(f"[GraphAllocator] {buffer_type!r} is no buffer type")
        self.reuse_inputs: bool = reuse_inputs
        self._buffers: list[list[Buffer]] = [[] for _ in self.types]
        self._reserved: tuple[object, Sequence[int] | None, Sequence[int] | None] | None = None
        self._graph: weakref.ref[Graph] | None = None  # the one that is placed

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers that exist now."""
        return tuple([buffer for chunks in self._buffers for buffer in chunks])

    def buffer_size(self, buffer_id: int = 0) -> int:
        """Bytes of a buffer; 0 if there is none yet, or if its type is that of an earlier id.

        Raises:
            InvalidArgument: no such id.
        """
        if not 0 <= integer(buffer_id, "buffer_id", "GraphAllocator.buffer_size") < len(self.types):
            raise InvalidArgument(
                f"[GraphAllocator.buffer_size] id {buffer_id}: there are {len(self.types)} buffers"
            )
        return sum(buffer.size for buffer in self._buffers[buffer_id])

    def reserve_size(
        self,
        graph: Graph,
        node_ids: Sequence[int] | None = None,
        leaf_ids: Sequence[int] | None = None,
    ) -> tuple[int, ...]:
        """Bytes each buffer would need for ``graph``; arguments of `reserve`, changes nothing."""
        return self._layout(graph, node_ids, leaf_ids).sizes()

    def reserve(
        self,
        graph: Graph,
        node_ids: Sequence[int] | None = None,
        leaf_ids: Sequence[int] | None = None,
    ) -> None:
        """Make the buffers large enough for ``graph``, place nothing (``ggml_gallocr_reserve_n``).

        Args:
            graph: usually the largest graph that will be placed.
            node_ids: for each of ``graph.whole.nodes`` the index of its buffer type; all 0 if not
                given.
            leaf_ids: likewise for ``graph.whole.leafs``.

        Raises:
            AllocFailed: no memory; the buffers are as before.
            InvalidArgument: not one valid id for each tensor.
        """
        with placing:  # else a thread could put smaller buffers in place of larger ones
            self._grow(self._layout(graph, node_ids, leaf_ids))
            self._reserved = (_fingerprint(graph.whole), node_ids, leaf_ids)

    def alloc_graph(self, graph: Graph) -> None:
        """Place all tensors of ``graph`` that have no memory (``ggml_gallocr_alloc_graph``).

        With several types, the ids of the last `reserve` are used. It must have been called with a
        graph of the same structure.

        Raises:
            AllocFailed: no memory; nothing has changed.
            AlreadyAllocated: the graph has memory.
            InvalidState: several types, and the last `reserve` was for a graph of another
                structure.
        """
        _check_graph(graph, "GraphAllocator.alloc_graph")
        with placing:
            self._alloc_graph(graph)

    def _alloc_graph(self, graph: Graph) -> None:
        node_ids = leaf_ids = None
        several = len(self.types) > 1
        if several:
            if self._reserved is None or self._reserved[0] != _fingerprint(graph.whole):
                raise InvalidState(
                    f"[GraphAllocator.alloc_graph] call reserve first with ids for {graph!r}"
                )
            _, node_ids, leaf_ids = self._reserved
        if graph.memory is not None:
            raise AlreadyAllocated(
                f"[GraphAllocator.alloc_graph] {graph!r} has memory: close that first"
            )
        layout = self._layout(graph, node_ids, leaf_ids)
        # Tensors that lie in the buffers now may be part of this graph as well.
        former = [(t, t.placement) for buffer in self.buffers for t in there(buffer._tensors)]
        self._grow(layout)
        PlacementEpoch.move()
        for tensor, _ in former:
            change(tensor, "placement", None)
        placed: list[Tensor] = []
        kept = kept_storages(graph.whole, reuse_inputs=False)
        try:
            where = {id(buffer_type): i for i, buffer_type in reversed(list(enumerate(self.types)))}
            for tensor, slot in layout.slots.items():
                chunks = self._buffers[where[id(self.types[slot.buffer_id])]]
                if chunks:
                    chunks[slot.chunk].place(tensor, slot.offset)
                placed.append(tensor)
        except BaseException:
            for tensor in placed:
                change(tensor, "placement", None)
            for tensor, placement in former:
                change(tensor, "placement", placement)
            PlacementEpoch.move()
            raise
        for tensor in placed:
            if tensor.placement is not None:
                tensor.placement.readable = tensor in kept
        before = None if self._graph is None else self._graph()
        if before is not None:
            before.memory = before.scratch = None
        block = self.buffers[0] if self.buffers else self.types[0].alloc_buffer(0)
        GraphBuffer(block, graph, None, 0).serve(graph, {})
        self._graph = weakref.ref(graph)

    def close(self) -> None:
        """Unplace all tensors in the buffers and release these; work in flight keeps the bytes."""
        with placing:
            for buffer in self.buffers:
                buffer.close()
            before = None if self._graph is None else self._graph()
            if before is not None:
                before.memory = before.scratch = None
            self._graph = None
            self._buffers = [[] for _ in self.types]
            self._reserved = None

    def _layout(
        self, graph: Graph, node_ids: Sequence[int] | None, leaf_ids: Sequence[int] | None
    ) -> GraphLayout:
        _check_graph(graph, "GraphAllocator")
        return lay_out_graph(
            graph.whole,
            _ids(node_ids, "node_ids"),
            _ids(leaf_ids, "leaf_ids"),
            types=self.types,
            reuse_inputs=self.reuse_inputs,
            ours=self.buffers,
        )

    def _grow(self, layout: GraphLayout) -> None:
        new: dict[int, list[Buffer]] = {}
        for i, (needed, have) in enumerate(zip(layout.chunks, self._buffers, strict=True)):
            sizes = [buffer.size for buffer in have]
            if len(needed) > len(sizes) or any(n > s for n, s in zip(needed, sizes, strict=False)):
                new[i] = [self.types[i].alloc_buffer(size) for size in needed]
        for i, buffers in new.items():
            for buffer in buffers:
                buffer.usage = BufferUsage.COMPUTE
            self._buffers[i] = buffers

    def __repr__(self) -> str:
        names = ", ".join(buffer_type.name for buffer_type in self.types)
        return f"<GraphAllocator {names}: {sum(b.size for b in self.buffers)} bytes>"


def _check_graph(graph: object, what: str) -> None:
    if not isinstance(graph, Graph):
        raise InvalidHandle(f"[{what}] {graph!r} is no Graph")


def _ids(given: object, name: str) -> list[int] | None:
    if given is None:
        return None
    if not isinstance(given, Iterable):
        raise InvalidHandle(f"[GraphAllocator] {name}={given!r} is no list of integers")
    return [integer(number, f"one of {name}", "GraphAllocator") for number in given]


def _fingerprint(graph: Graph) -> object:
    """A key that is equal for graphs of the same structure: operations, layouts, edges, flags."""
    number = {t: i for i, t in enumerate((*graph.leafs, *graph.nodes))}
    return tuple(
        [
            (
                t.op,
                t.dtype,
                t.ne,
                t.nb,
                t.flag_bits,
                t.view_offs,
                number.get(t.view_src) if t.view_src is not None else None,
                tuple([None if s is None else number[s] for s in t.src]),
            )
            for t in number
        ]
    )
