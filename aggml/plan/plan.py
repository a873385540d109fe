"""Plan: a graph compiled for one device over fixed addresses: its storages and its steps.

Here: the classes, and how they print. Not here: compiling (lowering.py), running
(`Stream.run_plan`).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aggml.errors import InvalidState
from aggml.ops.table import IDLE
from aggml.plan.storages import Storages
from aggml.process import html
from aggml.process.picture import DrawnRow, draw_rows, save_svg

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from aggml.graph import Graph
    from aggml.native import _native
    from aggml.plan.call import PlanCall
    from aggml.tensor import Tensor
    from aggml.tensor.placement import Placement

__all__ = ["DevicePlan", "NativePlan", "Plan", "PlanStep"]


class PlanStep(NamedTuple):
    """One step as ``print(plan)`` shows it; steps run in order, chunks of one on any threads.

    Nodes that are computed together are one step, ``mul_mat+add+gelu``. It has the name of the last
    node; the values of the other nodes are not stored. If ``beside`` is true, chunks of this step
    and of the step before it run in any order.
    """

    node: str
    op: str
    n_chunks: int
    beside: bool = False


class DevicePlan:
    """A graph compiled over fixed addresses; immutable. Devices subclass it for plans of their own.

    Addresses in scratch are offsets from a base that each run gets. A plan does not refer to its
    graph, so the graph is freed as soon as it has no other reference (compiled.py).

    Args:
        graph: the graph that is compiled.
        arena_size: bytes of scratch that a run needs; if not given, taken from the graph's memory.
        storages: the storages that the nodes read and write, if compiling has found them already.

    Attributes:
        nodes: the nodes of the graph, in the order of running.
        leafs: the leafs of the graph.
        uid: the uid of the graph.
        reads: the storages that a run reads before it writes them; a poisoned one fails it.
        writes: the storages that a run writes in full; a failed one leaves them poisoned.
        partial: the storages that a run writes in part.
        keep: the placements of all tensors: their memory lives as long as the plan.
        memory: buffers of tensors that have no placement; they live as long as the plan, too.

    Raises:
        InvalidArgument: a node would write memory that is read-only.
    """

    __slots__ = (
        "_graph",
        "arena_size",
        "keep",
        "leafs",
        "memory",
        "nodes",
        "partial",
        "reads",
        "uid",
        "writes",
    )

    def __init__(
        self, graph: Graph, *, arena_size: int = 0, storages: Storages | None = None
    ) -> None:
        if storages is None:
            storages = Storages.of(graph)
        self.nodes: tuple[Tensor, ...] = graph.nodes
        self.leafs: tuple[Tensor, ...] = graph.leafs
        self.uid: int = graph.uid
        self._graph = weakref.ref(graph)
        self.arena_size: int = arena_size
        self.reads: tuple[Tensor, ...] = tuple(storages.reads)
        self.writes: tuple[Tensor, ...] = tuple(storages.writes)
        self.partial: tuple[Tensor, ...] = tuple(storages.partial)
        self.keep: list[Placement | None] = [t.placement for t in (*graph.leafs, *graph.nodes)]
        self.memory: Sequence[object] = ()

    @property
    def graph(self) -> Graph:
        """The graph that was compiled.

        Raises:
            InvalidState: the graph is gone. ``nodes`` and ``leafs`` stay.
        """
        graph = self._graph()
        if graph is None:
            raise InvalidState(
                f"[{type(self).__name__}.graph] graph {self.uid} is gone: keep the Graph as long "
                "as its plan"
            )
        return graph

    @property
    def is_valid(self) -> bool:
        """Whether compiling again would give the same plan, provided that no tensor has moved."""
        return True

    @property
    def steps(self) -> list[PlanStep]:
        """The steps of a run, in order."""
        return [PlanStep(n.name, n.op, 1) for n in self.nodes if n.op not in IDLE]

    def __str__(self) -> str:
        lines = [
            f"{i:4} {'+' if s.beside else ' '} {s.op:16} {s.node:32} "
            f"{s.n_chunks} {'chunk' if s.n_chunks == 1 else 'chunks'}"
            for i, s in enumerate(self.steps)
        ]
        if any(s.beside for s in self.steps):
            lines.append("   + runs side by side with the step before it")
        return "\n".join([repr(self), *lines])

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of graph {self.uid}, {len(self.steps)} steps, "
            f"{self.arena_size} bytes of scratch>"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the steps."""
        return html.plain(str(self))

    def plot(self, path: str | os.PathLike[str], *, title: str = "") -> None:
        """Draw the steps as SVG, with lines from results to the steps that read them.

        Nodes that are computed together are one row. Coloured steps run side by side with the
        one before or behind them.

        Args:
            path: ends with ``.svg``.
            title: above it; if empty, ``repr(plan)``.

        Raises:
            InvalidArgument: another suffix.
            OSError: the file cannot be written.
        """
        steps = self.steps
        beside = [step.beside for step in steps]
        rows = [
            DrawnRow(
                f"{step.op:24} {step.node}, "
                f"{step.n_chunks} {'chunk' if step.n_chunks == 1 else 'chunks'}",
                sources,
                band=0 if step.beside or then else -1,
                about="runs side by side with the step before it" if step.beside else "",
            )
            for step, sources, then in zip(
                steps, _sources(self.nodes, steps), [*beside[1:], False], strict=True
            )
        ]
        save_svg(path, draw_rows(title or repr(self), rows), "DevicePlan.plot")


