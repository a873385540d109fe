"""CPUFamily: the family that the registry loads; its one device is the processor.

Not here: the device (device.py), the list of features (features.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.backend.family import Family
from aggml.devices.cpu.device import CPUDevice
from aggml.devices.cpu.features import (
    feature_list,
)
from aggml.stream.threadpool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.backend.backend import Device
    from aggml.devices.cpu.backend import CPUBackend

__all__ = ["CPUFamily", "aggml_backend_init"]


class CPUFamily(Family):
    """The family of the one CPU device (ggml_backend_cpu_reg)."""

    name = "CPU"
    api_version = 1
    description = "native kernels on worker threads"

    def __init__(self) -> None:
        self._device = CPUDevice()

    @property
    def devices(self) -> Sequence[Device]:
        """Exactly one."""
        return (self._device,)

    def features(self) -> Mapping[str, str]:
        """Instruction sets that are compiled in and usable here, under ggml's names."""
        return feature_list()

    def extension(self, name: str) -> Callable[..., Any] | None:
        """The functions that ggml offers by name and that have a counterpart here."""
        return _EXTENSIONS.get(name)


def _set_n_threads(backend: CPUBackend, n: int) -> None:
    backend.n_threads = n


_EXTENSIONS: dict[str, Callable[..., Any]] = {
    "ggml_backend_set_n_threads": _set_n_threads,
    "ggml_backend_get_features": feature_list,
    "ggml_backend_dev_get_extra_bufts": lambda _device: [],
    "ggml_threadpool_new": ThreadPool.from_params,
    "ggml_threadpool_free": ThreadPool.close,
}
_family = CPUFamily()


def aggml_backend_init() -> Family:
    """The family, for the registry."""
    return _family
