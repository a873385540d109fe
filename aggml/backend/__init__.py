"""Backend: ordered work on one device, from set, run and get to events, batches and closing.

Here: the names. base.py is what a device implements, data.py moves bytes, computing.py places and
runs graphs, backend.py adds order and the end; direct.py has the hooks for native streams.
"""

from aggml.backend.backend import Backend, Device
from aggml.backend.base import BackendBase
from aggml.backend.computing import GraphPlan

__all__ = ["Backend", "BackendBase", "Device", "GraphPlan"]


def __dir__() -> list[str]:
    return __all__
