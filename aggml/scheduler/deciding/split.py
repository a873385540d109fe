"""Where a graph is cut, and what each part needs from elsewhere: ggml's pass 5, pure.

Here: runs of nodes of one backend, the tensors that are copied to it first. Not here: who computes
what (assign.py), where copies lie (copies.py). The graph itself is never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.scheduler.deciding.assign import VIEW_OPS
from aggml.tensor.placement import BufferUsage

if TYPE_CHECKING:
    from collections.abc import Collection

    from aggml.graph import Graph
    from aggml.scheduler.deciding.assign import Assignment, Question
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = ["Copy", "Split", "splitting"]

# ggml's room for inputs of a split; it grows where a single node needs more.
_CAPACITY: Final = 30


class Copy(NamedTuple):
    """A tensor brought to another backend; ``version`` counts writes into its storage before."""

    tensor: Tensor
    backend: int
    version: int


class Split(NamedTuple):
    """Nodes ``start`` to ``end`` of the graph, which one backend computes in one go.

    Attributes:
        backend: index of the backend.
        start: first node.
        end: one behind the last.
        inputs: what is copied to the backend before this split; later splits reuse it.
        swaps: for each source that is read from a copy, which one; earlier splits may have made it.
    """

    backend: int
    start: int
    end: int
    inputs: tuple[Copy, ...]
    swaps: dict[Tensor, Copy]


class _Open:
    """The split that is being filled."""

    def __init__(self, backend: int, start: int) -> None:
        self.backend = backend
        self.start = start
        self.inputs: list[Copy] = []
        self.capacity = _CAPACITY
        self.swaps: dict[Tensor, Copy] = {}

    def add(self, copy: Copy) -> None:
        if len(self.inputs) == self.capacity:
            self.capacity *= 2
        self.inputs.append(copy)

    def close(self, end: int) -> Split:
        return Split(self.backend, self.start, end, tuple(self.inputs), self.swaps)


def splitting(
    graph: Graph, q: Question, found: Assignment, cuts: Collection[int] = ()
) -> Steps[list[Split]]:
    """Cut a graph into splits, in small steps.

    An empty graph gives one empty split. A copy is made once per backend and used by all later
    splits there, until a node writes into the storage of what was copied.

    Args:
        graph: what to cut.
        q: the backends.
        found: who computes what.
        cuts: nodes before which a split ends whatever comes, for those who want to look in between.
    """
    backend = found.backend
    nodes = graph.nodes
    first = next((b for n in nodes if n.op not in VIEW_OPS for b in (backend[n],)), 0)
    splits: list[Split] = []
    now = _Open(first, 0)
    versions: dict[Tensor, int] = {}  # of storages that nodes write into
    made: set[Copy] = set()

    def elsewhere(tensor: Tensor) -> Copy | None:
        """The copy that this backend reads the tensor from; None: it reads the tensor itself."""
        root = tensor.view_src or tensor
        if q.reachable(tensor, now.backend, backend) or (
            backend.get(root) == now.backend and q.buffer(root) is None
        ):
            return None
        return Copy(tensor, now.backend, versions.get(root, 0))

    def full_or_weights(node: Tensor) -> bool:
        """Whether a split of the same backend has to end here (see semantics 4.5, 2)."""
        for source in node.src:
            if source is None:
                continue
            buffer = q.buffer(source)
            weights = buffer is not None and buffer.usage is BufferUsage.WEIGHTS
            if weights and backend[source] != now.backend and elsewhere(source) is not None:
                return True  # what earlier weights took can be used again
            if len(now.inputs) == now.capacity:
                copy = elsewhere(source)
                if copy is not None and copy not in made:
                    return True
        return False

    for i, node in enumerate(nodes):
        yield
        if node.op in VIEW_OPS:
            continue
        b = backend[node]
        if (
            b != now.backend
            or (i in cuts and i > now.start)
            or (now.inputs and full_or_weights(node))
        ):
            splits.append(now.close(i))
            now = _Open(b, i)
        for source in node.src:
            if source is None:
                continue
            copy = elsewhere(source)
            if copy is not None:
                if copy not in made:
                    made.add(copy)
                    now.add(copy)
                now.swaps[source] = copy
        if node.view_src is not None:
            versions[node.view_src] = versions.get(node.view_src, 0) + 1
    splits.append(now.close(len(nodes)))
    return splits
