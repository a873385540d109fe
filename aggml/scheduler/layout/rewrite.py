"""The first step of a layout: for each tensor of a program, one that stands for it.

Here: nodes that read copies instead of their original sources, a graph for each split, the order in
which values are needed, the sites where splits compute. The user's graph is never changed. Not
here: where the new tensors lie (place.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.graph import graph_of
from aggml.memory.buffer_type import HOST
from aggml.ops.table import VIEWS
from aggml.scheduler.layout.memory import SIDE_STREAMS
from aggml.tensor import change, new_like
from aggml.tensor.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.graph import Graph
    from aggml.scheduler.deciding.program import SplitGraph
    from aggml.scheduler.deciding.split import Copy, Split
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["ComputeSite", "Rewritten", "rewrite"]

# The site of a node that takes no memory, but keeps its source alive until the node's turn.
_NOWHERE: Final = Placement(HOST.alloc_buffer(0), 0, "", 0)


class ComputeSite(NamedTuple):
    """A place where splits compute, with a stream and scratch of its own.

    Attributes:
        backend: its index.
        side: 0 for the backend's own stream, else the number of a further one.
    """

    backend: int
    side: int


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """A program in tensors of its own.

    A storage is a tensor that is no view. The new storages are those that the layout has to find
    memory for: leafs that each run brings, copies, and nodes that nobody placed.

    Attributes:
        program: what was rewritten.
        twins: for each tensor of the program, the one that stands for it.
        copies: for each copy, the tensor that it fills.
        graphs: the nodes of each split.
        order: copies and nodes as they are needed, for the allocator.
        sites_of_order: for each of them the index of the site whose memory it takes.
        sites: where splits compute.
        site_of: for each split the index of its site.
        home: for each new storage the index of the backend where it lies.
        kept: new tensors that can be read after a run.
        shared: new storages that more than one action touches.
        across: new storages that several sites touch.
    """

    program: SplitGraph
    twins: Mapping[Tensor, Tensor]
    copies: Mapping[Copy, Tensor]
    graphs: Sequence[Graph]
    order: Sequence[Tensor]
    sites_of_order: Sequence[int]
    sites: Sequence[ComputeSite]
    site_of: Sequence[int]
    home: Mapping[Tensor, int]
    kept: Sequence[Tensor]
    shared: frozenset[Tensor]
    across: frozenset[Tensor]

    @property
    def leafs(self) -> list[Tensor]:
        """The new tensors without operation."""
        return [t for t in self.twins.values() if t.op == "none"]


def rewrite(program: SplitGraph, *, apart: bool) -> Sliced[Rewritten]:
    """Rewrite a program, a split in each step.

    Args:
        program: what to rewrite.
        apart: whether submissions are to have memory of their own, and run side by side.
    """
    draft = _Draft(program, apart=apart)
    draft.add_leafs()
    for i in range(len(program.splits)):
        draft.add_split(i)
        yield
    return draft.finish()


def _sites(program: SplitGraph, *, apart: bool) -> tuple[list[ComputeSite], list[int]]:
    """The sites of all splits, without repetition, and for each split the index of its own.

    A stream runs in order, so a split that waits for another device holds up all later splits, of
    the next submission as well. With memory apart, the splits of one backend are therefore on
    several streams. The last split is on the backend's own stream: work that the user enqueues
    there comes after all splits.
    """
    sites = [ComputeSite(b, 0) for b in range(len(program.q.backends))]
    site_of: list[int] = []
    total = [0] * len(sites)
    for split in program.splits:
        total[split.backend] += 1
    seen = [0] * len(total)
    for split in program.splits:
        b = split.backend
        seen[b] += 1
        on_own = seen[b] == total[b] or not apart
        site = ComputeSite(b, 0 if on_own else 1 + (seen[b] - 1) % SIDE_STREAMS)
        if site not in sites:
            sites.append(site)
        site_of.append(sites.index(site))
    return sites, site_of


class _Draft:
    """A `Rewritten` that is being filled, split after split; its attributes are explained there."""

    def __init__(self, program: SplitGraph, *, apart: bool) -> None:
        self.program = program
        self.twins: dict[Tensor, Tensor] = {}
        self.copies: dict[Copy, Tensor] = {}
        self.graphs: list[Graph] = []
        self.order: list[Tensor] = []
        self.sites_of_order: list[int] = []
        self.sites, self.site_of = _sites(program, apart=apart)
        self.home: dict[Tensor, int] = {}
        self.maker: dict[Tensor, int] = {}  # the site that fills a new storage
        self.shared: set[Tensor] = set()
        self.across: set[Tensor] = set()

    def finish(self) -> Rewritten:
        """Return the value, once all splits were added."""
        kept = [self.twins[t] for t in self.program.kept if t in self.twins]
        self.shared.update([t for t in kept if t in self.home])
        return Rewritten(
            program=self.program,
            twins=self.twins,
            copies=self.copies,
            graphs=self.graphs,
            order=self.order,
            sites_of_order=self.sites_of_order,
            sites=self.sites,
            site_of=self.site_of,
            home=self.home,
            kept=kept,
            shared=frozenset(self.shared),
            across=frozenset(self.across),
        )

    def add_leafs(self) -> None:
        """Leafs stand for themselves; those that each run brings get twins."""
        program = self.program
        for leaf in program.leafs:
            if leaf not in program.floating:
                self.twins[leaf] = leaf
            elif leaf in program.direct:
                twin = self.twins[leaf] = new_like(leaf, "none", ())
                self.home[twin] = program.found.backend[leaf]
                self.shared.add(twin)

    def add_split(self, i: int) -> None:
        """Add the copies and nodes of a split; the splits before it were added."""
        split, site = self.program.splits[i], self.site_of[i]
        for copy in split.inputs:
            self._add_copy(copy, site)
        nodes, outside = self._add_nodes(split, site)
        for root in outside:
            if root in self.home:
                self.shared.add(root)
                if self.maker.get(root, site) != site:
                    self.across.add(root)
        self.graphs.append(graph_of(nodes, outside))

    def _put(self, tensor: Tensor, site: int) -> None:
        self.order.append(tensor)
        self.sites_of_order.append(site)

    def _add_copy(self, copy: Copy, site: int) -> None:
        program, origin = self.program, copy.tensor
        if not program.is_upload(copy):
            self._keep_until_here(origin)
        if copy in program.experts:
            self._keep_until_here(program.experts[copy])
        target = new_like(origin, "copy", ())
        change(target, "flag_bits", 0)
        change(target, "name", f"{program.q.backends[copy.backend].name}#{origin.name}"[:60])
        self.copies[copy] = target
        self.home[target] = copy.backend
        self.maker[target] = site
        self.shared.add(target)
        self._put(target, site)

    def _keep_until_here(self, origin: Tensor) -> None:
        """Keep a value alive until the next entry of the order was copied."""
        source = self._twin(origin)
        root = source.view_src or source
        if root.placement is None:
            until = new_like(source, "copy", (source,))
            change(until, "placement", _NOWHERE)
            self._put(until, self.program.at(origin))
            self.shared.add(root)

    def _twin(self, tensor: Tensor) -> Tensor:
        """The twin of a tensor. A view may be needed before its turn, as the source of a copy."""
        found = self.twins.get(tensor)
        if found is None:
            assert tensor.view_src is not None
            src = tuple([None if s is None else self._twin(s) for s in tensor.src])
            found = new_like(tensor, tensor.op, src, self._twin(tensor.view_src))
            self.twins[tensor] = found
            self._put(found, 0)  # a view gets no memory
        return found

    def _add_nodes(self, split: Split, site: int) -> tuple[list[Tensor], list[Tensor]]:
        """Add the twins of all nodes of a split.

        Returns:
            Them, and the storages that they touch and do not make, both in order.
        """
        twins, home, maker, swaps = self.twins, self.home, self.maker, split.swaps
        nodes: list[Tensor] = []
        added: list[Tensor] = []
        made: set[Tensor] = set()
        outside: dict[Tensor, None] = {}
        for node in self.program.nodes[split.start : split.end]:
            op, viewed = node.op, node.view_src
            shown = None if viewed is None else twins.get(viewed)
            if op == "none" or (viewed is not None and shown is None):
                continue  # a leaf, or a view of one that only copies show
            is_view = op in VIEWS
            if swaps and not is_view:
                src = self._sources_of_twin(node, swaps)
            else:
                src = tuple([None if s is None else twins.get(s) for s in node.src])
            twin = twins.get(node)  # a view may be there already: it was copied from
            if twin is None:
                twin = twins[node] = new_like(node, op, src, shown)
                added.append(twin)
            nodes.append(twin)
            if viewed is None:
                made.add(twin)
                if node.placement is not None:
                    change(twin, "placement", node.placement)
                else:
                    home[twin] = split.backend
                    maker[twin] = site
            if is_view:
                continue
            for source in src:
                if source is not None:
                    root = source.view_src or source
                    if root not in made:
                        outside[root] = None
            if shown is not None and shown not in made:
                outside[shown] = None
        self.order += added
        self.sites_of_order += [site] * len(added)
        return nodes, list(outside)

    def _sources_of_twin(
        self, node: Tensor, swaps: Mapping[Tensor, Copy]
    ) -> tuple[Tensor | None, ...]:
        """The sources that the twin of a node reads in a split that has copies."""
        twins, copies = self.twins, self.copies
        return tuple(
            [None if s is None else copies[swaps[s]] if s in swaps else twins[s] for s in node.src]
        )
