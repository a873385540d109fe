"""SplitGraph: one graph's work for several backends, for one choice of leafs that each run brings.

Here: building it from assignment and splits, in small steps; which values have to be readable. Not
here: memory (layout/), running it (running/). A program does not refer to the graph and may outlive
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aggml.ops.table import IDLE, VIEWS
from aggml.scheduler.deciding.assign import Question, assign_backends
from aggml.scheduler.deciding.split import Copy, cut_into_splits
from aggml.tensor.placement import BufferUsage
from aggml.tensor.tensor import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from aggml.graph import Graph
    from aggml.scheduler.deciding.assign import Assignment
    from aggml.scheduler.deciding.split import Split
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["SplitGraph", "build_split_graph"]


@dataclass(frozen=True, slots=True, eq=False)
class SplitGraph:
    """A graph assigned and cut.

    Attributes:
        uid: that of the graph.
        nodes: all of them, in order.
        leafs: tensors without operation, parameters among them.
        ends: of the graph.
        q: the backends.
        found: the backend of each tensor, and why.
        splits: in order.
        floating: leafs whose values each run brings.
        fixed: leafs that have no memory and that no run brings: they get memory permanently.
        direct: floating leafs that are also read on their own backend, not only from copies.
        kept: storages that can be read after a run.
        crossing: storages of nodes that are copied to another backend.
        experts: for copies of experts' weights, of which only some are read: the tensor that says
            which.
        made: for each storage that nodes write, the last split that does.
    """

    uid: int
    nodes: tuple[Tensor, ...]
    leafs: tuple[Tensor, ...]
    ends: tuple[Tensor, ...]
    q: Question
    found: Assignment
    splits: Sequence[Split]
    floating: frozenset[Tensor]
    fixed: Sequence[Tensor]
    direct: AbstractSet[Tensor]
    kept: AbstractSet[Tensor]
    crossing: AbstractSet[Tensor]
    experts: Mapping[Copy, Tensor]
    made: Mapping[Tensor, int]

    def at(self, tensor: Tensor) -> int:
        """The backend where the tensor's storage lies."""
        root = tensor.view_src or tensor
        b = self.found.backend.get(root)
        return self.found.backend[tensor] if b is None else b

    def is_upload(self, copy: Copy) -> bool:
        """Whether the copy is filled from an array that the run brings, not from a tensor."""
        return copy.tensor in self.floating


def build_split_graph(
    graph: Graph,
    q: Question,
    pins: Mapping[Tensor, int],
    floating: Collection[Tensor],
    *,
    op_offload: bool,
    cuts: Collection[int] = (),
) -> Sliced[SplitGraph]:
    """Assign and cut a graph, in small steps (see `assign_backends` and `cut_into_splits`)."""
    found = yield from assign_backends(graph, q, pins, op_offload=op_offload)
    for leaf in graph.leafs:  # leafs that no node reads
        if leaf not in found.backend:
            found.backend[leaf] = q.last
            found.cause[leaf] = "4.any"
    splits = yield from cut_into_splits(graph, q, found, cuts)
    brought = frozenset(floating)
    leafs = (*graph.leafs, *(n for n in graph.nodes if n.op == "none"))
    kept = {end.root for end in graph.ends}
    kept.update([n.root for n in graph.nodes if n.flag_bits & OUTPUT])
    kept.update([n for n in leafs if n.flag_bits & OUTPUT])
    yield
    touched = yield from _find_touched(graph, q, splits, brought)
    experts = _find_experts(graph, q, splits, touched.made)
    return SplitGraph(
        uid=graph.uid,
        nodes=graph.nodes,
        leafs=leafs,
        ends=graph.ends,
        q=q,
        found=found,
        splits=splits,
        floating=brought,
        fixed=[
            leaf
            for leaf in leafs
            if leaf.placement is None and leaf.view_src is None and leaf not in brought
        ],
        direct=touched.direct
        | (brought & kept)
        | {ids.root for ids in experts.values() if ids.root in brought},
        kept=kept,
        crossing=touched.crossing,
        experts=experts,
        made=touched.made,
    )


class _Touched(NamedTuple):
    """The effects of the splits of a program on storages; see `SplitGraph`."""

    made: dict[Tensor, int]
    direct: set[Tensor]  # as far as nodes read them
    crossing: set[Tensor]


def _find_touched(
    graph: Graph, q: Question, splits: Sequence[Split], floating: frozenset[Tensor]
) -> Sliced[_Touched]:
    """Find the storages that splits read, write and copy, in small steps."""
    made: dict[Tensor, int] = {}
    direct: set[Tensor] = set()
    crossing: set[Tensor] = set()
    for i, split in enumerate(splits):
        for copy in split.inputs:
            root = copy.tensor.root
            if root in floating:
                if copy.tensor is not root:
                    direct.add(root)
            elif q.buffer(root) is None:
                crossing.add(root)
        for node in graph.nodes[split.start : split.end]:
            if node.op in IDLE:
                continue
            made[node.view_src or node] = i
            for source in node.src:
                if source is not None and source not in split.swaps:
                    root = source.view_src or source
                    if root in floating:
                        direct.add(root)
            if node.view_src is not None and node.view_src in floating:
                direct.add(node.view_src)
            yield
        yield
    return _Touched(made, direct, crossing)


def _find_experts(
    graph: Graph, q: Question, splits: Sequence[Split], made: Mapping[Tensor, int]
) -> dict[Copy, Tensor]:
    """Copies of weights in host memory that only ``mul_mat_id`` reads, each with its ids.

    The ids have to be computed before the split begins. ggml checks only the first node of a split.
    Here all nodes that read the copy, in later splits as well, must use the same ids.
    """
    found: dict[Copy, Tensor | None] = {}
    for i, split in enumerate(splits):
        found.update({copy: None for copy in split.inputs if _is_host_weights(copy, q)})
        swaps = {t: c for t, c in split.swaps.items() if c in found} if found else {}
        for node in graph.nodes[split.start : split.end] if swaps else ():
            if node.op in VIEWS:
                continue
            for k, source in enumerate(node.src):
                if source is None or source not in swaps:
                    continue
                copy = swaps[source]
                ids = node.src[2] if node.op == "mul_mat_id" and k == 0 else None
                known = found.get(copy)
                if ids is None or (known or ids) is not ids or made.get(ids.root, -1) >= i:
                    found.pop(copy, None)
                elif copy in found:
                    found[copy] = ids
    return {copy: ids for copy, ids in found.items() if ids is not None}


def _is_host_weights(copy: Copy, q: Question) -> bool:
    """Whether the copy is of weights in host memory that can be copied one matrix at a time."""
    buffer = q.buffer(copy.tensor)
    return (
        buffer is not None
        and buffer.usage is BufferUsage.WEIGHTS
        and buffer.is_host
        and copy.tensor.is_contiguous
        and copy.tensor.ne[3] == 1
    )
