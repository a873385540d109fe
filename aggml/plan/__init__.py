"""The compiler: a graph and the addresses of its tensors become native steps.

Here: the names. plan.py defines a plan, storages.py finds the storages that it reads and writes,
fusion.py decides which nodes are computed together, lowering.py turns nodes into steps, call.py is
the step that calls Python, compiled.py keeps plans for further runs. Not here: where tensors lie
(memory/), running (the native runtime).
"""

from aggml.plan.call import PlanCall
from aggml.plan.compiled import CompiledGraph, CompiledGraphs
from aggml.plan.fusion import FusionChain
from aggml.plan.lowering import Locate, compile_plan, compile_steps, node_problem
from aggml.plan.plan import DevicePlan, NativePlan, Plan, PlanStep
from aggml.plan.storages import WHOLE, Storages, written_leafs

__all__ = [
    "WHOLE",
    "CompiledGraph",
    "CompiledGraphs",
    "DevicePlan",
    "FusionChain",
    "Locate",
    "NativePlan",
    "Plan",
    "PlanCall",
    "PlanStep",
    "Storages",
    "compile_plan",
    "compile_steps",
    "node_problem",
    "written_leafs",
]


def __dir__() -> list[str]:
    return __all__
