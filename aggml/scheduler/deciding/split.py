"""The cuts of a graph, and the values that each part needs from elsewhere: ggml's pass 5, pure.

Here: runs of nodes of one backend, the tensors that are copied to it first. Not here: the backend
of each node (assign.py), where copies lie (layout/). The graph itself is never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.ops.table import VIEWS
from aggml.tensor.placement import BufferUsage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aggml.graph import Graph
    from aggml.scheduler.deciding.assign import Assignment, Question
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["Copy", "Split", "cut_into_splits"]

# ggml's room for inputs of a split; it grows where a single node needs more.
_CAPACITY: Final = 30


class Copy(NamedTuple):
    """A tensor copied to another backend; ``version`` counts earlier writes into its storage."""

    tensor: Tensor
    backend: int
    version: int


class Split(NamedTuple):
    """Nodes ``start`` to ``end`` of the graph, which one backend computes in one go.

    Attributes:
        backend: index of the backend.
        start: first node.
        end: one behind the last.
        inputs: the tensors copied to the backend before this split; later splits reuse the copies.
        swaps: for each source that is read from a copy: that copy, perhaps of an earlier split.
    """

    backend: int
    start: int
    end: int
    inputs: tuple[Copy, ...]
    swaps: dict[Tensor, Copy]


class _Cutting:
    """The splits so far, and the one that is being filled.

    Args:
        q: the backends.
        backend: who computes what.
        first: the backend of the first split.

    Attributes:
        done: the splits so far.
        at: the backend of the one that is being filled.
        start: its first node.
        inputs: what is copied to it first.
        swaps: for each source that it reads from a copy, which one.
    """

    def __init__(self, q: Question, backend: Mapping[Tensor, int], first: int) -> None:
        self.done: list[Split] = []
        self._q = q
        self._backend = backend
        self._versions: dict[Tensor, int] = {}  # of storages that nodes write into
        self._made: set[Copy] = set()
        self._open(first, 0)

    def _open(self, at: int, start: int) -> None:
        self.at = at
        self.start = start
        self.inputs: list[Copy] = []
        self._capacity = _CAPACITY
        self.swaps: dict[Tensor, Copy] = {}

    def end(self, node: int, following: int = 0) -> None:
        """End the split before a node, and begin one on backend ``following``."""
        self.done.append(Split(self.at, self.start, node, tuple(self.inputs), self.swaps))
        self._open(following, node)

    def _elsewhere(self, tensor: Tensor) -> Copy | None:
        """The copy that this split reads the tensor from; None: it reads the tensor itself."""
        root = tensor.view_src or tensor
        if self._q.reachable(tensor, self.at, self._backend) or (
            self._backend.get(root) == self.at and self._q.buffer(root) is None
        ):
            return None
        return Copy(tensor, self.at, self._versions.get(root, 0))

    def has_no_room_for(self, node: Tensor) -> bool:
        """Whether the split has to end before a node of its backend (semantics 4.5, 2).

        It ends so that the memory of earlier weights can be reused, or if it has too many inputs.
        """
        if not self.inputs:
            return False
        for source in node.src:
            if source is None:
                continue
            buffer = self._q.buffer(source)
            weights = buffer is not None and buffer.usage is BufferUsage.WEIGHTS
            if weights and self._backend[source] != self.at and self._elsewhere(source) is not None:
                return True
            if len(self.inputs) == self._capacity:
                copy = self._elsewhere(source)
                if copy is not None and copy not in self._made:
                    return True
        return False

    def add(self, node: Tensor) -> None:
        """Add a node to the split, with the copies that it needs."""
        for source in node.src:
            copy = None if source is None else self._elsewhere(source)
            if source is None or copy is None:
                continue
            if copy not in self._made:
                self._made.add(copy)
                if len(self.inputs) == self._capacity:
                    self._capacity *= 2
                self.inputs.append(copy)
            self.swaps[source] = copy
        if node.view_src is not None:
            self._versions[node.view_src] = self._versions.get(node.view_src, 0) + 1


def cut_into_splits(
    graph: Graph, q: Question, found: Assignment, cuts: Collection[int] = ()
) -> Sliced[list[Split]]:
    """Cut a graph into splits, in small steps.

    An empty graph gives one empty split. A copy is made once per backend and used by all later
    splits there, until a node writes into the storage of what was copied.

    Args:
        graph: the graph to cut.
        q: the backends.
        found: the backend of each node.
        cuts: nodes before which a split always ends, so that values can be observed in between.
    """
    backend = found.backend
    nodes = graph.nodes
    first = next((b for n in nodes if n.op not in VIEWS for b in (backend[n],)), 0)
    cutting = _Cutting(q, backend, first)
    for i, node in enumerate(nodes):
        yield
        if node.op in VIEWS:
            continue
        b = backend[node]
        is_cut = i in cuts and i > cutting.start
        if b != cutting.at or is_cut or cutting.has_no_room_for(node):
            cutting.end(i, b)
        cutting.add(node)
    cutting.end(len(nodes))
    return cutting.done
