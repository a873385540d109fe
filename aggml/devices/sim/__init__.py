"""The simulated device: an accelerator without hardware, see `SimDevice`.

Here: the public names. Not here: the device (device.py), its memory and its work (backend.py), what
a graph costs (cost.py).
"""

from aggml.devices.sim.backend import SimBackend, SimBufferType
from aggml.devices.sim.cost import operations
from aggml.devices.sim.device import SimDevice

__all__ = ["SimBackend", "SimBufferType", "SimDevice", "operations"]


def __dir__() -> list[str]:
    return __all__
