"""MetaDevice: several devices of one machine as one: weights divided, graphs computed by all.

Here: the names. What parts a tensor has is told by division.py, what each op makes of parts by
rules.py, what each device computes by rounds.py. It is generic over devices: GPUs, simulated ones,
the CPU. Not here: layers spread over devices (scheduler/), machines (ray/).
"""

from aggml.devices.meta.backend import MetaBackend
from aggml.devices.meta.device import MetaDevice
from aggml.devices.meta.division import SUM, WHOLE
from aggml.devices.meta.memory import MetaBuffer, MetaBufferType

__all__ = ["SUM", "WHOLE", "MetaBackend", "MetaBuffer", "MetaBufferType", "MetaDevice"]


def __dir__() -> list[str]:
    return sorted(__all__)
