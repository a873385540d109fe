"""Graph: all nodes and leafs that some tensors are computed from, in an order of computation.

Here: the order, leafs, nodes, use counts, uid, which tensor has which gradient. Not here: the
rules of differentiation (gradients/), memory (memory/), plans (plan/), splits (scheduler/).
"""

from __future__ import annotations

from difflib import get_close_matches
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.errors import InvalidArgument, InvalidHandle, OutOfBounds
from aggml.process import html
from aggml.process.numbers import Numbers
from aggml.process.picture import DrawnRow, draw_rows, save_svg
from aggml.tensor import Tensor, change, describe
from aggml.tensor.tensor import INPUT, PARAM

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from aggml.tensor.placement import Holder

__all__ = [
    "Gradients",
    "Graph",
    "Order",
    "build_forward_expand",
    "build_forward_order",
    "build_forward_select",
    "graph_of",
]

_uids = Numbers(1)


class Gradients(NamedTuple):
    """The gradients that a graph computes.

    Attributes:
        sums: the tensor with the gradient, by the tensor in which it is taken.
        accs: the leaf to which it is added, likewise.
        losses: the tensors whose gradients are taken.
    """

    sums: Mapping[Tensor, Tensor]
    accs: Mapping[Tensor, Tensor]
    losses: tuple[Tensor, ...]


NO_GRADIENTS: Final = Gradients(MappingProxyType({}), MappingProxyType({}), ())


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
        "_gradients",
        "_index",
        "_members",
        "_names",
        "_uses",
        "_whole",
        "ends",
        "expected",
        "leafs",
        "memory",
        "nodes",
        "scratch",
        "uid",
    )

    nodes: tuple[Tensor, ...]
    leafs: tuple[Tensor, ...]
    ends: tuple[Tensor, ...]
    uid: int
    memory: Holder | None  # the GraphBuffer that alloc_graph made: it lives as long as the graph
    scratch: Mapping[Tensor, int] | None  # a ScratchOffsets, which comes and goes with the memory
    expected: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None  # kept by backend/inputs.py
    _gradients: Gradients
    _index: tuple[frozenset[Tensor], tuple[Tensor, ...]] | None  # leafs, those flagged INPUT
    _members: frozenset[Tensor] | None
    _names: dict[str, list[Tensor]] | None
    _uses: dict[Tensor, int] | None
    _whole: Graph | None  # None: itself, which would be a cycle of references

    def __init__(self, *ends: Tensor) -> None:
        if not ends:
            raise InvalidArgument("[Graph] no tensor to compute: give one or more ends")
        for end in ends:
            if not isinstance(end, Tensor):
                raise InvalidHandle(f"[Graph] {end!r} is no tensor")
        order = Order()
        order.expand(ends)
        order.freeze()
        _fill(self, tuple(order.nodes), tuple(order.leafs), ends)

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

    @property
    def whole(self) -> Graph:
        """This graph with the nodes that have a place and memory in it but are not computed.

        It is the graph itself unless `build_forward_select` or `build_forward_order` made it.
        """
        return self if self._whole is None else self._whole

    # -- gradients: gradients/ adds them

    def grad(self, tensor: Tensor) -> Tensor | None:
        """The tensor of this graph that has the gradient in ``tensor`` (``ggml_graph_get_grad``).

        None if no loss depends on ``tensor`` by way of a parameter, and in a graph that
        `build_backward_expand` did not make.

        Raises:
            InvalidHandle: it is no tensor.
        """
        _check_tensor("Graph.grad", tensor)
        return self._gradients.sums.get(tensor)

    def grad_acc(self, tensor: Tensor) -> Tensor | None:
        """The leaf to which runs add the gradient in ``tensor`` (``ggml_graph_get_grad_acc``).

        A loss always has one; its value, which `Backend.graph_reset` sets to 1, is the gradient
        with which the chain rule begins. None if ``tensor`` has none.

        Raises:
            InvalidHandle: it is no tensor.
        """
        _check_tensor("Graph.grad_acc", tensor)
        return self._gradients.accs.get(tensor)

    @property
    def grad_accs(self) -> Mapping[Tensor, Tensor]:
        """All leafs of `grad_acc` by the tensor in which the gradient is taken."""
        return self._gradients.accs

    @property
    def losses(self) -> tuple[Tensor, ...]:
        """The tensors whose gradients this graph computes; none in other graphs."""
        return self._gradients.losses

    # -- copies

    def __reduce__(self) -> tuple[object, ...]:
        """For copy, deepcopy and pickle: the same computation as another graph.

        The new graph has its own uid and no memory. A deepcopy or a pickle also has new tensors,
        without memory. Leafs come first and nodes after their sources, so that a long graph needs
        no deep stack.
        """
        sums, accs, losses = self._gradients
        gradients = dict(sums), dict(accs), losses
        return _again, (self.leafs, self.nodes, self.ends, *gradients, self._whole)

    # -- looking tensors up; the results are kept, since a graph does not change

    def _make_index(self) -> tuple[frozenset[Tensor], tuple[Tensor, ...]]:
        if self._index is None:
            leafs = (*self.leafs, *[node for node in self.nodes if node.op == "none"])
            inputs = tuple([t for t in leafs if t.flag_bits & INPUT])
            if self._whole is not None:
                leafs = tuple(self._whole.leaf_set)
            self._index = frozenset(leafs), inputs
        return self._index

    @property
    def leaf_set(self) -> frozenset[Tensor]:
        """All leafs, including parameters, and those of nodes that are not computed."""
        return self._make_index()[0]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The leafs flagged INPUT that are read, in the order of the visit."""
        return self._make_index()[1]

    def computes(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is a node of this graph."""
        return any(node is tensor for node in self.nodes)

    @property
    def members(self) -> frozenset[Tensor]:
        """All leafs, also those of nodes that are not computed, and the nodes that are."""
        if self._members is None:
            self._members = frozenset((*self.whole.leafs, *self.nodes))
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
            for tensor in (*self.whole.leafs, *self.nodes):
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

    def _repr_html_(self) -> str:
        """For notebooks: the nodes in their order."""
        rows = [
            (i, node.op, node.name, node.dtype.type_name, node.shape,
             ", ".join(x.name for x in node.src if x is not None))
            for i, node in enumerate(self.nodes)
        ]  # fmt: skip
        return html.table(repr(self), ("", "op", "node", "type", "shape", "operands"), rows)

    def plot(self, path: str | os.PathLike[str], *, title: str = "") -> None:
        """Draw the nodes in their order as SVG, with lines from results to those who read them.

        Leafs have no row: a node names all of its operands. Views have no colour, because they
        compute nothing.

        Args:
            path: ends with ``.svg``.
            title: above it; if empty, ``repr(graph)``.

        Raises:
            InvalidArgument: another suffix.
            OSError: the file cannot be written.
        """
        place = {node: i for i, node in enumerate(self.nodes)}
        rows = [
            DrawnRow(
                f"{node.op:14} {describe(node)}"
                f" ({', '.join(x.name for x in node.src if x is not None)})",
                tuple(dict.fromkeys(place[x] for x in node.src if x in place)),
                band=-1 if node.view_src is not None else 0,
            )
            for node in self.nodes
        ]
        save_svg(path, draw_rows(title or repr(self), rows), "Graph.plot")


