"""Where the tensors of a graph lie: lifetimes to offsets, and the allocators that place them.

Here: the names; arena.py takes and gives back, lifetimes.py plans, allocators.py places.
"""

from aggml.memory.allocator.allocators import GraphAllocator, TensorAllocator
from aggml.memory.allocator.heap import HeapAllocator
from aggml.memory.allocator.lifetimes import (
    INPLACE,
    AllocPlan,
    ScratchPlan,
    Sizing,
    Slot,
    plan_graph,
    plan_scratch,
    scratch_planning,
)

__all__ = [
    "INPLACE",
    "AllocPlan",
    "GraphAllocator",
    "HeapAllocator",
    "ScratchPlan",
    "Sizing",
    "Slot",
    "TensorAllocator",
    "plan_graph",
    "plan_scratch",
    "scratch_planning",
]
