"""The device and its family.

Not here: memory (memory.py), streams of work (backend.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import aggml

from .backend import NumpyBackend
from .kernels import KERNELS, problem
from .memory import NumpyMemory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["NumpyDevice", "NumpyFamily"]


class NumpyDevice(aggml.Device):
    """numpy on the host, with memory of its own.

    Args:
        name: unique in the registry.
        memory: bytes that the device offers.
    """

    type = aggml.DeviceType.ACCEL  # so that best_device() never prefers it

    def __init__(self, name: str = "NUMPY", *, memory: int = 1 << 30) -> None:
        self.name = name
        self.description = f"numpy {np.__version__}"
        self._memory = NumpyMemory(self, memory)

    @property
    def buffer_type(self) -> aggml.BufferType:
        """The only memory of the device."""
        return self._memory

    def memory(self) -> tuple[int, int]:
        """Free bytes and all bytes."""
        return self._memory.size - self._memory.used, self._memory.size

    def backend(
        self,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        max_queued: int | None = None,
    ) -> NumpyBackend:
        """A new backend; n_threads and use_ref have no effect: numpy has one kernel for each op."""
        return NumpyBackend(self, max_queued=max_queued)

    def supports_op(self, tensor: aggml.Tensor) -> bool:
        """Whether there is a kernel for the node."""
        return problem(tensor) is None

    def supports_buffer_type(self, buffer_type: aggml.BufferType) -> bool:
        """Only the memory of this device."""
        return buffer_type is self._memory


class NumpyFamily(aggml.Family):
    """The family of this one device."""

    name = "NUMPY"
    api_version = 1
    description = "example of a device in pure Python"

    def __init__(self) -> None:
        self._devices = (NumpyDevice(),)

    @property
    def devices(self) -> Sequence[aggml.Device]:
        """The one device."""
        return self._devices

    def features(self) -> Mapping[str, str]:
        """How many ops there are."""
        return {"OPS": str(len(KERNELS))}
