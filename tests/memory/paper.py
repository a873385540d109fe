"""Imaginary memory that is never allocated, small graphs and their addresses, to test allocators.

No tests here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memory.memory_model import check_layout

from aggml import (
    AllocFailed,
    Buffer,
    BufferType,
    Graph,
    Tensor,
    new_tensor,
    ops,
)

if TYPE_CHECKING:
    from aggml.memory.allocator import (
        GraphLayout,
    )


class Paper(BufferType):
    """Memory that exists on paper only: addresses from 4096 on, a limit, failures on demand."""

    def __init__(self, *, alignment: int = 32, max_size: int = 1 << 62, base: int = 4096) -> None:
        self.name = "Paper"
        self.device = None
        self.alignment = alignment
        self.base = base
        self.limit = max_size
        self.left = 1 << 62
        self.extra = 0

    @property
    def max_size(self) -> int:
        return self.limit

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes + self.extra

    def alloc_buffer(self, size: int) -> Buffer:
        if size > self.left:
            raise AllocFailed(f"[Paper] {size} bytes")
        self.left -= size
        return Buffer(self, size, self.base, None)


def leaf(name: str, *ne: int) -> Tensor:
    return new_tensor("f32", ne=ne or (8, 8), name=name)


def chain(n: int) -> tuple[Graph, list[Tensor]]:
    """x -> cont -> ... -> cont: nothing in place, two tensors of 256 bytes alive at a time."""
    tensors = [leaf("x")]
    for _ in range(n):
        tensors.append(ops.cont(tensors[-1]))
    return Graph(tensors[-1]), tensors


def intermediates(graph: Graph) -> set[Tensor]:
    return {node for node in graph.nodes if node.view_src is None} - set(graph.ends)


def addresses(layout: GraphLayout) -> dict[Tensor, tuple[int, int]]:
    """Address and size of each tensor; one address space for all chunks, buffers 0 and 2 too."""
    assert all(size <= 1 << 14 for sizes in layout.chunks for size in sizes)
    return {
        tensor: (slot.buffer_id % 2 * (1 << 20) + slot.chunk * (1 << 14) + slot.offset, slot.size)
        for tensor, slot in layout.slots.items()
    }


def sized(graph: Graph, layout: Any) -> dict[Tensor, tuple[int, int]]:
    assert all(start + t.nbytes <= layout.size for t, start in layout.offsets.items())
    return {tensor: (start, tensor.nbytes) for tensor, start in layout.offsets.items()}


def check_addresses(graph: Graph) -> None:
    placed = {t.root for t in (*graph.nodes, *graph.leafs)}
    check_layout(graph, {t: ((t.address or 0) - 4096, t.nbytes) for t in placed})