def _check_tensor(place: str, given: object) -> None:
    if not isinstance(given, Tensor):
        raise InvalidHandle(f"[{place}] {given!r} is no tensor")


def build_forward_expand(graph: Graph | None, *tensors: Tensor) -> Graph:
    """``graph``, and behind it the nodes that further tensors need (``ggml_build_forward_expand``).

    ``graph`` stays as it is. The new graph has the ends of both and the gradients of ``graph``, so
    the nodes that use gradients can be added to what `build_backward_expand` made:
    ``build_forward_expand(back, ops.opt_step_sgd(w, back.grad(w), params))``.

    Args:
        graph: the first nodes, in their order; None: none.
        tensors: the further ends, at least one.

    Raises:
        InvalidArgument: no tensor, or one that depends on itself.
        InvalidHandle: ``graph`` is no Graph, or an end is no Tensor.
    """
    return _extend("build_forward_expand", graph, tensors, tensors)


def build_forward_order(graph: Graph | None, *tensors: Tensor) -> Graph:
    """``graph``, in which further nodes have their place, but are not computed.

    It is ``ggml_build_forward_order``. These nodes get memory. They are computed, in the place that
    they have here, once a later `build_forward_expand` needs them. So this function decides about
    the order of nodes alone.

    Args:
        graph: the first nodes, in their order; None: none.
        tensors: at least one; all that they are computed from gets its place, too.

    Raises:
        As `build_forward_expand`.
    """
    return _extend("build_forward_order", graph, tensors, ())


def build_forward_select(graph: Graph | None, tensors: Sequence[Tensor], idx: int) -> Graph:
    """``graph``, and behind it what one of several tensors needs (``ggml_build_forward_select``).

    The others are not computed but have their place and their memory. So the graphs for all ``idx``
    need the same memory, at the same places: a `GraphAllocator` that reserved it for one of them
    has it for all. A run may bring the inputs of all tensors, and needs those of the selected one.

    Args:
        graph: the first nodes, in their order; None: none.
        tensors: at least one.
        idx: which one is computed.

    Returns:
        A new graph, of which ``tensors[idx]`` is an end.

    Raises:
        As `build_forward_expand`.
        OutOfBounds: there is no such tensor.
    """
    place = "build_forward_select"
    try:
        given, at = tuple(tensors), index(idx)
    except TypeError:
        raise InvalidHandle(f"[{place}] tensors = {tensors!r}, idx = {idx!r}") from None
    if not 0 <= at < len(given):
        raise OutOfBounds(f"[{place}] idx = {at} of {len(given)} tensors")
    return _extend(place, graph, given, given[at : at + 1])


