"""Urgency: the priority and the deadline of an item, which travel with it from stage to stage.

A source gives ``Urgent(item, priority=5, deadline=2.0)``. While a stage works on the item, its
urgency is that of the present context, where models find it: `generate` and `embed` take it if
their caller names none.
"""

from __future__ import annotations

import math
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from aggml.errors import InvalidArgument

__all__ = ["NOT_URGENT", "Urgency", "Urgent", "current_urgency", "present"]

T = TypeVar("T")

HIGHEST: Final = 1 << 31  # as models have it


class Urgency(NamedTuple):
    """How urgent something is.

    Attributes:
        priority: greater ones come first.
        until: when it must be done, as `time.monotonic`; None: no matter when.
    """

    priority: int = 0
    until: float | None = None

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.until is not None and time.monotonic() >= self.until


@dataclass(frozen=True, slots=True)
class Urgent(Generic[T]):
    """An item with its urgency. A source may give it, and so may a stage, which changes it.

    Attributes:
        item: what the next stage gets.
        priority: greater ones come first, where the order need not be kept.
        deadline: seconds from the moment at which the pipeline takes it; None: no matter when.
    """

    item: T
    priority: int = 0
    deadline: float | None = None

    def __post_init__(self) -> None:
        given: object = self.priority
        if not isinstance(given, int) or isinstance(given, bool) or abs(given) > HIGHEST:
            raise InvalidArgument(
                f"[Urgent] priority is {given!r}, expected a whole number within {-HIGHEST} and "
                f"{HIGHEST}"
            )
        limit: object = self.deadline
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, (int, float))
            or not math.isfinite(limit) or limit < 0
        ):  # fmt: skip
            raise InvalidArgument(
                f"[Urgent] deadline is {limit!r}, expected seconds from now, not negative, or None"
            )

    @property
    def urgency(self) -> Urgency:
        """The same, with the deadline as a point in time."""
        until = None if self.deadline is None else time.monotonic() + self.deadline
        return Urgency(self.priority, until)


NOT_URGENT: Final = Urgency()
#: The urgency of the item on which the present task works.
present: ContextVar[Urgency] = ContextVar("aggml.pipeline.urgency", default=NOT_URGENT)


def current_urgency() -> Urgency:
    """The urgency of the item on which a stage works now; outside of a stage, none."""
    return present.get()
