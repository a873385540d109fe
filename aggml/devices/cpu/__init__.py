"""The CPU: native kernels on worker threads, host memory.

Here: the names. family.py has the family for the registry, device.py the device, backend.py its
streams of work.
"""

from aggml.devices.cpu.backend import CPUBackend
from aggml.devices.cpu.device import CoreKinds, CPUDevice
from aggml.devices.cpu.family import CPUFamily, aggml_backend_init
from aggml.devices.cpu.features import CPUFeatures, compiled_features, usable_features
from aggml.devices.cpu.roofline import Roofline
from aggml.devices.cpu.traits import TypeTraits, type_traits
from aggml.native import isas

__all__ = [
    "CPUBackend",
    "CPUDevice",
    "CPUFamily",
    "CPUFeatures",
    "CoreKinds",
    "Roofline",
    "TypeTraits",
    "aggml_backend_init",
    "compiled_features",
    "isas",
    "type_traits",
    "usable_features",
]


def __dir__() -> list[str]:
    return __all__
