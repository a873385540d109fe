"""Backend: ordered work on one device, from set, run and get to events, batches and closing.

Here: the names. backend.py has the classes, inputs.py the checks of what a run brings and asks for,
direct.py the hooks for native streams.
"""

from aggml.backend.backend import Backend, Device, GraphPlan

__all__ = ["Backend", "Device", "GraphPlan"]


def __dir__() -> list[str]:
    return __all__
