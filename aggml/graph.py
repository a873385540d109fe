"""Graph: all nodes and leafs that some tensors are computed from, in an order of computation.

Here: the order, leafs, nodes, use counts, uid. Not here: memory (memory/), plans (plan/),
splits (scheduler/).
"""

from __future__ import annotations

from difflib import get_close_matches
from operator import index
from typing import TYPE_CHECKING, Any

from aggml.errors import InvalidArgument, InvalidHandle, OutOfBounds
from aggml.process.numbers import Numbers
from aggml.tensor import Tensor, change, describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Graph", "graph_of"]

_INPUT = 1  # of TensorFlag, which costs a microsecond to build
_PARAM = 4
_uids = Numbers(1)


class Graph:
    """All tensors from which some are computed; immutable (``ggml_build_forward_expand`` of each).

    The tensors of a graph are frozen: setting their names, flags, sinks or precision raises
    `InvalidState` from then on. They may be in any number of graphs. Tensors without a name get
    one, ``leaf_3`` or ``node_3``, from the first.

    Args:
        ends: the tensors to compute, at least one. Their sources are visited depth first, in order.

    Attributes:
        nodes: operations including views, each after its sources.
        leafs: tensors without operation, in the order of the visit.
        ends: as given.
        uid: a number that no other graph of this process has, not even a copy; never 0.

    Raises:
        InvalidArgument: no end, or a tensor that depends on itself.
        InvalidHandle: an end is no Tensor.
    """

    __slots__ = (
        "__weakref__",
        "_index",
        "_members",
        "_names",
        "_uses",
        "ends",
        "expected",
        "leafs",
        "memory",
        "nodes",
        "plans",
        "uid",
    )

    nodes: tuple[Tensor, ...]
    leafs: tuple[Tensor, ...]
    ends: tuple[Tensor, ...]
    uid: int
    memory: Any  # the GraphBuffer that alloc_graph made, or None: it lives as long as the graph
    plans: Any  # the GraphPlans that come with the memory, or None
    expected: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None  # kept by backend/inputs.py
    _index: tuple[frozenset[Tensor], tuple[Tensor, ...]] | None  # leafs, those flagged INPUT
    _members: frozenset[Tensor] | None
    _names: dict[str, list[Tensor]] | None
    _uses: dict[Tensor, int] | None

    def __init__(self, *ends: Tensor) -> None:
        if not ends:
            raise InvalidArgument("[Graph] no tensor to compute: give one or more ends")
        for end in ends:
            if not isinstance(end, Tensor):
                raise InvalidHandle(f"[Graph] {end!r} is no tensor")
        nodes, leafs = _expand(ends)
        for prefix, tensors in (("node", nodes), ("leaf", leafs)):
            for i, tensor in enumerate(tensors):
                if not tensor._frozen:
                    change(tensor, "_frozen", True)
                    if not tensor.name:
                        change(tensor, "name", f"{prefix}_{i}")
        _fill(self, tuple(nodes), tuple(leafs), ends)

    def part(self, start: int, stop: int) -> Graph:
        """Nodes ``start`` to ``stop`` as a graph of their own (``ggml_graph_view``).

        The tensors that these nodes read but do not compute become leafs, even if they are nodes of
        this graph. All nodes of the part are ends: their values last.

        Raises:
            OutOfBounds: there are no such nodes, or none at all.
            InvalidHandle: not integers.
        """
        try:
            first, last = index(start), index(stop)
        except TypeError:
            raise InvalidHandle(
                f"[Graph.part] start={start!r}, stop={stop!r}: no integers"
            ) from None
        if not 0 <= first < last <= len(self.nodes):
            raise OutOfBounds(f"[Graph.part] nodes {first} to {last} of {len(self.nodes)}")
        nodes = self.nodes[first:last]
        inside = set(nodes)
        leafs: dict[Tensor, None] = {}
        for node in nodes:
            for tensor in (*node.src, node.view_src):
                if tensor is not None:
                    leafs.update({t: None for t in (tensor.root, tensor) if t not in inside})
        part = object.__new__(Graph)
        _fill(part, nodes, tuple(leafs), nodes)
        return part

    def use_count(self, tensor: Tensor) -> int:
        """How often ``tensor`` is a source of nodes of this graph; 0 also if it is not in it."""
        if self._uses is None:
            uses: dict[Tensor, int] = {}
            for node in self.nodes:
                for source in node.src:
                    if source is not None:
                        uses[source] = uses.get(source, 0) + 1
            self._uses = uses
        return self._uses.get(tensor, 0)

    # -- copies

    def __reduce__(self) -> tuple[object, ...]:
        """For copy, deepcopy and pickle: the same computation as another graph.

        The new graph has its own uid and no memory. A deepcopy or a pickle also has new tensors,
        without memory. Leafs come first and nodes after their sources, so that a long graph needs
        no deep stack.
        """
        return _again, (self.leafs, self.nodes, self.ends)

    # -- looking tensors up; the results are kept, since a graph does not change

    def _indexed(self) -> tuple[frozenset[Tensor], tuple[Tensor, ...]]:
        if self._index is None:
            leafs = (*self.leafs, *[node for node in self.nodes if node.op == "none"])
            self._index = frozenset(leafs), tuple([t for t in leafs if t._flags & _INPUT])
        return self._index

    @property
    def leaf_set(self) -> frozenset[Tensor]:
        """All leafs, including parameters."""
        return self._indexed()[0]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The leafs flagged INPUT, in the order of the visit."""
        return self._indexed()[1]

    def computes(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is a node of this graph."""
        return any(node is tensor for node in self.nodes)

    @property
    def members(self) -> frozenset[Tensor]:
        """All leafs and nodes."""
        if self._members is None:
            self._members = frozenset((*self.leafs, *self.nodes))
        return self._members

    def find(self, name: str, what: str = "Graph.find") -> Tensor:
        """The leaf or node of that name.

        Args:
            name: as `Tensor.set_name` gave it, or as the first graph named it.
            what: for messages.

        Raises:
            InvalidArgument: no tensor has the name, or several have.
            InvalidHandle: ``name`` is no text.
        """
        if not isinstance(name, str):
            raise InvalidHandle(f"[{what}] {name!r} is no name")
        names = self._names
        if names is None:
            names = {}
            for tensor in (*self.leafs, *self.nodes):
                names.setdefault(tensor.name, []).append(tensor)
            self._names = names  # once it is full: another thread looks up what it finds there
        found = names.get(name, ())
        if len(found) == 1:
            return found[0]
        if found:
            same = ", ".join([f"{describe(t)} ({t.op})" for t in found])
            raise InvalidArgument(
                f"[{what}] {len(found)} tensors of {self!r} have the name {name!r}: {same}; "
                "pass the tensor itself"
            )
        near = get_close_matches(name, names, 8, 0.5) or [*names][:8]
        raise InvalidArgument(f"[{what}] no tensor of {self!r} has the name {name!r}: try {near}")

    def __len__(self) -> int:
        return len(self.nodes)

    def __bool__(self) -> bool:
        return True  # a graph without nodes is true as well

    def __repr__(self) -> str:
        ends = ", ".join(describe(end) for end in self.ends[:3])
        more = ", ..." if len(self.ends) > 3 else ""
        return (
            f"<Graph {self.uid}: {len(self.nodes)} nodes, {len(self.leafs)} leafs, "
            f"for {ends}{more}>"
        )


