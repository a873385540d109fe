"""Native plans of a layout: the nodes of each split, compiled by the backend that runs them.

Here: which backend compiles, and what its compiler asks for addresses. Not here: compiling (the
devices), the order of running (script.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from aggml.memory.graph_memory import GraphBuffer
from aggml.ops.table import VIEWS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml.backend import Backend
    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.plan import DevicePlan
    from aggml.scheduler.layout.place import Placed
    from aggml.scheduler.layout.rewrite import Rewritten
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["Side", "SplitMemory", "backend_at", "compile_splits"]

#: A further backend of a device, by what it is for and the index of the backend that it helps; see
#: `aggml.scheduler.running.sides`.
Side: TypeAlias = Callable[[str, int], "Backend"]


class SplitMemory(GraphBuffer):
    """The places of the tensors of one split, all of them for good, as a compiler asks for them.

    Args:
        block: some buffer of the layout.
        graph: the nodes of the split.
        backend: that compiles.
        addresses: of storages that have no `Placement`.
    """

    def __init__(
        self,
        block: Buffer,
        graph: Graph,
        backend: Backend,
        addresses: Mapping[Tensor, int],
    ) -> None:
        super().__init__(block, graph, backend, 0)
        self._addresses = addresses

    def locate(self, tensor: Tensor) -> tuple[int, bool]:
        """See `GraphBuffer.locate`; never in the arena."""
        placement = tensor.placement
        if placement is not None:
            return placement.address, False
        return self._addresses[tensor], False


def backend_at(rewritten: Rewritten, site: int, side: Side) -> Backend:
    """The backend whose stream the splits of a site are on."""
    b, number = rewritten.sites[site]
    return side(f"compute {number}", b) if number else rewritten.program.q.backends[b]


def compile_splits(placed: Placed, side: Side) -> Sliced[list[DevicePlan | None]]:
    """A plan for each split, in small steps; None for a split that computes nothing.

    Raises:
        Unsupported: a device cannot run a node that it said it could.
    """
    rewritten = placed.rewritten
    blocks = placed.blocks
    plans: list[DevicePlan | None] = []
    for graph, site in zip(rewritten.graphs, rewritten.site_of, strict=True):
        if all(node.op in VIEWS for node in graph.nodes):
            plans.append(None)
            continue
        backend = backend_at(rewritten, site, side)
        buffer_type = rewritten.program.q.types[rewritten.sites[site].backend]
        block = blocks[0] if blocks else buffer_type.alloc_buffer(0)
        memory = SplitMemory(block, graph, backend, placed.addresses)
        plan = yield from backend._compile(graph, memory.serve(graph, {}))
        plan.memory = blocks  # `reset` forgets the layout while runs are queued
        plans.append(plan)
    return plans
