"""The checked arguments of a scheduler: backends, types of their buffers, limits.

Not here: using them (planner.py, running/).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aggml.backend import Backend
from aggml.backend.props import DeviceType
from aggml.errors import (
    CapacityExceeded,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    Unsupported,
)
from aggml.memory.buffer_type import BufferType
from aggml.tensor import checking

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COPIES", "SchedulerArguments"]

MAX_BACKENDS: Final = 16
COPIES: Final = 4  # ggml's depth of a pipeline


@dataclass(frozen=True, slots=True, eq=False)
class SchedulerArguments:
    """The arguments of a scheduler, checked.

    Attributes:
        backends: in order of priority.
        types: of their compute buffers.
        n_copies: how many submissions may have memory apart (see layout/layout.py).
        max_in_flight: how many submissions may be in flight; None: any number.
    """

    backends: tuple[Backend, ...]
    types: tuple[BufferType, ...]
    n_copies: int
    max_in_flight: int | None

    @classmethod
    def check(
        cls,
        backends: Sequence[Backend],
        types: Sequence[BufferType] | None,
        parallel: bool | int,
        max_in_flight: int | None,
    ) -> SchedulerArguments:
        """Check the arguments of `Scheduler`.

        Raises:
            As `Scheduler`.
        """
        found: list[Backend] = _sequence(backends, "backends", Backend)
        chosen: list[BufferType] = (
            [b.buffer_type for b in found]
            if types is None
            else _sequence(types, "types", BufferType)
        )
        _check(found, chosen)
        if max_in_flight is not None:
            max_in_flight = checking.integer(max_in_flight, "max_in_flight", "Scheduler")
            if max_in_flight < 1:
                raise InvalidArgument(f"[Scheduler] max_in_flight={max_in_flight} is not positive")
        copies = COPIES if parallel is True else int(parallel) or 1
        if copies < 1:
            raise InvalidArgument(f"[Scheduler] parallel={parallel} is negative")
        return cls(tuple(found), tuple(chosen), copies, max_in_flight)

    def index(self, backend: object, what: str) -> int:
        """The index of one of the backends.

        Raises:
            InvalidHandle, InvalidArgument: it is none of them.
        """
        for i, mine in enumerate(self.backends):
            if mine is backend:
                return i
        if not isinstance(backend, Backend):
            raise InvalidHandle(f"[{what}] {backend!r} is no Backend")
        raise InvalidArgument(f"[{what}] {backend!r} is not one of this scheduler")

    def backend(self, i: int) -> Backend:
        """A backend by its index.

        Raises:
            InvalidArgument: there is none.
        """
        i = checking.integer(i, "i", "Scheduler.backend")
        if not 0 <= i < len(self.backends):
            raise InvalidArgument(
                f"[Scheduler.backend] {i}: there are {len(self.backends)} backends"
            )
        return self.backends[i]


def _sequence(given: object, what: str, wanted: type[Any]) -> list[Any]:
    if not isinstance(given, Iterable):
        raise InvalidHandle(f"[Scheduler] {what}={given!r} is no list")
    found = list(given)
    for one in found:
        if not isinstance(one, wanted):
            raise InvalidHandle(f"[Scheduler] {one!r} in {what} is no {wanted.__name__}")
    return found


def _check(backends: list[Backend], types: list[BufferType]) -> None:
    if not backends:
        raise InvalidArgument("[Scheduler] backends is empty: give one or more")
    if len(backends) > MAX_BACKENDS:
        raise CapacityExceeded(f"[Scheduler] {len(backends)} backends, {MAX_BACKENDS} is the most")
    if len(types) != len(backends):
        raise InvalidArgument(
            f"[Scheduler] {len(types)} buffer types for {len(backends)} backends: give one for each"
        )
    if len({id(b) for b in backends}) != len(backends):
        raise InvalidArgument("[Scheduler] backends has the same backend twice")
    for backend, buffer_type in zip(backends, types, strict=True):
        if not backend.device.supports_buffer_type(buffer_type):
            raise Unsupported(f"[Scheduler] {backend!r} does not reach {buffer_type!r}")
        if backend.closed:
            raise InvalidState(f"[Scheduler] {backend!r} is closed")
    if backends[-1].device.type is not DeviceType.CPU:
        raise InvalidArgument(
            f"[Scheduler] the last backend must be a CPU, which computes nodes that no other can; "
            f"given was {backends[-1]!r}"
        )
