"""Rewriting: for each tensor of a program one that stands for it, with memory of its own to come.

Here: nodes that read copies instead of what they were written to read, graphs of splits, the order
in which values are needed. Not here: where they lie (placing.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.graph import graph_of
from aggml.memory.buffer import HOST
from aggml.scheduler.deciding.assign import VIEW_OPS
from aggml.tensor import change, new_like
from aggml.tensor.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from aggml.backend import Backend
    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.scheduler.deciding.program import Program
    from aggml.scheduler.deciding.split import Copy
    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.layout.memory import Memory
    from aggml.tensor import Tensor

__all__ = ["COMPUTE_LANES", "Rewriting"]

# Streams beside its own on which a backend may compute: for so many crossings of a graph there and
# back the submissions do not hold each other up.
COMPUTE_LANES: Final = 3

# Where a node lies that takes no memory, but keeps its source until it comes.
_NOWHERE: Final = Placement(HOST.alloc_buffer(0), 0, "", 0)


def _places(program: Program, *, apart: bool) -> tuple[list[tuple[int, int]], list[int]]:
    """(backend, lane) of all splits, without repetition, and for each split the index of its own.

    A stream is in order, so a split that waits for another device holds up all behind it, of the
    next submission too. With memory apart, the splits of one backend are therefore on several
    streams. The last is on the backend's own: what its user enqueues there comes after all of them.
    """
    places = [(b, 0) for b in range(len(program.q.backends))]
    of: list[int] = []
    left = [0] * len(places)
    for split in program.splits:
        left[split.backend] += 1
    seen = [0] * len(left)
    for split in program.splits:
        b = split.backend
        seen[b] += 1
        last = seen[b] == left[b] or not apart
        place = (b, 0 if last else 1 + (seen[b] - 1) % COMPUTE_LANES)
        if place not in places:
            places.append(place)
        of.append(places.index(place))
    return places, of


class Rewriting:
    """The first part of making a Layout."""

    def __init__(
        self,
        program: Program,
        layout: Layout,
        memory: Memory,
        lane: Callable[[str, int], Backend],
    ) -> None:
        self.program = program
        self.q = program.q
        self.memory = memory
        self.lane = lane
        self.layout = layout
        self.twins = self.layout.twins
        self.copies: dict[Copy, Tensor] = {}
        self.graphs: list[Graph] = []
        self.order: list[Tensor] = []  # for the allocator: copies and nodes, as they are needed
        self.ids: list[int] = []
        #: (backend, lane) of splits: each such pair has a stream and scratch of its own.
        self.places, self.of = _places(program, apart=layout.slot is not None)
        self.keys: list[Hashable] = []
        self.by: dict[Tensor, int] = {}  # index of the place that makes a new storage
        self.across: set[Tensor] = set()  # new storages that another place touches
        self.at: dict[Tensor, int] = {}  # backend of each new storage
        self.shared: set[Tensor] = set()  # new storages that more than one action touches
        self.addresses: dict[Tensor, int] = {}
        self.blocks: list[Buffer] = []

    def leafs(self) -> None:
        """Leafs first: those that each run brings get twins of their own."""
        program = self.program
        for leaf in program.leafs:
            if leaf in program.floating:
                if leaf in program.direct:
                    twin = new_like(leaf, "none", ())
                    self.twins[leaf] = twin
                    self.at[twin] = program.found.backend[leaf]
                    self.shared.add(twin)
            else:
                self.twins[leaf] = leaf

    def twin(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor; a view may be needed before its turn, to be copied from."""
        found = self.twins.get(tensor)
        if found is None:
            assert tensor.view_src is not None
            src = tuple([None if s is None else self.twin(s) for s in tensor.src])
            found = new_like(tensor, tensor.op, src, self.twin(tensor.view_src))
            self.twins[tensor] = found
            self.order.append(found)
            self.ids.append(0)  # a view gets no memory
        return found

    def until_copied(self, origin: Tensor) -> None:
        """Have a value last until what comes next was copied."""
        source = self.twin(origin)
        root = source.view_src or source
        if root.placement is None:
            until = new_like(source, "copy", (source,))
            change(until, "placement", _NOWHERE)
            self.order.append(until)
            self.ids.append(self.program.at(origin))
            self.shared.add(root)

    def split(self, i: int) -> None:
        """Copies and nodes of a split; to be called for each, in order."""
        program, twins = self.program, self.twins
        part = program.splits[i]
        for copy in part.inputs:
            origin = copy.tensor
            if not program.is_upload(copy):
                self.until_copied(origin)
            if copy in program.experts:
                self.until_copied(program.experts[copy])
            twin = new_like(origin, "copy", ())
            twin._flags = 0
            change(twin, "name", f"{self.q.backends[copy.backend].name}#{origin.name}"[:60])
            self.copies[copy] = twin
            self.at[twin] = copy.backend
            self.by[twin] = self.of[i]
            self.shared.add(twin)
            self.order.append(twin)
            self.ids.append(self.of[i])
        nodes: list[Tensor] = []
        outside: dict[Tensor, None] = {}
        mine: set[Tensor] = set()
        swaps, copies = part.swaps, self.copies
        src: tuple[Tensor | None, ...]
        shown: Tensor | None
        for node in program.nodes[part.start : part.end]:
            if node.op == "none":
                continue
            if swaps and node.op not in VIEW_OPS:
                src = tuple(
                    [
                        None if s is None else copies[swaps[s]] if s in swaps else twins[s]
                        for s in node.src
                    ]
                )
            else:
                src = tuple([None if s is None else twins.get(s) for s in node.src])
            viewed = node.view_src
            shown = None if viewed is None else twins.get(viewed)
            early = twins.get(node)
            twin = new_like(node, node.op, src, shown) if early is None else early
            if viewed is None:
                if node.placement is not None:
                    change(twin, "placement", node.placement)
                else:
                    self.at[twin] = part.backend
                    self.by[twin] = self.of[i]
                mine.add(twin)
            elif shown is None:  # a view of a leaf that only copies show
                continue
            twins[node] = twin
            nodes.append(twin)
            if early is None:
                self.order.append(twin)
                self.ids.append(self.of[i])
            if node.op not in VIEW_OPS:
                for s in src:
                    if s is not None:
                        r = s.view_src or s
                        if r not in mine:
                            outside[r] = None
                if shown is not None and shown not in mine:
                    outside[shown] = None
        for r in outside:
            if r in self.at:
                self.shared.add(r)
                if self.by.get(r, self.of[i]) != self.of[i]:
                    self.across.add(r)
        self.graphs.append(graph_of(nodes, list(outside)))
