"""What a layer keeps of a sequence: which positions have a row, and how wide rows are.

Here: values. Not here: which row is which position (rows.py).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cached", "Room"]


@dataclass(frozen=True, slots=True)
class Room:
    """Rows of a cache that each sequence has: one for each position, or a ring of the last ones.

    Attributes:
        window: a token sees so many positions, its own included; None: all before it.
    """

    window: int | None = None


@dataclass(frozen=True, slots=True)
class Cached:
    """A cache of one layer: rows of ``width`` elements.

    Attributes:
        width: elements of a row, of all heads.
        head: elements that are read together; a block of the cache's type must not cross them.
        room: which positions have a row.
    """

    width: int
    head: int
    room: Room