def _extend(
    place: str, graph: Graph | None, tensors: Sequence[Tensor], computed: Sequence[Tensor]
) -> Graph:
    """A graph in which ``tensors`` have their place behind ``graph``, and some are computed."""
    if graph is not None and not isinstance(graph, Graph):
        raise InvalidHandle(f"[{place}] {graph!r} is no Graph")
    if not tensors:
        raise InvalidArgument(f"[{place}] no tensor: give one or more")
    for end in tensors:
        if not isinstance(end, Tensor):
            raise InvalidHandle(f"[{place}] {end!r} is no tensor")
    first = graph.whole if graph is not None else graph_of((), ())
    order = Order(first.nodes, first.leafs)
    order.expand(tensors)
    order.freeze()
    needed = {*graph.nodes, *graph.leafs} if graph is not None else set[Tensor]()
    path = [end for end in computed if end not in needed]
    needed.update(path)
    while path:
        for source in path.pop().src:
            if source is not None and source not in needed:
                needed.add(source)
                path.append(source)
    nodes = [node for node in order.nodes if node in needed]
    leafs = [leaf for leaf in order.leafs if leaf in needed]
    ends = dict.fromkeys((*(graph.ends if graph is not None else ()), *computed))
    whole = None
    if len(nodes) < len(order.nodes) or len(leafs) < len(order.leafs):
        whole = graph_of(order.nodes, order.leafs, [*dict.fromkeys((*first.ends, *tensors))])
    gradients = graph._gradients if graph is not None else NO_GRADIENTS
    return graph_of(nodes, leafs, [*ends], gradients, whole)


def graph_of(
    nodes: Sequence[Tensor],
    leafs: Sequence[Tensor],
    ends: Sequence[Tensor] = (),
    gradients: Gradients = NO_GRADIENTS,
    whole: Graph | None = None,
) -> Graph:
    """A graph of just these nodes, in this order, as a part of a larger one (a graph view).

    Args:
        nodes: frozen already, each after those of its sources that are among them.
        leafs: the tensors that the nodes read and that are not among them.
        ends: the tensors whose bytes must last.
        gradients: what `Graph.grad` and its like find.
        whole: the graph with the nodes that are not computed, if there are any.
    """
    graph = object.__new__(Graph)
    _fill(graph, tuple(nodes), tuple(leafs), tuple(ends), gradients, whole)
    return graph


def _again(
    leafs: tuple[Tensor, ...],
    nodes: tuple[Tensor, ...],
    ends: tuple[Tensor, ...],
    sums: dict[Tensor, Tensor],
    accs: dict[Tensor, Tensor],
    losses: tuple[Tensor, ...],
    whole: Graph | None,
) -> Graph:
    gradients = Gradients(MappingProxyType(sums), MappingProxyType(accs), losses)
    return graph_of(nodes, leafs, ends, gradients, whole)


def _fill(
    graph: Graph,
    nodes: tuple[Tensor, ...],
    leafs: tuple[Tensor, ...],
    ends: tuple[Tensor, ...],
    gradients: Gradients = NO_GRADIENTS,
    whole: Graph | None = None,
) -> None:
    graph.nodes = nodes
    graph.leafs = leafs
    graph.ends = ends
    graph.uid = next(_uids)
    graph.memory = graph.scratch = None
    graph.expected = None
    graph._gradients = gradients
    graph._whole = whole
    graph._index = graph._members = graph._names = graph._uses = None


class Order:
    """Nodes and leafs in the order of ``ggml_build_forward_expand``, while a graph is built.

    Attributes:
        nodes: operations including views, and parameters, each after its sources.
        leafs: tensors without operation that are no parameters.
    """

    def __init__(self, nodes: Iterable[Tensor] = (), leafs: Iterable[Tensor] = ()) -> None:
        self.nodes: list[Tensor] = list(nodes)
        self.leafs: list[Tensor] = list(leafs)
        # False while the sources of a tensor are being visited
        self._done: dict[Tensor, bool] = dict.fromkeys((*self.nodes, *self.leafs), True)

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._done

    def expand(self, ends: Iterable[Tensor]) -> None:
        """Add the ends and all that they are computed from, without recursion.

        Raises:
            InvalidArgument: a tensor depends on itself.
        """
        nodes, leafs, done = self.nodes, self.leafs, self._done
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

    def freeze(self) -> None:
        """Let nothing change the tensors any more, and name those without a name."""
        for prefix, tensors in (("node", self.nodes), ("leaf", self.leafs)):
            for i, tensor in enumerate(tensors):
                if not tensor.frozen:
                    change(tensor, "frozen", True)
                    if not tensor.name:
                        change(tensor, "name", f"{prefix}_{i}")


def _file(tensor: Tensor, nodes: list[Tensor], leafs: list[Tensor]) -> None:
    # A parameter has no operation but counts as a node, as in ggml, so that it can have a gradient.
    (leafs if tensor.op == "none" and not tensor.flag_bits & PARAM else nodes).append(tensor)
