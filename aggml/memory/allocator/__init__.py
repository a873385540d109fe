"""Where the tensors of a graph lie: from how long each is needed to its offset.

Here: the names; arena.py takes and gives back, lifetimes.py plans, heap.py does it call by call.
Not here: the allocators that place tensors by such plans (memory/allocators.py).
"""

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
    "HeapAllocator",
    "ScratchPlan",
    "Sizing",
    "Slot",
    "plan_graph",
    "plan_scratch",
    "scratch_planning",
]
