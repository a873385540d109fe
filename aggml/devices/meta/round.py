"""A divided graph as a value: rounds of nodes, and the transfers between devices before each round.

Not here: dividing (rounds.py), running (backend.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aggml.devices.meta.memory import Each
    from aggml.tensor import Tensor

__all__ = ["DeviceCopy", "DeviceSum", "Round", "Rounds", "StorageUse"]


class DeviceCopy(NamedTuple):
    """A copy between devices: source device and tensor, target device and tensor."""

    source: int
    what: Tensor
    target: int
    to: Tensor


class DeviceSum(NamedTuple):
    """A sum over all devices: the summand of each, and the tensor in which each gets the sum."""

    sources: Each
    targets: Each


class Round(NamedTuple):
    """One round: transfers, then nodes that no device has to wait for.

    Attributes:
        copies: the copies between devices before the nodes.
        sums: the sums before the nodes, computed by a library of the devices.
        nodes: the nodes of each device, in order.
    """

    copies: list[DeviceCopy]
    sums: list[DeviceSum]
    nodes: list[list[Tensor]]


class StorageUse(NamedTuple):
    """A storage on each device that several rounds use, with its first and last round."""

    each: Each
    first: int
    last: int


class Rounds(NamedTuple):
    """A divided graph.

    Attributes:
        rounds: in order.
        between: the storages that need memory of their own.
    """

    rounds: list[Round]
    between: list[StorageUse]
