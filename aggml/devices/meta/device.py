"""MetaDevice: several devices of one machine as one.

Here: its properties and the ops it supports. Not here: its work (backend.py), finding it by name
(registry/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.backend.backend import Backend, Device
from aggml.backend.props import DeviceCaps, DeviceType
from aggml.devices.meta.backend import MetaBackend
from aggml.devices.meta.memory import MetaBufferType
from aggml.errors import InvalidArgument, InvalidHandle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggml.memory.buffer_type import BufferType
    from aggml.tensor import Tensor

__all__ = ["MetaDevice"]


class MetaDevice(Device):
    """Devices that compute each graph together (tensor parallelism).

    Weights with known GGUF names and caches are divided: each of n devices has 1/n of them. Every
    other tensor is on each device. The same device may be given more than once.

    Args:
        members: two or more devices of the same kind: each computes equal parts.
        name: for the registry; None: the members' names, joined by "+".

    Attributes:
        members: as given.

    Raises:
        InvalidArgument: fewer than two members.
        InvalidHandle: a member is no Device.
    """

    type = DeviceType.META
    caps = DeviceCaps(async_=True, host_buffer=False, buffer_from_host=False, events=True)

    def __init__(self, members: Iterable[Device], name: str | None = None) -> None:
        self.members = tuple(members)
        for member in self.members:
            if not isinstance(member, Device):
                raise InvalidHandle(f"[MetaDevice] {member!r} is no Device")
        if len(self.members) < 2:
            raise InvalidArgument(
                f"[MetaDevice] {len(self.members)} devices are given: give two or more"
            )
        self.name = name or "+".join(member.name for member in self.members)
        self.description = f"{len(self.members)} devices that compute together"
        self._type = MetaBufferType(self, [member.buffer_type for member in self.members])

    @property
    def buffer_type(self) -> BufferType:
        """Memory of all of them."""
        return self._type

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of all of them together, each device counted once."""
        each = [member.memory() for member in dict.fromkeys(self.members)]
        return sum(free for free, _ in each), sum(total for _, total in each)

    def backend(
        self,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        max_queued: int | None = None,
    ) -> MetaBackend:
        """A new stream of work on all of them.

        Args:
            n_threads: as for each of them.
            use_ref: likewise.
            max_queued: see `Backend.ready`.
        """
        members: list[Backend] = []
        try:
            for member in self.members:
                members += [member.backend(n_threads=n_threads, use_ref=use_ref)]
        except BaseException:
            for opened in members:
                opened.close()
            raise
        return MetaBackend(self, members, max_queued=max_queued)

    def supports_op(self, tensor: Tensor) -> bool:
        """Whether each member supports the node."""
        return all(member.supports_op(tensor) for member in dict.fromkeys(self.members))

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """True for its own memory only."""
        return buffer_type is self._type
