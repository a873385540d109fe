"""Offsets for the tensors of a graph, found from how long each of them is needed.

Here: the names; arena.py takes and gives back, lifetimes.py lays out a whole graph, heap.py places
call by call.
Not here: the allocators that place tensors so (memory/allocators.py).
"""

from aggml.memory.allocator.heap import HeapAllocator
from aggml.memory.allocator.lifetimes import (
    INPLACE,
    GraphLayout,
    ScratchLayout,
    Sizing,
    Slot,
    lay_out_graph,
    lay_out_scratch,
    laying_out_scratch,
)

__all__ = [
    "INPLACE",
    "GraphLayout",
    "HeapAllocator",
    "ScratchLayout",
    "Sizing",
    "Slot",
    "lay_out_graph",
    "lay_out_scratch",
    "laying_out_scratch",
]


def __dir__() -> list[str]:
    return __all__
