"""Checks a plan of offsets: each byte of a model of the memory records which storage wrote it.

Not here: the planner. The model uses nothing of it but the list of ops that may work in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aggml.memory.allocator import INPLACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Graph, Tensor

__all__ = ["check_layout"]

_UNIT = 8  # bytes; sizes and offsets of the tests are multiples


def check_layout(
    graph: Graph, places: Mapping[Tensor, tuple[int, int]], *, leafs_must_last: bool = True
) -> None:
    """Run the graph on marks: each storage writes its own number over the bytes that it occupies.

    Args:
        graph: its nodes run in their order.
        places: address and bytes of each storage that the plan places.
        leafs_must_last: whether leafs must still hold their bytes at the end.

    Raises:
        AssertionError: a node would read bytes that another storage has overwritten, a node would
            write over a source without working in place, or a result is gone at the end.
    """
    top = max((start + size for start, size in places.values()), default=0)
    memory = np.full(-(-top // _UNIT), -1)
    mark = {tensor: i for i, tensor in enumerate(places)}

    def part(tensor: Tensor) -> slice:
        start, size = places[tensor]
        assert size >= tensor.nbytes
        return slice(start // _UNIT, -(-(start + size) // _UNIT))

    def holds(tensor: Tensor) -> bool:
        root = tensor.root
        return root not in places or bool((memory[part(root)] == mark[root]).all())

    for tensor in places:
        if tensor.op == "none":
            assert (memory[part(tensor)] == -1).all(), f"{tensor!r} overlaps another leaf"
            memory[part(tensor)] = mark[tensor]
    for node in graph.nodes:
        sources = [source for source in node.src if source is not None]
        for source in sources:
            assert holds(source), f"{node!r} reads {source!r}, which was overwritten"
        if node not in places or node.op == "none":
            continue
        here, n = part(node), INPLACE.get(node.op, 0)
        for i, source in enumerate(sources):
            root = source.root
            if root not in places or not node.nbytes or not root.nbytes:
                continue
            there = part(root)
            if there.stop <= here.start or here.stop <= there.start:
                continue
            same = (source.ne, source.nb, source.dtype) == (node.ne, node.nb, node.dtype)
            begins = places[root][0] + source.view_offs == places[node][0]
            in_place = same and begins and i < n
            assert in_place, f"{node!r} overwrites {source!r} while it reads it"
        memory[here] = mark[node]
    for tensor in (*graph.ends, *(t for t in (*graph.nodes, *graph.leafs) if t.flags & 2)):
        assert holds(tensor), f"the result {tensor!r} is gone"
    if leafs_must_last:
        for leaf in graph.leafs:
            assert holds(leaf), f"the leaf {leaf!r} is gone"
