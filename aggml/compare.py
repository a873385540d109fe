"""Graphs cloned to other backends, and two backends compared node by node.

Here: copy_graph, compare_backends and their result types. Not here: how bytes cross devices
(backend/).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from aggml.backend import Backend
from aggml.conversion.quant import dequantize
from aggml.dtype import DType
from aggml.errors import InvalidArgument, InvalidHandle, InvalidState, NotAllocated
from aggml.graph import Graph
from aggml.ops.table import IDLE
from aggml.stream.completions import gather
from aggml.tensor import change, new_node, new_view

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.memory.buffer import Buffer
    from aggml.tensor import Tensor

__all__ = [
    "Comparison",
    "GraphCopy",
    "NodeComparison",
    "compare_backends",
    "copy_graph",
]

Array = np.ndarray[Any, Any]


class GraphCopy:
    """A cloned graph in which each storage has its own memory, so that every node can be read.

    Attributes:
        graph: the clone; `Backend.graph_compute` runs it.
        tensors: from each tensor of the original to its clone.
        buffer: where the clones lie.
    """

    def __init__(self, graph: Graph, tensors: Mapping[Tensor, Tensor], buffer: Buffer) -> None:
        self.graph = graph
        self.tensors = tensors
        self.buffer = buffer

    def close(self) -> None:
        """Unplace the clones; work in flight keeps the bytes (ggml_backend_graph_copy_free)."""
        if self.graph.memory is not None:
            self.graph.memory.close()
        self.buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def copy_graph(graph: Graph, source: Backend, target: Backend) -> GraphCopy:
    """Clone a graph and what its tensors hold to memory of ``target`` (ggml_backend_graph_copy).

    The clone has the same ops, layouts, flags and names, and its views show the same storages. The
    original stays unchanged.

    Args:
        graph: its leafs have memory.
        source: reaches that memory.
        target: where the clone will run; may be ``source``.

    Returns:
        The copy. Its leafs, and the nodes that can be read, hold the values of the originals after
        all earlier work of ``source``. Other nodes hold nothing yet.

    Raises:
        NotAllocated: a leaf has no memory.
        AllocFailed: no memory for the clone.
        InvalidHandle: ``graph`` is no Graph.
        InvalidArgument: some memory is out of reach.
        InvalidState: a backend is closed.

    Cancellation: unplaces the clone; copies that are queued go on.
    """
    _check(graph, source, target, "copy_graph")
    clones: dict[Tensor, Tensor] = {}
    for tensor in _in_order(graph):
        _clone(tensor, clones)
    storages = [t for t in clones if t.view_src is None]
    for tensor in storages:
        if tensor.placement is None and tensor.op == "none":
            raise NotAllocated(f"[copy_graph] {tensor!r} has no memory: call alloc_graph first")
    copies = [t for t in storages if t.placement is not None and t.placement.readable]
    for tensor in copies:
        source._check_tensor(tensor, "copy_graph")
    made = GraphCopy(
        Graph(*(clones[end] for end in graph.ends)),
        clones,
        target.alloc([clones[t] for t in storages]),
    )
    try:
        target.alloc_graph(made.graph)
        await gather(*(source.copy(t, clones[t], to=target) for t in copies))
    except BaseException:
        made.close()
        raise
    return made


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """One node on two backends.

    Attributes:
        index: of the node in ``graph.nodes``.
        node: of the graph that was given.
        nmse: sum of squared differences divided by the sum of squares of the first result;
            infinite where one has a number and the other infinity or NaN.
        passed: whether ``nmse`` is at most ``nmse_max``.
        seconds: how long each backend took to compute the node; None if the whole graph ran in
            one go.
    """

    index: int
    node: Tensor
    nmse: float
    passed: bool
    seconds: tuple[float, float] | None


class Comparison(NamedTuple):
    """How two backends compare; true if the comparison was not ended early and every node passed.

    Attributes:
        nodes: what was compared, in order.
        stopped: index of the node at which the callback ended the walk, or None.
    """

    nodes: list[NodeComparison]
    stopped: int | None

    @property
    def passed(self) -> bool:
        """Whether no node differs and none was left out."""
        return self.stopped is None and all(node.passed for node in self.nodes)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        lines = [
            f"{n.index:5} {n.node.op:16} {n.nmse:10.3g} {'' if n.passed else 'DIFFERS '}{n.node!r}"
            for n in self.nodes
        ]
        end = "" if self.stopped is None else f", stopped at node {self.stopped}"
        failed = sum(not n.passed for n in self.nodes)
        return "\n".join([*lines, f"{len(lines)} nodes, {failed} differ{end}"])


#: (what was found, result of the first backend, of the second) -> False to stop there
Observer = Callable[[NodeComparison, Array, Array], "Awaitable[bool | None] | bool | None"]


async def compare_backends(
    graph: Graph,
    one: Backend,
    two: Backend,
    callback: Observer | None = None,
    *,
    nodes: Iterable[Tensor] | None = None,
    nmse_max: float = 1e-6,
) -> Comparison:
    """Run copies of a graph on two backends and compare (ggml_backend_compare_graph_backend).

    Each backend computes node after node from its own earlier results. Views are not compared.

    Args:
        graph: its leafs have memory that ``one`` reaches; left as it is.
        one: the backend whose results count as right.
        two: the backend to be checked.
        callback: called for each node with both results; may be async; False ends the walk.
        nodes: compare these only, after a single run of the whole graph on each backend.
        nmse_max: the largest error that passes.

    Returns:
        The comparison. Unlike ggml's result, it is false if a node differs or ``callback`` ended
        the walk.

    Raises:
        InvalidArgument: one of ``nodes`` is no node of the graph. Else as `copy_graph`, and
            whatever the computations raise.

    Cancellation: ends the walk and unplaces the clones; the node that runs goes on.
    """
    _check(graph, one, two, "compare_backends")
    index = {node: i for i, node in enumerate(graph.nodes)}
    if nodes is None:
        wanted = [node for node in graph.nodes if node.op not in IDLE]
    else:
        wanted = list(nodes)
        for node in wanted:
            if node not in index:
                raise InvalidArgument(f"[compare_backends] {node!r} is no node of {graph!r}")
        wanted.sort(key=index.__getitem__)
        if not wanted:
            raise InvalidArgument("[compare_backends] nodes is empty: nothing to compare")
    found: list[NodeComparison] = []
    with await copy_graph(graph, one, one) as first, await copy_graph(graph, one, two) as second:
        sides = [(one, first), (two, second)]
        if nodes is not None:
            await gather(*(backend.graph_compute(copy.graph) for backend, copy in sides))
        for node in wanted:
            i = index[node]
            seconds = None
            if nodes is None:
                seconds = await _compute(sides, i)
            x, y = await gather(*(backend.get(copy.tensors[node]) for backend, copy in sides))
            error = _nmse(_numbers(x, node), _numbers(y, node))
            item = NodeComparison(i, node, error, error <= nmse_max, seconds)
            found.append(item)
            if callback is not None:
                goes_on = callback(item, x, y)
                if isinstance(goes_on, Awaitable):
                    goes_on = await goes_on
                if goes_on is False:
                    return Comparison(found, i)
    return Comparison(found, None)


async def _compute(sides: list[tuple[Backend, GraphCopy]], i: int) -> tuple[float, float]:
    """Compute node ``i`` alone on both backends; returns the seconds that each took."""
    parts = [copy.graph.part(i, i + 1) for _, copy in sides]
    for (backend, _), part in zip(sides, parts, strict=True):
        backend.alloc_graph(part)
    futures = [backend.graph_compute(part) for (backend, _), part in zip(sides, parts, strict=True)]
    await gather(*futures)
    one, two = ((f.times.done or 0.0) - (f.times.started or 0.0) for f in futures)
    return one, two


def _check(graph: object, one: object, two: object, what: str) -> None:
    if not isinstance(graph, Graph):
        raise InvalidHandle(f"[{what}] {graph!r} is no Graph")
    for backend in (one, two):
        if not isinstance(backend, Backend):
            raise InvalidHandle(f"[{what}] {backend!r} is no Backend")
        if backend.closed:
            raise InvalidState(f"[{what}] {backend!r} is closed")


def _in_order(graph: Graph) -> list[Tensor]:
    """All tensors, each after its sources and its storage."""
    found: dict[Tensor, None] = {}
    for tensor in (*graph.leafs, *graph.nodes):
        found.setdefault(tensor.root)
    # A storage that is a node of the graph stands where its node stands.
    leafs = [t for t in found if t.op == "none"]
    return list(dict.fromkeys([*leafs, *graph.leafs, *graph.nodes]))


def _clone(tensor: Tensor, clones: dict[Tensor, Tensor]) -> None:
    src = tuple([None if s is None else clones[s] for s in tensor.src])
    if tensor.view_src is None:
        op, dtype, ne = tensor.op, tensor.dtype, tensor.ne
        clone = new_node(op, dtype, ne, src, tensor.op_params, tensor.name, tensor.ndim)
    else:
        clone = new_view(
            tensor.op,
            clones[tensor.view_src],
            tensor.ne,
            tensor.nb,
            tensor.view_offs,
            src,
            tensor.op_params,
            tensor.name,
            tensor.ndim,
        )
    change(clone, "flag_bits", tensor.flag_bits)
    clones[tensor] = clone


def _numbers(x: Array, node: Tensor) -> Array:
    if node.dtype.is_quantized:
        return dequantize(x, node.dtype, node.ne).astype(np.float64)
    return x.astype(np.float64) if node.dtype is not DType.I64 else x.astype(np.longdouble)


def _nmse(x: Array, y: Array) -> float:
    """Normalised mean squared error; infinities and NaN are equal to themselves."""
    x, y = x.ravel(), y.ravel()
    odd = ~(np.isfinite(x) & np.isfinite(y))
    if not np.array_equal(x[odd], y[odd], equal_nan=True):
        return float("inf")
    x, y = x[~odd], y[~odd]
    difference = float(np.square(x - y).sum())
    return difference / max(float(np.square(x).sum()), 1e-300) if difference else 0.0
