"""A divided graph as a value: rounds of nodes, and what passes between the devices before each.

Not here: dividing (rounds.py), running (backend.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aggml.devices.meta.memory import Each
    from aggml.tensor import Tensor

__all__ = ["Needed", "Round", "Rounds", "Sent", "Summed"]


class Sent(NamedTuple):
    """A tensor of one device that goes to another: the device, the tensor, and so of its target."""

    source: int
    what: Tensor
    target: int
    to: Tensor


class Summed(NamedTuple):
    """Summands of all devices, and where each of them gets the sum."""

    sources: Each
    targets: Each


class Round(NamedTuple):
    """What happens at a time.

    Attributes:
        sent: before the nodes, between devices.
        summed: before the nodes, by a library of the devices.
        nodes: of each device, in order.
    """

    sent: list[Sent]
    summed: list[Summed]
    nodes: list[list[Tensor]]


class Needed(NamedTuple):
    """A storage that several rounds touch, of each device, from the first round to the last."""

    each: Each
    first: int
    last: int


class Rounds(NamedTuple):
    """A graph divided.

    Attributes:
        rounds: in order.
        between: the storages that need memory of their own.
    """

    rounds: list[Round]
    between: list[Needed]
