"""Family: the object that a plug-in gives to the registry: devices, features, extra functions.

Here: the interface and its version. Not here: how families are found and kept (registry/).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from aggml.errors import InvalidArgument, InvalidHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.backend.backend import Device

__all__ = ["API_VERSION", "Family"]

#: Version of the interfaces that a plug-in implements: Family, Device, BufferType, Buffer, Backend
#: and Stream. It grows whenever a plug-in written for the previous version would no longer work.
API_VERSION: Final = 1


class Family(ABC):
    """All devices that one piece of software serves: "CPU", "CUDA" (ggml_backend_reg).

    Attributes:
        name: unique among families, case ignored.
        api_version: the API_VERSION that it was written for; any other version is refused. Write
            the number itself: ``aggml.API_VERSION`` would always agree.
        description: one line for `python -m aggml devices`.
    """

    name: str = ""
    api_version: int
    description: str = ""

    @property
    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """Its devices, the same objects each time; there may be none."""

    def device(self, index: int) -> Device:
        """The device of that number.

        Raises:
            InvalidArgument: there is no device of that number.
        """
        devices = self.devices
        if not isinstance(index, int):
            raise InvalidHandle(f"[Family.device] index={index!r} is no integer")
        if not 0 <= index < len(devices):
            raise InvalidArgument(
                f"[Family.device] {self.name} has no device {index}, it has {len(devices)}"
            )
        return devices[index]

    def features(self) -> Mapping[str, str]:
        """Features that it was built with and can use on this machine, by name; flags are "1"."""
        return {}

    def extension(self, name: str) -> Callable[..., Any] | None:
        """A function beyond the interfaces, by name (ggml_backend_reg_get_proc_address).

        None where there is none of that name.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most families hold nothing
        """Release everything that the family holds; called once after `unload` has removed it.

        By then none of its backends, buffers and events is left.
        """

    def __repr__(self) -> str:
        return f"<Family {self.name}, {len(self.devices)} devices>"
