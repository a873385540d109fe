"""Planner: keeps programs and layouts of graphs as long as the facts on which they depend hold.

Here: finding them again, by the graph or by an equivalent one; pins; graphs placed permanently. Not
here: making them (deciding/, layout/), the order of submissions (running/).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aggml.errors import AlreadyAllocated
from aggml.process.locks import new_rlock
from aggml.scheduler.deciding.assign import Question
from aggml.scheduler.deciding.match import Ground, comparing, ground, outline
from aggml.scheduler.deciding.program import building
from aggml.scheduler.layout.layout import laying_out
from aggml.scheduler.layout.memory import Memory
from aggml.stream.slices import finish
from aggml.tensor.placement import PlacementEpoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.backend import Backend
    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.memory.buffer_type import BufferType
    from aggml.scheduler.deciding.program import Program
    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.layout.plans import Side
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["Known", "OfGraph", "Planner"]

T = TypeVar("T")

# How many programs are kept although their graph may be gone, since an equivalent graph may come
# again: a decoder that builds each step anew has a handful of shapes.
_REMEMBERED: Final = 16


class _Shared:
    """The program and layouts that equivalent graphs share.

    Attributes:
        program: the program of the first of these graphs.
        layouts: by the slot of their memory.
        ground: the facts on which the program depends.
        compact: whether only the compact layout fits in memory.
        apart: whether there is a layout with memory apart.
    """

    def __init__(self, program: Program, on: Ground) -> None:
        self.program = program
        self.layouts: dict[int | None, Layout] = {}
        self.ground = on
        self.compact = False
        self.apart = False

    def stands(self) -> bool:
        """Whether no tensor of the program has moved since it was made."""
        program, then = self.program, self.ground.placements
        n = len(then) - len(program.nodes)
        tensors = (*program.leafs[:n], *program.nodes)
        return all(t.placement is p for t, p in zip(tensors, then, strict=True))


class Known:
    """A graph whose program is known.

    Attributes:
        shared: its program and layouts, and those of all that are like it.
        twins: for each tensor that of the program; None: they are the same.
        floating: leafs that each run brings.
        brought: whether a run brought them.
    """

    def __init__(
        self,
        graph: Graph,
        floating: tuple[Tensor, ...],
        shared: _Shared,
        twins: dict[Tensor, Tensor] | None = None,
    ) -> None:
        self.floating = floating
        self.brought = False
        self.shared = shared
        self.program = shared.program
        self.layouts = shared.layouts
        self.twins = twins
        self._ground: Ground
        self._epoch: int
        self.remember(graph)

    def holds(self, graph: Graph) -> bool:
        """Whether no tensor has moved."""
        if self._epoch != PlacementEpoch.value:
            now = ground(graph, {})
            if now.usages != self._ground.usages or any(
                a is not b for a, b in zip(now.placements, self._ground.placements, strict=True)
            ):
                return False
            self._epoch = PlacementEpoch.value
        return True

    def remember(self, graph: Graph) -> None:
        """Record the present places of all tensors as valid."""
        self._ground = ground(graph, {})
        self._epoch = PlacementEpoch.value

    def backend_of(self, tensor: Tensor) -> int | None:
        """The backend that computes, or holds, a tensor of the graph."""
        if self.twins is not None:
            tensor = self.twins.get(tensor, tensor)
        return self.program.found.backend.get(tensor)


class OfGraph:
    """All that is kept of one graph, for as long as it lives.

    Attributes:
        gone: a callback that drops this record when the graph is gone and cannot be run again.
        known: by the leafs that each run brings.
        prepared: submissions by the words that asked for them (running/prepared.py).
    """

    __slots__ = ("gone", "known", "prepared")

    def __init__(self, gone: weakref.ref[Graph]) -> None:
        self.gone = gone
        self.known: dict[tuple[Tensor, ...], Known] = {}
        self.prepared: dict[tuple[object, ...], Any] = {}


class Planner:
    """Makes programs and layouts, and keeps them.

    Args:
        backends: in order of priority.
        types: of their compute buffers.
        side: further backends.
        op_offload: see `Scheduler`.

    Several threads may use it. ``lock`` is held in each call, and in each step of work in slices.
    So two threads meet between such steps only, as two tasks of one loop do.

    Attributes:
        lock: as said; held also while a submission is enqueued. Nobody awaits with it.
        memory: buffers that layouts share.
        side: as given.
        last: what was looked at last.
        graphs: what is known of each, by `Graph.uid`.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        types: Sequence[BufferType],
        side: Side,
        *,
        op_offload: bool,
    ) -> None:
        self._backends = backends
        self._types = types
        self._op_offload = op_offload
        self.lock = new_rlock()
        self.side = side
        self.memory = Memory()
        self.last: Known | None = None
        self.graphs: dict[int, OfGraph] = {}
        # Weak: a tensor that is gone is in no graph, and each step may pin new ones.
        self._pins: weakref.WeakKeyDictionary[Tensor, int] = weakref.WeakKeyDictionary()
        self._remembered: dict[_Shared, tuple[object, ...]] = {}
        self._placed: weakref.WeakKeyDictionary[Graph, list[Buffer]] = weakref.WeakKeyDictionary()

    def guarded(self, steps: Sliced[T]) -> Sliced[T]:
        """The same steps, each with the lock held."""
        try:
            while True:
                with self.lock:
                    try:
                        away = next(steps)
                    except StopIteration as end:
                        result: T = end.value
                        return result
                yield away
        finally:
            with self.lock:
                steps.close()

    def finish(self, steps: Sliced[T]) -> T:
        """Do all steps now, with the lock held from the first to the last."""
        with self.lock:
            return finish(steps)

    # -- pins

    def pin(self, tensor: Tensor, b: int) -> None:
        """Have a tensor be on backend ``b``."""
        with self.lock:
            if self._pins.get(tensor) != b:
                self._pins[tensor] = b
                self.graphs.clear()

    def backend_of(self, tensor: Tensor) -> int | None:
        """The backend that a tensor was pinned to, or assigned to with its graph; by index."""
        b, last = self._pins.get(tensor), self.last
        return last.backend_of(tensor) if b is None and last is not None else b

    def forget(self) -> None:
        """Forget all, and unplace the graphs that `place` placed."""
        with self.lock:
            self._forget()

    def _forget(self) -> None:
        self._pins.clear()
        self.graphs.clear()
        self._remembered.clear()
        self.last = None
        self.memory = Memory()
        for graph, buffers in list(self._placed.items()):
            for buffer in buffers:
                buffer.close()
            del self._placed[graph]

    def drop(self, graph: Graph) -> None:
        """Forget one graph, and the program that it shares with those that are like it."""
        with self.lock:
            kept = self.graphs.pop(graph.uid, None)
            if kept is None:
                return
            for known in kept.known.values():
                self._remembered.pop(known.shared, None)
                if self.last is known:
                    self.last = None

    # -- programs

    @staticmethod
    def floating(graph: Graph) -> tuple[Tensor, ...]:
        """The leafs that a run is likely to bring: all that have no memory."""
        return tuple(
            [
                t
                for ts in (graph.leafs, graph.nodes)
                for t in ts
                if t.op == "none" and t.placement is None and t.view_src is None
            ]
        )

    def known_of(self, graph: Graph, floating: tuple[Tensor, ...]) -> Known | None:
        """The program of a graph for runs that bring these leafs, if it still holds."""
        kept = self.graphs.get(graph.uid)
        known = None if kept is None else kept.known.get(floating)
        return None if known is None or not known.holds(graph) else known

    def building(
        self, graph: Graph, floating: tuple[Tensor, ...], cuts: Sequence[int] = ()
    ) -> Sliced[Program]:
        """A program that is not kept; ``cuts`` as `splitting` takes them."""
        q = Question(self._backends, self._types, frozenset(floating))
        pins = self._pins_of(graph)
        return (
            yield from building(graph, q, pins, floating, op_offload=self._op_offload, cuts=cuts)
        )

    def _pins_of(self, graph: Graph) -> dict[Tensor, int]:
        """The pins of a graph's own tensors: a program keeps these, and no other graph's."""
        found: dict[Tensor, int] = {}
        if self._pins:
            for tensor in (*graph.leafs, *graph.nodes):
                for one in (tensor, tensor.root):  # a leaf that only views read is in no list
                    b = self._pins.get(one)
                    if b is not None:
                        found[one] = b
        return found

    def program(
        self, graph: Graph, floating: tuple[Tensor, ...], *, own: bool = False
    ) -> Sliced[Known]:
        """The program of a graph, found now if it is not known.

        Args:
            graph: which.
            floating: leafs that each run brings.
            own: the program has to be of this graph itself, and not of one that is like it.
        """
        known = self.known_of(graph, floating)
        if known is None or (own and known.twins is not None):
            known = None if own else (yield from self._like(graph, floating))
            if known is None:
                program = yield from self.building(graph, floating)
                shared = _Shared(program, ground(graph, self._pins_of(graph)))
                known = Known(graph, floating, shared)
                # Leafs that only this graph has, and their values, must not be another graph's.
                if not program.fixed:
                    while len(self._remembered) >= _REMEMBERED:
                        del self._remembered[next(iter(self._remembered))]
                    self._remembered[shared] = outline(graph, floating)
            self._keep(graph, known)
        self.last = known
        return known

    def _like(self, graph: Graph, floating: tuple[Tensor, ...]) -> Sliced[Known | None]:
        key = outline(graph, floating)
        pins = self._pins_of(graph)
        for shared in [s for s, other in self._remembered.items() if other == key]:
            twins = yield from comparing(graph, floating, pins, shared.program, shared.ground)
            if twins is not None and shared in self._remembered:
                del self._remembered[shared]  # to the end: it was used last
                self._remembered[shared] = key
                return Known(graph, floating, shared, twins)
        return None

    def _keep(self, graph: Graph, known: Known) -> None:
        uid, graphs = graph.uid, self.graphs
        kept = graphs.get(uid)
        if kept is None:
            kept = graphs[uid] = OfGraph(weakref.ref(graph, lambda _: graphs.pop(uid, None)))
        kept.prepared.clear()  # they depend on the earlier program
        kept.known[known.floating] = known

    # -- layouts

    def layout(self, graph: Graph, known: Known, slot: int | None) -> Sliced[Layout]:
        """The layout with that memory; None: the compact one."""
        layout = known.layouts.get(slot)
        if layout is None or not layout.is_current(self.memory):
            if known.twins is not None and not known.shared.stands():
                # The equivalent graph was placed by the user meanwhile.
                self._remembered.pop(known.shared, None)
                known = yield from self.program(graph, known.floating, own=True)
            layout = yield from laying_out(known.program, slot, self.memory, self.side)
            known.layouts[slot] = layout
            known.shared.apart = known.shared.apart or slot is not None
            known.remember(graph)
        return layout

    def all(self, graph: Graph, floating: tuple[Tensor, ...]) -> Sliced[Layout]:
        """Program and compact layout."""
        known = yield from self.program(graph, floating)
        return (yield from self.layout(graph, known, None))

    # -- graphs placed for good

    def is_placed(self, graph: Graph) -> bool:
        """Whether the tensors of a graph that can be read have memory for good."""
        return graph in self._placed or graph.memory is not None

    def place(self, graph: Graph) -> None:
        """Give the tensors of a graph that can be read memory for good, until `forget`.

        Raises:
            AlreadyAllocated: it has been placed.
            AllocFailed: no memory; nothing is placed then.
        """
        with self.lock:
            self._place(graph)

    def _place(self, graph: Graph) -> None:
        if self.is_placed(graph):
            raise AlreadyAllocated(
                f"[Scheduler.alloc_graph] {graph!r} has memory already: call Scheduler.reset first"
            )
        known = finish(self.program(graph, (), own=True))
        program = known.program
        groups: dict[int, dict[Tensor, None]] = {}
        for tensor in (*program.fixed, *program.kept):
            if tensor.placement is None and tensor.view_src is None:
                groups.setdefault(program.at(tensor), {})[tensor] = None
        buffers: list[Buffer] = []
        try:
            for b, group in groups.items():
                buffers.append(self._types[b].alloc_tensors(group))
            known.remember(graph)
            finish(self.layout(graph, known, None))
        except BaseException:
            for buffer in buffers:
                buffer.close()
            raise
        self._placed[graph] = buffers