def _sources(nodes: Sequence[Tensor], steps: Sequence[PlanStep]) -> list[tuple[int, ...]]:
    """For each step, the steps whose results it reads, also through views and fused nodes."""
    named: dict[str, list[Tensor]] = {}
    for node in reversed(nodes):
        if node.op not in IDLE:
            named.setdefault(node.name, []).append(node)
    found = [named[step.node].pop() if named.get(step.node) else None for step in steps]
    place = {node: i for i, node in enumerate(found) if node is not None}
    out = []
    for i, last in enumerate(found):
        sources: set[int] = set()
        seen: set[Tensor] = set()
        unvisited = [] if last is None else [last]
        while unvisited:
            node = unvisited.pop()
            for source in (*node.src, node.view_src):
                if source is None or source in seen:
                    continue
                seen.add(source)
                at = place.get(source)
                if at is None:
                    unvisited.append(source)
                elif at < i:
                    sources.add(at)
        out.append(tuple(sorted(sources)))
    return out


class NativePlan(Protocol):
    """A plan that a native stream runs, and what it needs."""

    @property
    def native(self) -> _native.Plan:
        """The steps, for the stream of the device that they were compiled for."""
        ...

    @property
    def arena_size(self) -> int:
        """Bytes of scratch that a run needs."""
        ...

    @property
    def calls(self) -> Mapping[int, PlanCall]:
        """The steps that call Python functions, by index."""
        ...


class Plan(DevicePlan):
    """A graph lowered into native steps, for `Stream.run_plan`.

    Args:
        graph: the graph that was compiled.
        native: the steps.
        storages: the storages that the nodes read and write.
        calls: the steps that call Python functions, by index.
        still_holds: whether all assumptions of the steps about weights are still true.

    Attributes:
        native: as given.
        calls: as given.
        work: floating point operations of a run, for devices that simulate a speed.
    """

    __slots__ = ("_weights_are_valid", "calls", "native", "work")

    def __init__(
        self,
        graph: Graph,
        native: _native.Plan,
        storages: Storages,
        calls: Mapping[int, PlanCall],
        weights_are_valid: Callable[[], bool],
    ) -> None:
        super().__init__(graph, arena_size=native.arena_size, storages=storages)
        self.native: _native.Plan = native
        self.calls: Mapping[int, PlanCall] = calls
        self.work: int = 0
        self._weights_are_valid = weights_are_valid

    @property
    def is_valid(self) -> bool:
        """Whether the same weights as at compile time may be packed."""
        return self._weights_are_valid()

    @property
    def steps(self) -> list[PlanStep]:
        """The steps of a run, in order."""
        return [PlanStep(*step) for step in self.native.steps()]
