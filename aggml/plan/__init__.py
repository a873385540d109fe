"""The compiler: a graph and the addresses of its tensors become native steps.

Here: the names. plan.py says what a plan is, storages.py what one reads and writes, fusion.py which
nodes are computed together, lowering.py turns nodes into steps, call.py is the step that calls
Python. Not here: where tensors lie (the memory room), running (the native runtime).
"""

from aggml.plan.call import PlanCall
from aggml.plan.fusion import Chain
from aggml.plan.lowering import Locate, compile_plan, compiling, node_problem
from aggml.plan.plan import DevicePlan, NativePlan, Plan, PlanStep
from aggml.plan.storages import WHOLE, Storages, written_leafs

__all__ = [
    "WHOLE",
    "Chain",
    "DevicePlan",
    "Locate",
    "NativePlan",
    "Plan",
    "PlanCall",
    "PlanStep",
    "Storages",
    "compile_plan",
    "compiling",
    "node_problem",
    "written_leafs",
]


def __dir__() -> list[str]:
    return __all__
