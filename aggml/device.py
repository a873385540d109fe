"""Device: a place where graphs can run; tells memory, limits, what it supports; opens backends.

Here: the interface that a device implements. Not here: finding devices (registry.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from aggml.errors import Unsupported
from aggml.event import Event

if TYPE_CHECKING:
    from aggml.backend import Backend
    from aggml.buffer import Buffer, BufferType
    from aggml.tensor import Tensor

__all__ = ["Device", "DeviceCaps", "DeviceProps", "DeviceType"]


class DeviceType(Enum):
    """What a device is, for those who look for one (ggml_backend_dev_type)."""

    CPU = "cpu"
    GPU = "gpu"
    IGPU = "igpu"
    ACCEL = "accel"
    META = "meta"


class DeviceCaps(NamedTuple):
    """What a device can do beyond the minimum."""

    async_: bool = True
    host_buffer: bool = False
    buffer_from_host: bool = False
    events: bool = True


class DeviceProps(NamedTuple):
    """What a device tells of itself (ggml_backend_dev_props); memory in bytes, 0 of 0: unknown."""

    name: str
    description: str
    type: DeviceType
    memory_free: int
    memory_total: int
    caps: DeviceCaps


class Device(ABC):
    """One per piece of hardware (or simulation); lives as long as the process."""

    name: str
    description: str
    type: DeviceType
    caps: DeviceCaps = DeviceCaps()

    @property
    @abstractmethod
    def buffer_type(self) -> BufferType:
        """The preferred memory for tensors of this device."""

    @property
    def host_buffer_type(self) -> BufferType | None:
        """Host memory that makes transfers faster; None where there is none."""
        return None

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""

    @abstractmethod
    def backend(
        self,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        max_queued: int | None = None,
    ) -> Backend:
        """A new stream of work on this device, independent of all others.

        Args:
            n_threads: the most threads that one graph uses, where threads compute.
            use_ref: only exact reference kernels, where there are such.
            max_queued: submissions that `Backend.ready` admits at a time.
        """

    @abstractmethod
    def supports_op(self, tensor: Tensor) -> bool:
        """Whether it can run a node of such types, shapes, strides; nothing is allocated or run."""

    @abstractmethod
    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Whether kernels of this device read and write memory of this type directly."""

    def offload_op(self, tensor: Tensor) -> bool:
        """Whether the node is worth moving here though its weights are elsewhere."""
        return False

    def buffer_from_host(self, memory: object) -> Buffer:
        """Wrap host memory (any buffer object) without copying; the buffer keeps it alive.

        Raises:
            Unsupported: this device cannot use host memory directly.
        """
        raise Unsupported(f"[Device.buffer_from_host] {self.name} cannot use host memory directly")

    def event(self) -> Event:
        """A new event, not recorded yet."""
        return Event(self)

    @property
    def props(self) -> DeviceProps:
        """All of this at once, with the memory that is free now."""
        free, total = self.memory()
        return DeviceProps(self.name, self.description, self.type, free, total, self.caps)

    def __repr__(self) -> str:
        return f"<Device {self.name}: {self.description}>"
