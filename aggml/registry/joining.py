"""Devices made of devices, by a name such as "CUDA0+CUDA1" or "CUDA*".

Here: which devices a name means, making the device once. Not here: what such a device does
(devices/meta).
"""

from __future__ import annotations

import importlib
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from aggml.backend.props import DeviceType
from aggml.errors import InvalidArgument
from aggml.registry.table import table

if TYPE_CHECKING:
    from aggml.backend.backend import Device

__all__ = ["is_joined", "join_devices"]


def is_joined(name: str) -> bool:
    """Whether a name means several devices."""
    return re.search(r"[+*?\[]", name) is not None


def join_devices(name: str) -> Device:
    """The device made of those that ``name`` means; made and registered if there is none yet.

    Raises:
        InvalidArgument: a part of the name fits no device, or all parts together fit fewer than
            two.
    """
    known = [device for device in table.devices if device.type is not DeviceType.META]
    members: list[Device] = []
    for part in name.split("+"):
        found = [d for d in known if fnmatchcase(d.name.lower(), part.strip().lower())]
        if not found:
            raise InvalidArgument(
                f"[get_device] no device {part!r} of {name!r}; there are {[d.name for d in known]}"
            )
        members += found
    if len(members) < 2:
        raise InvalidArgument(f"[get_device] {name!r} names {members}: name two devices or more")
    with table.lock:
        full = "+".join(member.name for member in members)
        for device in table.devices:
            if device.name == full:
                return device
        module: Any = importlib.import_module("aggml.devices.meta")
        made: Device = module.MetaDevice(members)
        table.add_device(made)
        return made
