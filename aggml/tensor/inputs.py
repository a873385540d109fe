"""Leafs flagged INPUT: whether one has a value, and what a run does to it.

A leaf flagged INPUT is EMPTY until it is first written. A value that a run brings belongs to that
run alone: the leaf is then BROUGHT, and a later run has to bring it again or say ``reuse``.
Otherwise one client of a service could get a result computed from the data of another. A value that
`Backend.set`, a copy or another graph wrote is KEPT until the next write. Not here: which leafs a
graph has (backend/inputs.py).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from aggml.errors import NotAllocated
from aggml.tensor.layout import describe
from aggml.tensor.placement import BROUGHT, EMPTY, KEPT, fill

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from aggml.tensor.placement import Placement
    from aggml.tensor.tensor import Tensor

__all__ = ["Due", "Marks", "Noting", "check_due"]

#: INPUT leafs that a run does not bring, each with whether it may use what the last run brought.
Due = tuple[tuple["Tensor", bool], ...]


def check_due(
    due: Due,
    what: str,
    floating: Container[Tensor] = (),
    states: Mapping[Placement, int] = MappingProxyType({}),
) -> None:
    """Refuse a run that would read a leaf that was never written, or only by an earlier run.

    Args:
        due: the leafs to check; call this each time, because the contents of leafs change.
        what: for messages.
        floating: leafs without memory of their own that an earlier run brought.
        states: what earlier calls of an open batch leave in places.

    Raises:
        NotAllocated: there is such a leaf; the text names it.
    """
    for leaf, again in due:
        place = leaf.root.placement
        state = EMPTY if place is None else states.get(place, place.filled)
        if state == KEPT or (again and state == BROUGHT):
            continue
        earlier = (
            f"[{what}] {describe(leaf)} was an input of an earlier run and is missing in this one"
        )
        if state == BROUGHT:
            raise NotAllocated(f"{earlier}: give it again, or say reuse=[{leaf.name!r}]")
        if leaf in floating:
            raise NotAllocated(
                f"{earlier}: give it again, or place it with backend.alloc, so that it has memory "
                "to be reused"
            )
        raise NotAllocated(
            f"[{what}] input {describe(leaf)} was never written: give it to run, or set it before"
        )


class Noting(Protocol):
    """The part of a batch that this file uses; the whole is in stream/batch.py."""

    def mark(self, place: Placement, state: int) -> None:
        """Note what a call leaves in a place, to be applied when the batch is enqueued."""
        ...


class Marks:
    """The effects of a run on INPUT leafs: it brings some, and its nodes write others.

    Args:
        brought: leafs that the run brings.
        written: leafs that its nodes write.

    Attributes:
        brought: their places, of those that have memory.
        written: likewise.
    """

    __slots__ = ("brought", "written")

    def __init__(self, brought: Iterable[Tensor], written: Iterable[Tensor]) -> None:
        self.brought: list[Placement] = _places(brought)
        self.written: list[Placement] = _places(written)

    def note(self, batch: Noting | None = None) -> None:
        """Apply the effects, after the run was enqueued; if it is in a batch, with the batch."""
        mark = fill if batch is None else batch.mark
        for place in self.brought:
            mark(place, BROUGHT)
        for place in self.written:
            mark(place, KEPT)


def _places(tensors: Iterable[Tensor]) -> list[Placement]:
    return [tensor.placement for tensor in tensors if tensor.placement is not None]
