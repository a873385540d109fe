"""MetaDevice: several devices of one machine as one.

Here: its properties and the ops it supports. Not here: its work (backend.py), finding it by name
(registry/).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from aggml.backend.backend import Backend, Device
from aggml.backend.props import DeviceCaps, DeviceType
from aggml.devices.meta.backend import MetaBackend
from aggml.devices.meta.memory import MetaBufferType
from aggml.devices.meta.parts import division_of
from aggml.errors import InvalidArgument, InvalidHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aggml.devices.meta.split import SplitState
    from aggml.memory.buffer_type import BufferType
    from aggml.tensor import Tensor

__all__ = ["MetaDevice"]


class MetaDevice(Device):
    """Devices that compute each graph together (tensor parallelism).

    Weights with known GGUF names and caches are split: each of n devices has 1/n of them, or the
    share that is given. Every other tensor is on each device. The same device may be given more
    than once.

    Args:
        members: two or more devices.
        name: for the registry; None: the members' names, joined by "+".
        shares: the part of each device in a split tensor, such as ``[3, 1]`` (only the ratios
            count); None: equal parts. Parts are whole blocks, so they may differ a little from
            their shares. Attention is fast if the heads of keys can be divided in these ratios.
        split: returns how a leaf is split, for leafs whose names say nothing or not enough, such as
            a fused QKV matrix with a segment for each of Q, K and V; if it returns None, the name
            decides. Called when the leaf gets its memory (ggml_backend_meta_get_split_state_t).

    Attributes:
        members: as given.

    Raises:
        InvalidArgument: fewer than two members; shares that are not one positive number for each.
        InvalidHandle: a member is no Device.
    """

    type = DeviceType.META
    caps: DeviceCaps = DeviceCaps(
        async_=True, host_buffer=False, buffer_from_host=False, events=True
    )

    def __init__(
        self,
        members: Iterable[Device],
        name: str | None = None,
        *,
        shares: Iterable[float] | None = None,
        split: Callable[[Tensor], SplitState | None] | None = None,
    ) -> None:
        self.members: tuple[Device, ...] = tuple(members)
        for member in self.members:
            if not isinstance(member, Device):
                raise InvalidHandle(f"[MetaDevice] {member!r} is no Device")
        if len(self.members) < 2:
            raise InvalidArgument(
                f"[MetaDevice] {len(self.members)} devices are given: give two or more"
            )
        self.name: str = name or "+".join(member.name for member in self.members)
        self.description: str = f"{len(self.members)} devices that compute together"
        self._type = MetaBufferType(
            self,
            [member.buffer_type for member in self.members],
            _fractions(len(self.members), shares),
            split,
        )

    @property
    def buffer_type(self) -> BufferType:
        """Memory of all of them."""
        return self._type

    def split_state(self, tensor: Tensor) -> SplitState:
        """How a tensor lies on the devices.

        Args:
            tensor: placed in this device's memory; a node that can be read after a run, once its
                graph was compiled; or a view of such a tensor.

        Raises:
            NotAllocated: it has no memory here, or was not computed yet.
            Unsupported: a view that is not split where its bytes are.
        """
        return division_of(tensor).state

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


def _fractions(n: int, shares: Iterable[float] | None) -> Sequence[Fraction]:
    """Shares of ``n`` devices that together are 1."""
    if shares is None:
        return [Fraction(1, n)] * n
    given: list[Any] = list(shares)
    fine = [isinstance(x, int | float) and math.isfinite(x) and x > 0 for x in given]
    if len(given) != n or not all(fine):
        raise InvalidArgument(
            f"[MetaDevice] shares={given!r}: expected {n} positive numbers, one for each device"
        )
    # 0.75 and 0.25, or 2 / 3 and 1 / 3, as a person means them: borders then fall between heads
    each = [Fraction(x).limit_denominator(1000) or Fraction(x) for x in given]
    return [x / sum(each) for x in each]
