"""MetaDevice: several devices of one machine as one: weights are divided, all compute each graph.

Here: the names. division.py decides how a tensor is divided, rules.py what each op does with
divided operands, rounds.py what each device computes. It works over any devices: GPUs, simulated
devices, the CPU. Not here: layers spread over devices (scheduler/), several machines (ray/).
"""

from aggml.devices.meta.backend import MetaBackend
from aggml.devices.meta.device import MetaDevice
from aggml.devices.meta.division import SUM, WHOLE
from aggml.devices.meta.memory import MetaBuffer, MetaBufferType

__all__ = ["SUM", "WHOLE", "MetaBackend", "MetaBuffer", "MetaBufferType", "MetaDevice"]


def __dir__() -> list[str]:
    return sorted(__all__)
