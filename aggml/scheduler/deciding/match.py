"""Matching: whether a newly built graph is equivalent, for a scheduler, to one that it has seen.

Here: a comparison, tensor by tensor, of all facts on which assignment, splits, memory and native
plans depend. Not here: the records that are kept of a graph (planner.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aggml.graph import Graph
    from aggml.scheduler.deciding.program import SplitGraph
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor
    from aggml.tensor.placement import BufferUsage, Placement

__all__ = ["OuterFacts", "compare_outlines", "ground", "outline", "usages"]


class OuterFacts(NamedTuple):
    """The facts outside of the graph on which a program depends.

    Attributes:
        placements: of leafs and nodes, in order.
        usages: of the buffers of leafs that were placed, and whether others may write there: a plan
            may have packed what lies in such a buffer.
        pins: backends that tensors of the graph were pinned to.
    """

    placements: list[Placement | None]
    usages: list[tuple[BufferUsage, bool, bool] | None]
    pins: dict[Tensor, int]


def ground(graph: Graph, pins: Mapping[Tensor, int]) -> OuterFacts:
    """The present facts about a graph."""
    tensors = (*graph.leafs, *graph.nodes)
    return OuterFacts(
        [t.placement for t in tensors],
        usages(graph),
        {t: pins[t] for t in tensors if t in pins} if pins else {},
    )


def usages(graph: Graph) -> list[tuple[BufferUsage, bool, bool] | None]:
    """See `OuterFacts.usages`."""
    places = [t.placement for t in graph.leafs]
    return [None if p is None else (p.buffer.usage, p.buffer.exclusive, p.exported) for p in places]


def outline(graph: Graph, floating: Collection[Tensor]) -> tuple[object, ...]:
    """A key that is equal for equivalent graphs, and seldom equal for others."""
    first, last = graph.nodes[:1], graph.nodes[-1:]
    shapes = [(t.op, t.ne) for t in (*graph.leafs[:2], *first, *last)]
    return (len(graph.leafs), len(graph.nodes), len(graph.ends), len(floating), *shapes)


def compare_outlines(
    graph: Graph,
    floating: Collection[Tensor],
    pins: Mapping[Tensor, int],
    program: SplitGraph,
    known: OuterFacts,
) -> Sliced[dict[Tensor, Tensor] | None]:
    """The tensor of the program that stands for each tensor of the graph; None: they differ.

    These have to be equal: ops and their parameters, types, extents, strides, offsets of views,
    sources, flags, names (because messages contain them), ends, the leafs that each run brings,
    pins. Placed tensors must have the identical placement, in a buffer of the same usage. Functions
    of the user must be identical.
    """
    if len(graph.nodes) != len(program.nodes) or len(graph.ends) != len(program.ends):
        return None
    wanted = frozenset(floating)
    if len(wanted) != len(program.floating):
        return None
    if usages(graph) != known.usages:
        return None
    twins: dict[Tensor, Tensor] = {}
    before = (*program.leafs[: len(graph.leafs)], *program.nodes)
    rows = zip((*graph.leafs, *graph.nodes), before, known.placements, strict=True)
    for i, (a, b, placement) in enumerate(rows):
        if not i % 16:
            yield
        if not (
            a.op == b.op
            and a.ne == b.ne
            and a.nb == b.nb
            and a.dtype is b.dtype
            and a.placement is placement
            and b.placement is placement
            and a.flag_bits == b.flag_bits
            and a.view_offs == b.view_offs
            and a.name == b.name
            and _same_params(a.op_params, b.op_params)
            and _stand(a.src, b.src, twins)
            and _stands(a.view_src, b.view_src, twins)
            and (a in wanted) == (b in program.floating)
        ):
            return None
        if (pins or known.pins) and pins.get(a) != known.pins.get(b):
            return None
        twins[a] = b
    return twins if _stand(graph.ends, program.ends, twins) else None


def _same_params(a: bytes, b: bytes) -> bool:
    # The parameter bytes of a custom op also carry the user's function (ops/custom.py).
    return a is b or (a == b and type(a) is bytes and type(b) is bytes)


def _stands(a: Tensor | None, b: Tensor | None, twins: dict[Tensor, Tensor]) -> bool:
    # A tensor in neither list, which is a leaf that only views read, has to be identical.
    return a is b if a is None or b is None else twins.get(a, a) is b


def _stand(
    a: Sequence[Tensor | None], b: Sequence[Tensor | None], twins: dict[Tensor, Tensor]
) -> bool:
    if len(a) != len(b):
        return False
    get = twins.get
    for x, y in zip(a, b, strict=True):
        if x is not y and (x is None or get(x) is not y):
            return False
    return True
