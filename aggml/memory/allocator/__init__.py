"""Offsets for the tensors of a graph, computed from their lifetimes.

Here: the names. arena.py takes and returns ranges of bytes, lifetimes.py lays out a whole graph,
heap.py places one tensor per call. Not here: the allocators that place tensors at these offsets
(memory/allocators.py).
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
    scratch_steps,
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
    "scratch_steps",
]


def __dir__() -> list[str]:
    return __all__
