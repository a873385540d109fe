"""Module: kernels compiled together. CudaTarget: the part of a device that plans and backends use.

Not here: the device itself (device.py), compiling (compile.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aggml.native import _native

if TYPE_CHECKING:
    from aggml.devices.cuda.launch import Kernels
    from aggml.memory.buffer_type import Aside

__all__ = ["CudaTarget", "Module"]


class Module:
    """Kernels that are compiled together, for one device."""

    def __init__(self, device: _native.CudaDevice, kernels: Kernels, arch: str, name: str) -> None:
        self.native: _native.CudaModule = _native.CudaModule(device, name)
        self._name = name
        self._arch = arch
        self._kernels = kernels

    def fetch(self) -> None:
        """Take the cubin from the cache, or compile it. Slow: runs on a separate thread.

        Raises:
            Unsupported: it is in no cache and NVRTC is not installed.
        """
        if not self.native.ready:
            self.native.set_image(self._kernels.module(self._name, self._arch))


class CudaTarget(Protocol):
    """The part of a CUDA device that plans and backends use; `CUDADevice` is the whole."""

    name: str
    native: _native.CudaDevice
    kernels: Kernels
    aside: Aside

    def module(self, name: str) -> Module:
        """The kernels of that name."""
        ...

    def image(self, name: str) -> bytes:
        """The cubin of a module; slow if it has to be compiled.

        Raises:
            Unsupported: it is in no cache and NVRTC is not installed.
        """
        ...
