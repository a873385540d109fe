"""The table of the registry: families in order, their devices, devices without a family.

Here: adding and removing, with all checks; one lock. Not here: where families come from
(loading.py), looking things up (finding.py).
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aggml.backend.backend import Device
from aggml.backend.family import API_VERSION, Family
from aggml.errors import BackendLoadError, InvalidArgument, InvalidHandle, InvalidState
from aggml.process.alive import list_alive
from aggml.process.locks import new_rlock

if TYPE_CHECKING:
    import threading

    from aggml.registry.report import LoadResult

__all__ = ["BUILT_IN", "ENTRY_POINT", "EXPLICIT", "Entry", "RegistryTable", "table"]

#: The rank of an entry decides its place in enumerations; equal ranks are in order of registration.
#: Built-in families have their index in candidates.BUILT_IN_NAMES as rank.
BUILT_IN, ENTRY_POINT, EXPLICIT = 0, 100, 101


@dataclass
class Entry:
    """A family with its devices, or one device without."""

    rank: int
    family: Family | None
    devices: list[Device] = field(default_factory=list)


class RegistryTable:
    """The registered families and devices. All methods may be called from any thread."""

    def __init__(self) -> None:
        # Reentrant: a plug-in may look for devices while it is loaded.
        self.lock: threading.RLock = new_rlock()
        self.entries: list[Entry] = []
        self.sources: dict[str, Family] = {}  # the family that a file or module provided
        self.results: dict[str, LoadResult] = {}  # the latest of each candidate

    @property
    def families(self) -> list[Family]:
        """In order."""
        with self.lock:
            return [entry.family for entry in self.entries if entry.family is not None]

    @property
    def devices(self) -> list[Device]:
        """In the order of their families, then by index."""
        with self.lock:
            return [device for entry in self.entries for device in entry.devices]

    def add_family(self, family: Family, rank: int = EXPLICIT) -> bool:
        """Add a family with all its devices, or nothing.

        Returns:
            False if this very object is registered already.

        Raises:
            InvalidHandle: it is no Family, or one of its devices no Device.
            BackendLoadError: it was written for another version of the interfaces.
            InvalidArgument: another family, or a device of another, has the name.
        """
        if not isinstance(family, Family):
            raise InvalidHandle(f"[register_family] {family!r} is no Family")
        name = getattr(family, "name", None)
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"[register_family] {type(family).__name__} has no name")
        version = getattr(family, "api_version", None)
        if version != API_VERSION:
            raise BackendLoadError(
                f"[register_family] {name} was written for api_version {version}, "
                f"but this aggml has {API_VERSION}"
            )
        devices = list(family.devices)
        with self.lock:
            if any(known is family for known in self.families):
                return False
            if any(known.name.lower() == name.lower() for known in self.families):
                raise InvalidArgument(f"[register_family] there is a family named {name!r} already")
            taken = {device.name.lower() for device in self.devices}
            for device in devices:
                self._check_device(device, taken, "register_family")
                taken.add(device.name.lower())
            for device in devices:
                device.family = family
            self._insert(Entry(rank, family, devices))
            return True

    def add_device(self, device: Device) -> bool:
        """Add one device; its family, if it has one, need not be registered.

        Returns:
            False if this very object is registered already.

        Raises:
            InvalidHandle: it is no Device.
            InvalidArgument: another one has its name.
        """
        with self.lock:
            if any(known is device for known in self.devices):
                return False
            taken = {known.name.lower() for known in self.devices}
            self._check_device(device, taken, "register_device")
            self._insert(Entry(EXPLICIT, None, [device]))
            return True

    def remove(self, entry: Entry, what: str) -> None:
        """Remove an entry, unless one of its objects is in use.

        Raises:
            InvalidState: there are open backends, buffers or events of its devices.
        """
        with self.lock:
            if any(list_alive(device) for device in entry.devices):
                gc.collect()  # some users may be garbage in a cycle
            used = [thing for device in entry.devices for thing in list_alive(device)]
            if used:
                some = ", ".join(map(repr, used[:4])) + (", ..." if len(used) > 4 else "")
                name = entry.family.name if entry.family else entry.devices[0].name
                raise InvalidState(f"[{what}] {name} is in use: {some}")
            self.entries.remove(entry)
            for device in entry.devices:
                device.family = None
            for key in [key for key, family in self.sources.items() if family is entry.family]:
                del self.sources[key]

    @staticmethod
    def _check_device(device: object, taken: set[str], what: str) -> None:
        if not isinstance(device, Device):
            raise InvalidHandle(f"[{what}] {device!r} is no Device")
        if not isinstance(getattr(device, "name", None), str) or not device.name:
            raise InvalidArgument(f"[{what}] {type(device).__name__} has no name")
        if device.name.lower() in taken:
            raise InvalidArgument(f"[{what}] there is a device named {device.name!r} already")

    def _insert(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.entries.sort(key=lambda e: e.rank)  # stable: by registration within a rank


table: RegistryTable = RegistryTable()
