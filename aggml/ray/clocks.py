"""Clocks of other nodes, seen from the driver: how far they are ahead, and with what error.

The other clock shows the answered time at some moment between sending the question and receiving
the answer. The estimate takes the middle of this round trip, so it is wrong by at most half of the
round trip. The shortest of several round trips is used. Here: asking over a connection like those
of steps, the estimate. Not here: traces, which use it (traces.py).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.ray.frames import MessageKind
from aggml.ray.link import Role, connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.ray.frames import Frame
    from aggml.ray.link import Link

__all__ = ["Clock", "Reading", "Trip", "ask_time", "reading"]

TRIPS: Final = 32
WAIT: Final = 5.0  # seconds for all of them


class Trip(NamedTuple):
    """A round trip: sent and back by the clock here, answered by the clock there."""

    sent: float
    answered: float
    back: float


class Reading(NamedTuple):
    """At ``at`` by this clock the other one was ``ahead``, with an error of at most ``bound``."""

    at: float
    ahead: float
    bound: float


def reading(trips: Sequence[Trip]) -> Reading:
    """The reading from the shortest of some round trips."""
    best = min(trips, key=lambda x: x.back - x.sent)
    middle = (best.sent + best.back) / 2
    return Reading(middle, best.answered - middle, (best.back - best.sent) / 2)


@dataclass(frozen=True, slots=True)
class Clock:
    """Another node's clock between two readings; it is assumed to drift evenly between them."""

    first: Reading
    last: Reading

    @property
    def bound(self) -> float:
        """The greatest error of `here` in seconds, at the readings and between them."""
        return max(self.first.bound, self.last.bound)

    def here(self, there: float) -> float:
        """Convert a time of the other clock to this node's clock."""
        a, b = self.first, self.last
        begin, end = a.at + a.ahead, b.at + b.ahead  # by the clock there
        share = (there - begin) / (end - begin) if end > begin else 0.0
        return there - (a.ahead + share * (b.ahead - a.ahead))


class _Asking:
    """The peer of a connection that only asks for the time."""

    def __init__(self) -> None:
        self.trips: list[Trip] = []
        self.come = asyncio.Event()

    def on_frame(self, link: Link, frame: Frame) -> None:
        if frame.kind is MessageKind.PONG:
            sent, answered = frame.value
            self.trips.append(Trip(sent, answered, time.perf_counter()))
            self.come.set()

    def on_end(self, link: Link) -> None:
        self.come.set()


async def ask_time(address: tuple[str, int], key: bytes, epoch: int) -> Reading:
    """Ask a stage for its time.

    Raises:
        OSError: the stage does not answer.
    """
    peer = _Asking()
    link = await connect(address, key, peer, Role.CLOCK, epoch)
    try:
        async with asyncio.timeout(WAIT):
            for n in range(TRIPS):
                peer.come.clear()
                link.send(MessageKind.PING, time.perf_counter())
                await peer.come.wait()
                if len(peer.trips) == n:
                    raise ConnectionError("the connection ended")
    finally:
        link.close()
    return reading(peer.trips)
