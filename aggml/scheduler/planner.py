"""Planner: programs and layouts of graphs, kept for as long as what they rest on stands.

Here: finding them again, by the graph or by one that is like it. Not here: making them (program.py,
layout.py), who may submit (scheduler.py).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from aggml.scheduler.deciding.assign import Question
from aggml.scheduler.deciding.match import Ground, comparing, ground, outline
from aggml.scheduler.deciding.program import building
from aggml.scheduler.layout.layout import laying_out
from aggml.scheduler.layout.memory import Memory
from aggml.scheduler.running.prepared import Repeat
from aggml.tensor.placement import PlacementEpoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.backend import Backend
    from aggml.graph import Graph
    from aggml.memory.buffer_type import BufferType
    from aggml.scheduler.deciding.program import Program
    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.running.job import Job
    from aggml.scheduler.running.sides import Lanes
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = ["Known", "Planner"]

# Graphs that may be gone but whose like may come again: a decoder that builds each step anew has a
# handful of shapes.
_REMEMBERED: Final = 16

# Of one graph: who asks for other outputs, or names the inputs in another order, asks for something
# else.
_REPEATS: Final = 8


class _Shared:
    """What graphs that are alike have in common.

    Attributes:
        program: of the first of them.
        layouts: by the slot of their memory.
        ground: what the program rests on.
        compact: whether another layout did not fit.
        apart: whether there is one with memory apart.
    """

    def __init__(self, program: Program, on: Ground) -> None:
        self.program = program
        self.layouts: dict[int | None, Layout] = {}
        self.ground = on
        self.compact = False
        self.apart = False

    def stands(self) -> bool:
        """Whether the tensors of the program lie where they lay when it was made."""
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
        """Whether all tensors still lie where they lay."""
        if self._epoch != PlacementEpoch.value:
            now = ground(graph, {})
            if now.usages != self._ground.usages or any(
                a is not b for a, b in zip(now.placements, self._ground.placements, strict=True)
            ):
                return False
            self._epoch = PlacementEpoch.value
        return True

    def remember(self, graph: Graph) -> None:
        """Take where all tensors lie now for granted."""
        self._ground = ground(graph, {})
        self._epoch = PlacementEpoch.value

    def backend_of(self, tensor: Tensor) -> int | None:
        """Who computes, or holds, a tensor of the graph."""
        if self.twins is not None:
            tensor = self.twins.get(tensor, tensor)
        return self.program.found.backend.get(tensor)


class Planner:
    """Makes programs and layouts, and keeps them.

    Args:
        backends: in order of priority.
        types: of their compute buffers.
        lanes: further backends.
        op_offload: see `Scheduler`.

    Attributes:
        memory: buffers that layouts share.
        last: what was looked at last.
        known: by graph and the leafs that each run brings.
        repeats: by graph, outputs and inputs, as they were given.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        types: Sequence[BufferType],
        lanes: Lanes,
        *,
        op_offload: bool,
    ) -> None:
        self._backends = backends
        self._types = types
        self._lanes = lanes
        self._op_offload = op_offload
        self.memory = Memory()
        self.last: Known | None = None
        self.known: dict[tuple[object, ...], Known] = {}
        self.repeats: dict[tuple[object, ...], Repeat] = {}
        # Weak: a tensor that is gone is in no graph, and each step may pin new ones.
        self._pins: weakref.WeakKeyDictionary[Tensor, int] = weakref.WeakKeyDictionary()
        self._graphs: dict[int, weakref.ref[Graph]] = {}
        self._remembered: dict[_Shared, tuple[object, ...]] = {}

    # -- pins

    def pin(self, tensor: Tensor, b: int) -> None:
        """Have a tensor be on backend ``b``."""
        if self._pins.get(tensor) != b:
            self._pins[tensor] = b
            self._forget_graphs()

    def backend_of(self, tensor: Tensor) -> int | None:
        """Where a tensor was pinned, or assigned when its graph was last looked at."""
        b = self._pins.get(tensor)
        return self.last.backend_of(tensor) if b is None and self.last is not None else b

    def _forget_graphs(self) -> None:
        self.known.clear()
        self.repeats.clear()
        self._graphs.clear()

    def forget(self) -> None:
        """Forget all."""
        self._pins.clear()
        self._forget_graphs()
        self._remembered.clear()
        self.last = None
        self.memory = Memory()

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

    def building(
        self, graph: Graph, floating: tuple[Tensor, ...], cuts: Sequence[int] = ()
    ) -> Steps[Program]:
        """A program that is not kept; ``cuts`` as `splitting` takes them."""
        q = Question(self._backends, self._types, frozenset(floating))
        return building(
            graph, q, dict(self._pins), floating, op_offload=self._op_offload, cuts=cuts
        )

    def program(
        self, graph: Graph, floating: tuple[Tensor, ...], *, own: bool = False
    ) -> Steps[Known]:
        """What is known of a graph, or is found out now.

        Args:
            graph: which.
            floating: leafs that each run brings.
            own: the program has to be of this graph itself, and not of one that is like it.
        """
        key = (graph.uid, *floating)
        known = self.known.get(key)
        if known is None or not known.holds(graph) or (own and known.twins is not None):
            known = None if own else (yield from self._like(graph, floating))
            if known is None:
                program = yield from self.building(graph, floating)
                shared = _Shared(program, ground(graph, dict(self._pins)))
                known = Known(graph, floating, shared)
                # Leafs that this graph alone has, and values in them, are no other graph's.
                if not program.fixed:
                    while len(self._remembered) >= _REMEMBERED:
                        del self._remembered[next(iter(self._remembered))]
                    self._remembered[shared] = outline(graph, floating)
            self._keep(key, graph, known)
        self.last = known
        return known

    def _like(self, graph: Graph, floating: tuple[Tensor, ...]) -> Steps[Known | None]:
        key = outline(graph, floating)
        pins = dict(self._pins)
        for shared in [s for s, other in self._remembered.items() if other == key]:
            twins = yield from comparing(graph, floating, pins, shared.program, shared.ground)
            if twins is not None and shared in self._remembered:
                del self._remembered[shared]  # to the end: it was used last
                self._remembered[shared] = key
                return Known(graph, floating, shared, twins)
        return None

    def _keep(self, key: tuple[object, ...], graph: Graph, known: Known) -> None:
        uid = graph.uid
        self._forget_repeats(uid)
        self.known[key] = known
        if uid not in self._graphs:
            tables, graphs = (self.known, self.repeats), self._graphs

            def gone(_: object) -> None:  # the graph is, so nobody can run it again
                graphs.pop(uid, None)
                for table in tables:
                    for k in [k for k in table if k[0] == uid]:
                        del table[k]

            graphs[uid] = weakref.ref(graph, gone)

    # -- what is asked for again

    def repeat(self, key: tuple[object, ...], job: Job) -> None:
        """Remember under ``key`` what was just enqueued for a job, if it was recorded."""
        known = job.known
        if known is None:
            return
        repeat = self.repeats.get(key)
        for slot, layout in known.layouts.items():
            recording = layout.recordings.get(job.form)
            if recording is None:
                continue
            if repeat is None:
                mine = [k for k in self.repeats if k[0] == key[0]]
                if len(mine) >= _REPEATS:
                    del self.repeats[mine[0]]
                repeat = self.repeats[key] = Repeat(job, known)
            if repeat.recordings.get(slot) != (layout, recording):
                repeat.learn(layout, recording, job)

    def _forget_repeats(self, uid: int) -> None:
        for key in [k for k in self.repeats if k[0] == uid]:
            del self.repeats[key]

    # -- layouts

    def layout(self, graph: Graph, known: Known, slot: int | None) -> Steps[Layout]:
        """The layout with that memory; None: the compact one."""
        layout = known.layouts.get(slot)
        if layout is None or not layout.is_current(self.memory):
            if known.twins is not None and not known.shared.stands():
                # Somebody placed the graph that this one is like.
                self._remembered.pop(known.shared, None)
                known = yield from self.program(graph, known.floating, own=True)
            layout = yield from laying_out(known.program, slot, self.memory, self._lanes)
            known.layouts[slot] = layout
            known.shared.apart = known.shared.apart or slot is not None
            known.remember(graph)
        return layout

    def all(self, graph: Graph, floating: tuple[Tensor, ...]) -> Steps[Layout]:
        """Program and compact layout."""
        known = yield from self.program(graph, floating)
        return (yield from self.layout(graph, known, None))
