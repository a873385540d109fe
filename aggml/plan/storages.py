"""Storages of a plan: which memory it reads, writes in full and writes in part.

A storage is the tensor at the bottom of a chain of views. A stream asks a plan for its storages: a
run fails if it reads a poisoned one, and a run that fails poisons the storages that it writes. Not
here: the steps (lowering.py), poisoning itself (the native runtime).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.errors import InvalidArgument
from aggml.ops.table import IDLE, PARTLY, TARGETS, UPDATES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggml.graph import Graph
    from aggml.native import _native
    from aggml.tensor import Tensor

    #: Native records of storages that have memory.
    _Records = tuple[_native.Storage, ...]

__all__ = ["WHOLE", "Storages", "written_leafs"]

#: The result of `Storages.visit` for a leaf that is written in full; larger than any index. Such a
#: leaf is protected from aborts like other leafs, and poisoned like all storages written in full.
WHOLE: Final = 1 << 20


class Storages:
    """The storages of one plan, in the order in which its nodes touch them.

    Attributes:
        reads: storages that are read before they are written.
        writes: storages that are written in full.
        partial: storages that are written in part, each with its index.
    """

    def __init__(self) -> None:
        self.reads: dict[Tensor, None] = {}
        self.writes: dict[Tensor, None] = {}
        self.partial: dict[Tensor, int] = {}

    @classmethod
    def of(cls, graph: Graph) -> Storages:
        """The storages of all nodes of a graph.

        Raises:
            InvalidArgument: a node would write memory that is read-only.
        """
        found = cls()
        for node in graph.nodes:
            if node.op not in IDLE:
                found.visit(node)
        return found

    def visit(self, node: Tensor) -> int:
        """Note the storages that one node touches; called for the nodes in order.

        Returns:
            The index in ``partial`` of the leaf that the node writes; `WHOLE` if it writes a leaf
            in full, -1 if it writes none.

        Raises:
            InvalidArgument: the node would write memory that is read-only.
        """
        op, writes = node.op, self.writes
        for i, source in enumerate(node.src):
            root = None if source is None else source.root
            if root is None or root.placement is None:
                continue
            if root not in writes and (op, i) not in TARGETS:
                self.reads.setdefault(root)
        if op in UPDATES:
            for target in _other_targets(node):
                self._write(node, target)
        return self._write(node, node)

    def records(self) -> tuple[_Records, _Records, _Records]:
        """Storages read, written in full, written in part: a native plan is sealed with them."""
        return _records(self.reads), _records(self.writes), _records(self.partial)

    def _write(self, node: Tensor, target: Tensor) -> int:
        root = target.root
        if root is target and target.op != "none":
            if target.placement is not None:
                self.writes.setdefault(target)
            return -1
        if root.op != "none":
            return -1  # it works in place on a node of this graph
        if root.placement is not None and not root.placement.buffer.writable:
            raise InvalidArgument(
                f"[compile_plan] {node!r} would write {root!r} in {root.placement.buffer!r}, "
                "which is read-only"
            )
        if _is_replaced(node, target, root):
            self.writes.setdefault(root)
            return WHOLE
        return self.partial.setdefault(root, len(self.partial))


def _is_replaced(node: Tensor, target: Tensor, root: Tensor) -> bool:
    """Whether ``node``, which writes ``target`` of the leaf ``root``, replaces all of its bytes."""
    return (
        node.op not in PARTLY
        and target.view_offs == 0
        and target.nbytes == root.nbytes
        and target.is_contiguously_allocated
    )


def _other_targets(node: Tensor) -> list[Tensor]:
    """The sources that a node writes in addition to its result."""
    sources = [node.src[i] for i in UPDATES.get(node.op, ())]
    return [source for source in sources if source is not None]


def written_leafs(graph: Graph) -> set[Tensor]:
    """The leafs that the graph itself writes, with all other storages that its nodes write."""
    found = {node.root for node in graph.nodes if node.op not in IDLE}
    for node in graph.nodes:
        if node.op in UPDATES:
            found.update([source.root for source in _other_targets(node)])
    return found


def _records(tensors: Iterable[Tensor]) -> _Records:
    return tuple([t.placement.storage for t in tensors if t.placement is not None])
