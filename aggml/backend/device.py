"""Device: a place where graphs can run; tells memory, limits, what it supports; opens backends.

Here: the interface that a device implements. Not here: finding devices (registry.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from aggml.backend.params import keywords_of
from aggml.errors import InvalidArgument, Unsupported
from aggml.stream.event import Event

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from aggml.backend import Backend
    from aggml.backend.family import Family
    from aggml.memory.buffer import Buffer, BufferType
    from aggml.tensor import Tensor

__all__ = ["Device", "DeviceCaps", "DeviceProps", "DeviceType"]


class DeviceType(Enum):
    """What a device is, for those who look for one (ggml_backend_dev_type).

    GPU has memory of its own, IGPU shares that of the host; ACCEL helps the CPU in host memory;
    META stands for several devices.
    """

    CPU = "cpu"
    GPU = "gpu"
    IGPU = "igpu"
    ACCEL = "accel"
    META = "meta"


class DeviceCaps(NamedTuple):
    """What a device can do beyond the minimum (ggml_backend_dev_caps).

    Attributes:
        async_: work goes on while the caller does something else; always true here.
        host_buffer: `Device.host_buffer_type` offers memory for faster transfers.
        buffer_from_host: `Device.buffer_from_host` works.
        events: always true here.
        mmap: weights may be used where a file is mapped.
    """

    async_: bool = True
    host_buffer: bool = False
    buffer_from_host: bool = False
    events: bool = True
    mmap: bool = False


class DeviceProps(NamedTuple):
    """What a device tells of itself (ggml_backend_dev_props); memory in bytes, 0 of 0: unknown."""

    name: str
    description: str
    type: DeviceType
    memory_free: int
    memory_total: int
    caps: DeviceCaps
    device_id: str | None = None


class Device(ABC):
    """One per piece of hardware (or simulation); lives as long as the process.

    Attributes:
        name: short and unique: "CPU", "CUDA0".
        description: for people: the product's name.
        type: see `DeviceType`.
        caps: see `DeviceCaps`.
        family: the Family that brought it; None for a device made outside of the registry.
        device_id: where the hardware sits, "domain:bus:device.function" in lower case, if anywhere.
    """

    name: str
    description: str
    type: DeviceType
    caps: DeviceCaps = DeviceCaps()
    family: Family | None = None
    device_id: str | None = None

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
        """Free and total bytes; 0 and 0: nothing is known."""

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

    def backend_from_params(self, params: str = "") -> Backend:
        """The same from a text, as in "CPU:n_threads=2" (ggml_backend_dev_init).

        Args:
            params: keyword arguments of `backend` as ``key=value,key=value``; a device may read it
                in its own way.

        Raises:
            InvalidArgument: a key is no argument of `backend`, or a value outside its domain.
        """
        what = f"{self.name}.backend_from_params"
        keywords = keywords_of(params, self.backend, what)
        try:
            return self.backend(**keywords)  # type: ignore[arg-type]
        except TypeError as error:  # a text where a number is needed, for one
            raise InvalidArgument(f"[{what}] {params!r}: {error}") from error

    @abstractmethod
    def supports_op(self, tensor: Tensor) -> bool:
        """Whether it can run a node of such types, shapes, strides; nothing is allocated or run.

        Sources that are placed already count where they lie.
        """

    @abstractmethod
    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Whether kernels of this device read and write memory of this type directly."""

    def offload_op(self, tensor: Tensor) -> bool:
        """Whether the node is worth moving here though its weights are elsewhere."""
        return False

    def buffer_from_host(self, memory: object, *, max_tensor_size: int | None = None) -> Buffer:
        """Wrap host memory (any buffer object) without copying; the buffer keeps it alive.

        Args:
            memory: bytes, an array, a memory map, ...
            max_tensor_size: bytes of the largest tensor that is to lie there, for devices with a
                limit per buffer.

        Raises:
            Unsupported: this device cannot use host memory directly.
        """
        raise Unsupported(f"[Device.buffer_from_host] {self.name} cannot use host memory directly")

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        """Further memory for weights, laid out as some kernels of this device like it; often none.

        ggml_backend_dev_get_extra_bufts; what the CPU repacks needs none: it keeps shadows.
        """
        return ()

    def register_host(self, memory: object) -> AbstractContextManager[None]:
        """Make transfers from and to host memory faster for as long as a ``with`` block lasts.

        Args:
            memory: bytes, an array, a memory map, ...

        Raises:
            Unsupported: this device has no use for it.
        """
        raise Unsupported(f"[Device.register_host] {self.name} does not register host memory")

    def event(self) -> Event:
        """A new event, not recorded yet."""
        return Event(self)

    @property
    def props(self) -> DeviceProps:
        """All of this at once, with the memory that is free now."""
        free, total = self.memory()
        return DeviceProps(
            self.name, self.description, self.type, free, total, self.caps, self.device_id
        )

    def __repr__(self) -> str:
        return f"<Device {self.name}: {self.description}>"
