"""CUDA devices by way of cuda-python, on machines with a driver and a GPU.

Here: the family that the registry loads. Importing this file imports no NVIDIA package. Not here:
cuda-python (driver.py), device and backend (device.py, backend.py), kernels (launch.py has their
interface).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from aggml.backend.family import Family
from aggml.devices.cuda.backend import CUDABackend
from aggml.devices.cuda.compile import nvrtc_version
from aggml.devices.cuda.device import CUDADevice
from aggml.devices.cuda.driver import Missing, facts, probe
from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.backend.backend import Device
    from aggml.devices.cuda.launch import Kernels

__all__ = ["CUDABackend", "CUDADevice", "CUDAFamily", "Missing", "aggml_backend_init"]


class CUDAFamily(Family):
    """All GPUs that the driver finds, in its order (ggml_backend_cuda_reg).

    Args:
        kernels: the kernels that the devices use; None: the package's own.

    Raises:
        Missing: packages, the driver, or a device.
    """

    name = "CUDA"
    api_version = 1
    description = "NVIDIA GPUs, on cuda-python"

    def __init__(self, kernels: Kernels | None = None) -> None:
        count = probe()
        found = [facts(i) for i in range(count)]
        if kernels is None:
            from aggml.devices.cuda.kernels import blas
            from aggml.devices.cuda.lowering import CudaKernels

            library = blas.library()
            tf32 = os.environ.get("AGGML_CUDA_TF32", "0") not in ("", "0")
            each = [CudaKernels(blas=library, gpu=x.gpu, tf32=tf32) for x in found]
            self._devices = tuple(map(CUDADevice, found, each))
        else:
            self._devices = tuple([CUDADevice(x, kernels) for x in found])

    @property
    def devices(self) -> Sequence[Device]:
        """One per GPU."""
        return self._devices

    def features(self) -> Mapping[str, str]:
        """The compute capabilities of the GPUs, under ggml's name for that feature."""
        archs = sorted({device.facts.arch for device in self._devices})
        found = {"ARCHS": ",".join(f"{arch}0" for arch in archs), "USE_GRAPHS": "1"}
        if any(device.kernels.blas is not None for device in self._devices):
            found["CUBLASLT"] = "1"
        version = nvrtc_version()
        return found if version is None else found | {"NVRTC": version}

    def extension(self, name: str) -> Callable[..., Any] | None:
        """The functions that ggml offers by name and that have a counterpart here."""
        return {"ggml_backend_get_features": self.features}.get(name)


_family: CUDAFamily | None = None
_making = new_lock()


def aggml_backend_init() -> Family:
    """The family, for the registry; the same each time.

    Raises:
        Missing: packages, the driver, or a device.
    """
    global _family
    with _making:
        if _family is None:
            _family = CUDAFamily()
        return _family


def __dir__() -> list[str]:
    return __all__
