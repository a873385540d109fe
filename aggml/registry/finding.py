"""Looking up families and devices by name, index or type, or the best; adding those of a program.

Here: the public functions. Built-in families and entry points are loaded at the first use that
needs them. Not here: loading (loading.py), the table (table.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.backend.props import DeviceType
from aggml.errors import InvalidArgument, InvalidHandle
from aggml.registry.joining import is_joined, join_devices
from aggml.registry.loading import discover
from aggml.registry.table import table

if TYPE_CHECKING:
    from aggml.backend.backend import Device
    from aggml.backend.family import Family

__all__ = [
    "best_device",
    "get_device",
    "get_family",
    "list_devices",
    "list_families",
    "register_device",
    "register_family",
    "unregister_device",
]

_ALL = 3  # stages of `discover`


def register_family(family: Family) -> bool:
    """Add a family and all its devices (ggml_backend_register); the same object twice is ignored.

    Returns:
        Whether it was added.

    Raises:
        InvalidHandle: it is no Family.
        BackendLoadError: it was written for another `API_VERSION`.
        InvalidArgument: its name, or that of a device, is taken.
    """
    discover(1)
    return table.add_family(family)


def register_device(device: Device) -> bool:
    """Add a device (ggml_backend_device_register); the same object twice is ignored.

    Returns:
        Whether it was added.

    Raises:
        InvalidHandle: it is no Device.
        InvalidArgument: another device has this name.
    """
    discover(1)
    return table.add_device(device)


def unregister_device(device: Device) -> bool:
    """Remove a device that `register_device` added.

    Returns:
        False if it is not registered.

    Raises:
        InvalidArgument: it came with its family; see `unload`.
        InvalidState: it has open backends, buffers that are not closed, or events.
    """
    with table.lock:
        for entry in table.entries:
            if any(known is device for known in entry.devices):
                if entry.family is not None:
                    raise InvalidArgument(
                        f"[unregister_device] {device!r} belongs to {entry.family!r}: unload that"
                    )
                table.remove(entry, "unregister_device")
                return True
    return False


def list_families() -> list[Family]:
    """All families: built-in ones (the CPU last), entry points, then in order of registration."""
    discover(_ALL)
    return table.families


def list_devices() -> list[Device]:
    """All devices, in the order of their families."""
    discover(_ALL)
    return table.devices


def get_family(name: str | int) -> Family:
    """The family of that name (case ignored), or of that place in `list_families`.

    Raises:
        InvalidArgument: there is none; the message lists those there are.
    """
    if isinstance(name, int):
        families = list_families()
        if not 0 <= name < len(families):
            raise InvalidArgument(f"[get_family] there is no family {name} of {families}")
        return families[name]
    if not isinstance(name, str):
        raise InvalidHandle(f"[get_family] {name!r} is neither a name nor an index")
    for stage in range(1, _ALL + 1):
        discover(stage)
        for family in table.families:
            if family.name.lower() == name.lower():
                return family
    raise InvalidArgument(
        f"[get_family] no family {name!r}; there are {[f.name for f in table.families]}"
    )


def _device_type(type: DeviceType | str, what: str) -> DeviceType:  # noqa: A002 - as get_device's
    try:
        return DeviceType(type.lower()) if isinstance(type, str) else DeviceType(type)
    except ValueError:
        raise InvalidArgument(
            f"[{what}] {type!r} is none of the device types {[t.value for t in DeviceType]}"
        ) from None


def get_device(
    name: str | int | None = None,
    *,
    type: DeviceType | str | None = None,  # noqa: A002 - get_device(type="gpu") reads well
) -> Device:
    """The first device of that name (case ignored) or type.

    The search loads no more families than it needs: a program that uses only the CPU loads no
    driver (ggml_backend_dev_by_name, ggml_backend_dev_by_type).

    Args:
        name: "CPU", "SIM0", ...; or the index in `list_devices`. Names joined by "+", or a pattern
            that matches several ("CUDA0+CUDA1", "CUDA*"), give a device made of these
            (devices/meta). It is made and registered at the first request.
        type: a DeviceType or its value ("cpu", "gpu", ...); with a name, both have to fit.

    Raises:
        InvalidArgument: there is none; the message lists those there are.
    """
    if name is None and type is None:
        raise InvalidArgument("[get_device] a name or a type is needed")
    wanted = None if type is None else _device_type(type, "get_device")
    if isinstance(name, int):
        devices = list_devices()
        if not 0 <= name < len(devices):
            raise InvalidArgument(f"[get_device] there is no device {name} of {devices}")
        name = devices[name].name
    if name is not None and not isinstance(name, str):
        raise InvalidHandle(f"[get_device] {name!r} is neither a name nor an index")
    for stage in range(1 if name is not None else _ALL, _ALL + 1):
        discover(stage)
        for device in table.devices:
            if (name is None or device.name.lower() == name.lower()) and (
                wanted is None or device.type is wanted
            ):
                return device
    if name is not None and wanted in (None, DeviceType.META) and is_joined(name):
        return join_devices(name)
    asked = "" if name is None else f" {name!r}"
    asked += "" if wanted is None else f" of type {wanted.value!r}"
    known = [device.name for device in table.devices]
    raise InvalidArgument(f"[get_device] no device{asked}; there are {known}")


def best_device() -> Device:
    """The first GPU, else the first integrated GPU, else the CPU (ggml_backend_init_best).

    Raises:
        InvalidArgument: there is none of them.
    """
    devices = list_devices()
    for device_type in (DeviceType.GPU, DeviceType.IGPU, DeviceType.CPU):
        for device in devices:
            if device.type is device_type:
                return device
    raise InvalidArgument(f"[best_device] there is neither a GPU nor a CPU in {devices}")
