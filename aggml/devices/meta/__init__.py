"""MetaDevice: several devices of one machine as one: weights are divided, all compute each graph.

Here: the names. split.py decides how a tensor is split, rules.py what each op does with
divided operands, rounds.py what each device computes. It works over any devices: GPUs, simulated
devices, the CPU. Not here: layers spread over devices (scheduler/), several machines (ray/).
"""

from aggml.devices.meta.backend import MetaBackend
from aggml.devices.meta.device import MetaDevice
from aggml.devices.meta.memory import MetaBuffer, MetaBufferType
from aggml.devices.meta.split import SUM, WHOLE, SplitAxis, SplitState

__all__ = [
    "SUM",
    "WHOLE",
    "MetaBackend",
    "MetaBuffer",
    "MetaBufferType",
    "MetaDevice",
    "SplitAxis",
    "SplitState",
]


def __dir__() -> list[str]:
    return sorted(__all__)
