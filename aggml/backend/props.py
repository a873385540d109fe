"""Properties of a device as plain values: DeviceType, DeviceCaps, DeviceProps."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["DeviceCaps", "DeviceProps", "DeviceType"]


class DeviceType(Enum):
    """The type of a device, by which programs look for one (ggml_backend_dev_type).

    GPU has memory of its own, IGPU shares that of the host; ACCEL helps the CPU in host memory;
    META stands for several devices.
    """

    CPU = "cpu"
    GPU = "gpu"
    IGPU = "igpu"
    ACCEL = "accel"
    META = "meta"


class DeviceCaps(NamedTuple):
    """Abilities of a device beyond the minimum (ggml_backend_dev_caps).

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
    """Properties of a device (ggml_backend_dev_props). Memory is in bytes; 0 of 0: unknown."""

    name: str
    description: str
    type: DeviceType
    memory_free: int
    memory_total: int
    caps: DeviceCaps
    device_id: str | None = None