def graph_of(
    nodes: Sequence[Tensor], leafs: Sequence[Tensor], ends: Sequence[Tensor] = ()
) -> Graph:
    """A graph of just these nodes, in this order, as a part of a larger one (a graph view).

    Args:
        nodes: frozen already, each after those of its sources that are among them.
        leafs: the tensors that the nodes read and that are not among them.
        ends: the tensors whose bytes must last.
    """
    graph = object.__new__(Graph)
    _fill(graph, tuple(nodes), tuple(leafs), tuple(ends))
    return graph


def _again(leafs: tuple[Tensor, ...], nodes: tuple[Tensor, ...], ends: tuple[Tensor, ...]) -> Graph:
    return graph_of(nodes, leafs, ends)


def _fill(
    graph: Graph, nodes: tuple[Tensor, ...], leafs: tuple[Tensor, ...], ends: tuple[Tensor, ...]
) -> None:
    graph.nodes = nodes
    graph.leafs = leafs
    graph.ends = ends
    graph.uid = next(_uids)
    graph.memory = graph.plans = None
    graph.expected = None
    graph._index = graph._members = graph._names = graph._uses = None


def _expand(ends: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Nodes and leafs in the order of ``ggml_build_forward_expand``, without recursion."""
    nodes: list[Tensor] = []
    leafs: list[Tensor] = []
    done: dict[Tensor, bool] = {}  # False while the sources are being visited
    for end in ends:
        if end in done:
            continue
        done[end] = False
        path = [end]
        rest = [iter(end.src)]
        while path:
            for source in rest[-1]:
                if source is None:
                    continue
                state = done.get(source)
                if state:
                    continue
                if state is not None:
                    raise InvalidArgument(f"[Graph] {describe(source)} depends on itself")
                if source.src:
                    done[source] = False
                    path.append(source)
                    rest.append(iter(source.src))
                    break
                done[source] = True
                _file(source, nodes, leafs)
            else:
                rest.pop()
                tensor = path.pop()
                done[tensor] = True
                _file(tensor, nodes, leafs)
    return nodes, leafs


def _file(tensor: Tensor, nodes: list[Tensor], leafs: list[Tensor]) -> None:
    # A parameter has no operation but counts as a node, as in ggml, so that it can have a gradient.
    (leafs if tensor.op == "none" and not tensor._flags & _PARAM else nodes).append(tensor)
