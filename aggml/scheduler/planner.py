"""Planner: keeps programs and layouts of graphs as long as the facts on which they depend hold.

Here: finding them again, by the graph or by an equivalent one; pins; graphs placed permanently. Not
here: making them (deciding/, layout/), the order of submissions (running/).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aggml.errors import AggmlError, AlreadyAllocated, InvalidState
from aggml.process.locks import new_rlock
from aggml.scheduler.deciding.assign import Question
from aggml.scheduler.deciding.match import OuterFacts, compare_outlines, ground, outline, usages
from aggml.scheduler.deciding.program import build_split_graph
from aggml.scheduler.layout.layout import lay_out, place_permanently
from aggml.scheduler.layout.memory import SharedBuffers
from aggml.stream.slices import ATTEMPTS, IN_SLICES, finish
from aggml.tensor.placement import PlacementEpoch

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from aggml.backend import Backend
    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.memory.buffer_type import BufferType
    from aggml.scheduler.deciding.program import SplitGraph
    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.layout.plans import Side
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["GraphRecord", "PlannedGraph", "Planner", "PlanningFacts"]

T = TypeVar("T")

# How many programs are kept although their graph may be gone, since an equivalent graph may come
# again: a decoder that builds each step anew has a handful of shapes.
_REMEMBERED: Final = 16


class _Outdated(Exception):
    """A tensor was placed elsewhere, or a pin changed, while something was planned."""


class _Shared:
    """The program and layouts that equivalent graphs share.

    Attributes:
        program: the program of the first of these graphs.
        layouts: by the slot of their memory.
        ground: the facts on which the program depends.
        compact: whether only the compact layout fits in memory.
        apart: whether there is a layout with memory apart.
    """

    def __init__(self, program: SplitGraph, on: OuterFacts) -> None:
        self.program = program
        self.layouts: dict[int | None, Layout] = {}
        self.ground = on
        self.compact = False
        self.apart = False

    def is_current(self) -> bool:
        """Whether no tensor of the program has moved since it was made."""
        program, then = self.program, self.ground.placements
        n = len(then) - len(program.nodes)
        tensors = (*program.leafs[:n], *program.nodes)
        return all(t.placement is p for t, p in zip(tensors, then, strict=True))


class PlanningFacts:
    """The facts on which planning rests, as they are before the first slice of it.

    Other tasks may change them between two slices, and other threads at any time. So whatever is
    planned is kept only if it is current afterwards. It keeps the memory of all tensors alive.

    Attributes:
        epoch: the epoch of the placements.
        ground: where the tensors of the graph lie, and which of them are pinned.
    """

    __slots__ = ("_changes", "_planner", "_tensors", "epoch", "ground")

    def __init__(self, planner: Planner, graph: Graph) -> None:
        # Read first: if a tensor moves right after that, the epoch is known to be an old one.
        self.epoch: int = PlacementEpoch.value
        self._planner = planner
        self._changes = planner.changes
        self._tensors = (*graph.leafs, *graph.nodes)
        self.ground: OuterFacts = ground(graph, planner.pins_of(graph))

    def is_current(self, graph: Graph, placed: Sequence[Tensor] = ()) -> bool:
        """Whether all facts are the same.

        Args:
            graph: the same as before.
            placed: tensors that may have got memory since then.
        """
        return self._planner.changes == self._changes and self.is_unmoved(graph, placed)

    def is_unmoved(self, graph: Graph, placed: Sequence[Tensor] = ()) -> bool:
        """Whether all tensors lie where they lay, in buffers of the same use."""
        pairs = zip(self._tensors, self.ground.placements, strict=True)
        if not all(t.placement is then or (then is None and t in placed) for t, then in pairs):
            return False
        if self.epoch == PlacementEpoch.value:  # else the use of a buffer may have changed
            return True
        return all(
            now == then or then is None
            for now, then in zip(usages(graph), self.ground.usages, strict=True)
        )

    def lost_tensor(self) -> Tensor | None:
        """A tensor that had memory and has no longer, or lies elsewhere; None: there is none."""
        for tensor, place in zip(self._tensors, self.ground.placements, strict=True):
            if place is not None and tensor.placement is not place:
                return tensor
        return None


class PlannedGraph:
    """A graph whose program is known.

    Attributes:
        shared: its program and layouts, and those of all that are like it.
        twins: for each tensor that of the program; None: they are the same.
        floating: leafs that each run brings.
        brought: whether a run brought them.
        then: the places of its tensors on which the program rests.
    """

    def __init__(
        self,
        floating: tuple[Tensor, ...],
        shared: _Shared,
        then: PlanningFacts,
        twins: dict[Tensor, Tensor] | None = None,
    ) -> None:
        self.floating = floating
        self.brought = False
        self.shared = shared
        self.program: SplitGraph = shared.program
        self.layouts: dict[int | None, Layout] = shared.layouts
        self.twins = twins
        self.then: PlanningFacts = then
        self._epoch = then.epoch

    def is_valid(self, graph: Graph) -> bool:
        """Whether no tensor has moved."""
        epoch = PlacementEpoch.value  # read first: tensors may move meanwhile
        if self._epoch != epoch:
            if not self.then.is_unmoved(graph):
                return False
            self._epoch = epoch
        return True

    def remember(self, then: PlanningFacts) -> None:
        """Record the places that all tensors had then as valid."""
        self.then = then
        self._epoch = then.epoch

    def backend_of(self, tensor: Tensor) -> int | None:
        """The backend that computes, or holds, a tensor of the graph."""
        if self.twins is not None:
            tensor = self.twins.get(tensor, tensor)
        return self.program.found.backend.get(tensor)


class GraphRecord:
    """All that is kept of one graph, for as long as it lives.

    Attributes:
        gone: a callback that drops this record when the graph is gone and cannot be run again.
        known: by the leafs that each run brings.
        prepared: submissions by the words that asked for them (running/prepared.py).
    """

    __slots__ = ("gone", "known", "prepared")

    def __init__(self, gone: weakref.ref[Graph]) -> None:
        self.gone: weakref.ref[Any] = gone
        self.known: dict[tuple[Tensor, ...], PlannedGraph] = {}
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
        pins: backends that tensors are pinned to, by index.
        changes: how often pins or memory were changed; plans that were begun before are dropped.
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
        self.lock: threading.RLock = new_rlock()
        self.side = side
        self.memory: SharedBuffers = SharedBuffers()
        self.last: PlannedGraph | None = None
        self.graphs: dict[int, GraphRecord] = {}
        self.changes: int = 0
        # Weak: a tensor that is gone is in no graph, and each step may pin new ones.
        self.pins: weakref.WeakKeyDictionary[Tensor, int] = weakref.WeakKeyDictionary()
        self._remembered: dict[_Shared, tuple[object, ...]] = {}
        self._placed: weakref.WeakKeyDictionary[Graph, list[Buffer]] = weakref.WeakKeyDictionary()

    def guard(self, steps: Sliced[T]) -> Sliced[T]:
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
            if self.pins.get(tensor) != b:
                self.pins[tensor] = b
                self.changes += 1
                self.graphs.clear()

    def backend_of(self, tensor: Tensor) -> int | None:
        """The backend that a tensor was pinned to, or assigned to with its graph; by index."""
        b, last = self.pins.get(tensor), self.last
        return last.backend_of(tensor) if b is None and last is not None else b

    def forget(self) -> None:
        """Forget all, and unplace the graphs that `place` placed."""
        with self.lock:
            self._forget()

    def _forget(self) -> None:
        self.changes += 1
        self.pins.clear()
        self.graphs.clear()
        self._remembered.clear()
        self.last = None
        self.memory = SharedBuffers()
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
    def floating_leafs(graph: Graph) -> tuple[Tensor, ...]:
        """The leafs that a run is likely to bring: all that have no memory."""
        return tuple(
            [
                t
                for ts in (graph.leafs, graph.nodes)
                for t in ts
                if t.op == "none" and t.placement is None and t.view_src is None
            ]
        )

    def find_known(self, graph: Graph, floating: tuple[Tensor, ...]) -> PlannedGraph | None:
        """Find the program of a graph for runs that bring these leafs, if it still holds."""
        kept = self.graphs.get(graph.uid)
        known = None if kept is None else kept.known.get(floating)
        return None if known is None or not known.is_valid(graph) else known

    def build_split_graph(
        self, graph: Graph, floating: tuple[Tensor, ...], cuts: Sequence[int] = ()
    ) -> Sliced[SplitGraph]:
        """A program that is not kept; ``cuts`` as `splitting` takes them."""
        q = Question(self._backends, self._types, frozenset(floating))
        pins = self.pins_of(graph)
        return (
            yield from build_split_graph(
                graph, q, pins, floating, op_offload=self._op_offload, cuts=cuts
            )
        )

    def pins_of(self, graph: Graph) -> dict[Tensor, int]:
        """The pins of a graph's own tensors: a program keeps these, and no other graph's."""
        found: dict[Tensor, int] = {}
        if self.pins:
            for tensor in (*graph.leafs, *graph.nodes):
                for one in (tensor, tensor.root):  # a leaf that only views read is in no list
                    b = self.pins.get(one)
                    if b is not None:
                        found[one] = b
        return found

    def program(
        self, graph: Graph, floating: tuple[Tensor, ...], *, own: bool = False
    ) -> Sliced[PlannedGraph]:
        """The program of a graph, found now if it is not known.

        Args:
            graph: which.
            floating: leafs that each run brings.
            own: the program has to be of this graph itself, and not of one that is like it.
        """
        for attempt in range(ATTEMPTS):
            known = self.find_known(graph, floating)
            if known is None or (own and known.twins is not None):
                then = PlanningFacts(self, graph)
                try:
                    steps = self._make(graph, floating, then, own=own)
                    known = (yield from steps) if attempt < IN_SLICES else finish(steps)
                except AggmlError:
                    if then.is_current(graph):
                        raise
                    continue  # it may have failed only because a tensor moved
                if not then.is_current(graph):
                    continue
                self._keep(graph, known)
            self.last = known
            return known
        raise _restless(graph)

    def _make(
        self, graph: Graph, floating: tuple[Tensor, ...], then: PlanningFacts, *, own: bool
    ) -> Sliced[PlannedGraph]:
        """The program of a graph, or of one that is like it; nothing is kept."""
        known = None if own else (yield from self._like(graph, floating, then))
        if known is None:
            program = yield from self.build_split_graph(graph, floating)
            known = PlannedGraph(floating, _Shared(program, then.ground), then)
        return known

    def _like(
        self, graph: Graph, floating: tuple[Tensor, ...], then: PlanningFacts
    ) -> Sliced[PlannedGraph | None]:
        key = outline(graph, floating)
        pins = then.ground.pins
        for shared in [s for s, other in list(self._remembered.items()) if other == key]:
            twins = yield from compare_outlines(
                graph, floating, pins, shared.program, shared.ground
            )
            if twins is not None and shared in self._remembered:
                return PlannedGraph(floating, shared, then, twins)
        return None

    def _keep(self, graph: Graph, known: PlannedGraph) -> None:
        uid, graphs = graph.uid, self.graphs
        kept = graphs.get(uid)
        if kept is None:
            kept = graphs[uid] = GraphRecord(weakref.ref(graph, lambda _: graphs.pop(uid, None)))
        kept.prepared.clear()  # they depend on the earlier program
        kept.known[known.floating] = known
        # Leafs that only this graph has, and their values, must not be another graph's.
        if not known.program.fixed:
            self._remembered.pop(known.shared, None)  # to the end: it was used last
            for oldest in list(self._remembered)[: 1 - _REMEMBERED]:
                self._remembered.pop(oldest, None)
            self._remembered[known.shared] = outline(graph, known.floating)

    # -- layouts

    def layout(self, graph: Graph, known: PlannedGraph, slot: int | None) -> Sliced[Layout]:
        """The layout with that memory; None: the compact one."""
        for attempt in range(ATTEMPTS):
            layout = known.layouts.get(slot)
            if layout is not None and layout.is_current(self.memory):
                return layout
            if known.twins is not None and not known.shared.is_current():
                # The equivalent graph was placed by the user meanwhile.
                self._remembered.pop(known.shared, None)
                known = yield from self.program(graph, known.floating, own=True)
            then, fixed = known.then, known.program.fixed
            try:
                if fixed:
                    placing = place_permanently(known.program)
                    (yield from placing) if attempt < IN_SLICES else finish(placing)
                if not then.is_current(graph, fixed):
                    raise _Outdated
                if fixed:
                    then = PlanningFacts(self, graph)
                steps = lay_out(known.program, slot, self.memory, self.side)
                layout = (yield from steps) if attempt < IN_SLICES else finish(steps)
                if not then.is_current(graph):
                    raise _Outdated
            except (AggmlError, _Outdated) as error:
                # An error may have no other cause than that a tensor moved.
                if not isinstance(error, _Outdated) and known.then.is_current(graph, fixed):
                    raise
                kept = self.graphs.get(graph.uid)
                if kept is not None and kept.known.get(known.floating) is known:
                    del kept.known[known.floating]
                known = yield from self.program(graph, known.floating, own=known.twins is None)
                continue
            known.layouts[slot] = layout
            known.shared.apart = known.shared.apart or slot is not None
            known.remember(then)
            return layout
        raise _restless(graph)

    def node_by_node(
        self, graph: Graph, floating: tuple[Tensor, ...]
    ) -> Sliced[tuple[Layout, PlanningFacts]]:
        """A layout in which each node is a split of its own, and the places on which it rests."""
        for attempt in range(ATTEMPTS):
            before = PlanningFacts(self, graph)
            steps = self._each_apart(graph, floating, before)
            try:
                found = (yield from steps) if attempt < IN_SLICES else finish(steps)
            except AggmlError:
                if before.is_current(graph):
                    raise
                continue
            if found is not None:
                return found
        raise _restless(graph)

    def _each_apart(
        self, graph: Graph, floating: tuple[Tensor, ...], before: PlanningFacts
    ) -> Sliced[tuple[Layout, PlanningFacts] | None]:
        program = yield from self.build_split_graph(graph, floating, range(len(graph.nodes)))
        yield from place_permanently(program)
        then = PlanningFacts(self, graph)
        if not before.is_current(graph, program.fixed):
            return None
        layout = yield from lay_out(program, None, self.memory, self.side)
        return (layout, then) if then.is_current(graph) else None

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
        before = PlanningFacts(self, graph)
        program = known.program
        groups: dict[int, dict[Tensor, None]] = {}
        for tensor in (*program.fixed, *program.kept):
            if tensor.placement is None and tensor.view_src is None:
                groups.setdefault(program.at(tensor), {})[tensor] = None
        buffers: list[Buffer] = []
        try:
            for b, group in groups.items():
                buffers.append(self._types[b].alloc_tensors(group))
            if not before.is_current(graph, [t for group in groups.values() for t in group]):
                raise _restless(graph)
            known.remember(PlanningFacts(self, graph))
            finish(self.layout(graph, known, None))
        except BaseException:
            for buffer in buffers:
                buffer.close()
            raise
        self._placed[graph] = buffers


def _restless(graph: Graph) -> InvalidState:
    return InvalidState(
        f"[Scheduler] tensors of {graph!r} were placed elsewhere each time that it was planned: "
        "order the calls that close their buffers and allocate them"
    )
