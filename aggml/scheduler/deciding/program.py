"""Program: what one graph asks of several backends, for one choice of leafs that each run brings.

Here: building it out of assignment and splits, in small steps; what has to be readable. Not here:
addresses (layout.py), running it (run.py). Nothing here holds the graph: a program may outlive it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.scheduler.deciding.assign import VIEW_OPS, Question, assigning
from aggml.scheduler.deciding.split import Copy, splitting
from aggml.tensor.placement import BufferUsage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aggml.graph import Graph
    from aggml.scheduler.deciding.assign import Assignment
    from aggml.scheduler.deciding.split import Split
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = ["Program", "building"]

_OUTPUT = 2  # TensorFlag.OUTPUT


class Program:
    """A graph assigned and cut.

    Attributes:
        uid: that of the graph.
        nodes: all of them, in order.
        leafs: tensors without operation, parameters among them.
        ends: of the graph.
        q: the backends.
        found: who computes what, and why.
        splits: in order.
        floating: leafs whose values each run brings.
        fixed: leafs that nobody placed and no run brings: they get memory for good.
        direct: floating leafs that are read where they are at home, and not from copies alone.
        kept: storages that can be read after a run.
        experts: for copies of experts' weights, of which only some are read: the tensor that says
            which.
        made: for each storage that nodes write, the last split that does.
    """

    def __init__(
        self,
        graph: Graph,
        q: Question,
        found: Assignment,
        splits: list[Split],
        floating: Collection[Tensor],
    ) -> None:
        self.uid = graph.uid
        self.nodes = graph.nodes
        self.leafs = (*graph.leafs, *(n for n in graph.nodes if n.op == "none"))
        self.ends = graph.ends
        self.q = q
        self.found = found
        self.splits = splits
        self.floating = frozenset(floating)
        self.kept = {end.root for end in graph.ends}
        self.kept.update(n.root for n in graph.nodes if n._flags & _OUTPUT)
        self.kept.update(n for n in self.leafs if n._flags & _OUTPUT)
        self.fixed = [
            leaf
            for leaf in self.leafs
            if leaf.placement is None and leaf.view_src is None and leaf not in self.floating
        ]
        self.direct = {leaf for leaf in self.floating if leaf in self.kept}
        self.crossing: set[Tensor] = set()  # storages of nodes that are copied elsewhere
        self.made: dict[Tensor, int] = {}
        self.experts: dict[Copy, Tensor] = {}

    def look(self) -> Steps[None]:
        """Find out what the nodes do, in small steps; before anything is asked."""
        q = self.q
        yield
        for i, split in enumerate(self.splits):
            for copy in split.inputs:
                root = copy.tensor.root
                if root in self.floating:
                    if copy.tensor is not root:
                        self.direct.add(root)
                elif q.buffer(root) is None:
                    self.crossing.add(root)
            for node in self.nodes[split.start : split.end]:
                if node.op in VIEW_OPS or node.op == "none":
                    continue
                self.made[node.view_src or node] = i
                for source in node.src:
                    if source is not None and source not in split.swaps:
                        root = source.view_src or source
                        if root in self.floating:
                            self.direct.add(root)
                if node.view_src is not None and node.view_src in self.floating:
                    self.direct.add(node.view_src)
                yield
            yield
        self.experts = self._find_experts()
        self.direct.update(i.root for i in self.experts.values() if i.root in self.floating)

    def _find_experts(self) -> dict[Copy, Tensor]:
        """Weights in host memory that are copied to be read by ``mul_mat_id`` alone.

        Its ids have to be there before the split begins. ggml looks at the first node of a split;
        here all that read the copy, in later splits too, have to name the same experts.
        """
        found: dict[Copy, Tensor | None] = {}
        for i, split in enumerate(self.splits):
            for copy in split.inputs:
                buffer = self.q.buffer(copy.tensor)
                if (
                    buffer is not None
                    and buffer.usage is BufferUsage.WEIGHTS
                    and buffer.is_host
                    and copy.tensor.is_contiguous
                    and copy.tensor.ne[3] == 1
                ):
                    found[copy] = None
            swaps = {t: c for t, c in split.swaps.items() if c in found} if found else {}
            for node in self.nodes[split.start : split.end] if swaps else ():
                if node.op in VIEW_OPS:
                    continue
                for k, source in enumerate(node.src):
                    if source is None or source not in swaps:
                        continue
                    copy = swaps[source]
                    ids = node.src[2] if node.op == "mul_mat_id" and k == 0 else None
                    known = found.get(copy)
                    if ids is None or (known or ids) is not ids or self.made.get(ids.root, -1) >= i:
                        found.pop(copy, None)
                    elif copy in found:
                        found[copy] = ids
        return {copy: ids for copy, ids in found.items() if ids is not None}

    def at(self, tensor: Tensor) -> int:
        """The backend where the tensor's storage lies."""
        root = tensor.view_src or tensor
        b = self.found.backend.get(root)
        return self.found.backend[tensor] if b is None else b

    def is_upload(self, copy: Copy) -> bool:
        """Whether the copy is filled from what the run brings, and not from another tensor."""
        return copy.tensor in self.floating


def building(
    graph: Graph,
    q: Question,
    pins: Mapping[Tensor, int],
    floating: Collection[Tensor],
    *,
    op_offload: bool,
    cuts: Collection[int] = (),
) -> Steps[Program]:
    """Assign and cut a graph, in small steps (see `assigning` and `splitting`)."""
    found = yield from assigning(graph, q, pins, op_offload=op_offload)
    for leaf in graph.leafs:  # one that nothing reads but the user
        if leaf not in found.backend:
            found.backend[leaf] = q.last
            found.cause[leaf] = "4.any"
    splits = yield from splitting(graph, q, found, cuts)
    program = Program(graph, q, found, splits, floating)
    yield from program.look()
    return program
