"""Registry: the devices of this process, by name, type and merit.

Here: built-in devices, registered at first use, and those that a program registers; case of names
is ignored. Not here: what a device is (device.py).
"""

from __future__ import annotations

import threading

from aggml.device import Device, DeviceType
from aggml.errors import InvalidArgument

__all__ = ["best_device", "get_device", "list_devices", "register_device"]

_devices: list[Device] = []
_lock = threading.RLock()
_loaded = False


def _all() -> list[Device]:
    global _loaded
    with _lock:
        if not _loaded:
            _loaded = True
            from aggml.devices.cpu import CPUDevice

            _devices.append(CPUDevice())
        return _devices


def register_device(device: Device) -> None:
    """Add a device; the same object twice is ignored.

    Raises:
        InvalidArgument: another device has this name.
    """
    with _lock:
        devices = _all()
        if any(d is device for d in devices):
            return
        if any(d.name.lower() == device.name.lower() for d in devices):
            raise InvalidArgument(
                f"[register_device] there is a device named {device.name!r} already"
            )
        devices.append(device)


def list_devices() -> list[Device]:
    """All devices, in the order of registration."""
    return list(_all())


def get_device(
    name: str | None = None,
    *,
    type: DeviceType | str | None = None,  # noqa: A002 - get_device(type="gpu") reads well
) -> Device:
    """The first device of that name (case ignored) or type.

    Args:
        name: "CPU", "SIM0", ...
        type: a DeviceType or its value ("cpu", "gpu", ...); with a name, both have to fit.

    Raises:
        InvalidArgument: there is none; the message lists those there are.
    """
    devices = _all()
    if name is None and type is None:
        raise InvalidArgument("[get_device] a name or a type is needed")
    try:
        wanted = DeviceType(type.lower()) if isinstance(type, str) else type
    except ValueError:
        raise InvalidArgument(
            f"[get_device] {type!r} is no device type: {[t.value for t in DeviceType]}"
        ) from None
    for device in devices:
        if (name is None or device.name.lower() == name.lower()) and (
            wanted is None or device.type is wanted
        ):
            return device
    asked = repr(name) if name is not None else f"of type {wanted.value if wanted else None!r}"
    raise InvalidArgument(f"[get_device] no device {asked}; there are {[d.name for d in devices]}")


def best_device() -> Device:
    """The first GPU, else the first integrated GPU, else the CPU (ggml_backend_init_best)."""
    devices = _all()
    for kind in (DeviceType.GPU, DeviceType.IGPU, DeviceType.CPU):
        for device in devices:
            if device.type is kind:
                return device
    return devices[0]
