"""What a layer keeps of a sequence: rows for its positions, one recurrent state, a memory.

Here: descriptions. Not here: which row is which position (rows.py), the tensors (caches.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Cached", "CrossMask", "CrossMemory", "Kept", "Room", "State"]


@dataclass(frozen=True, slots=True)
class Room:
    """Rows of a cache that each sequence has: one for each position, or a ring of the last ones.

    Attributes:
        window: how many positions a token sees, its own included; None: all before it.
        chunked: positions come in chunks of ``window``, and a token sees those of its own chunk.
        causal: no token sees a later one, also not within a picture.
    """

    window: int | None = None
    chunked: bool = False
    causal: bool = False

    def first_seen(self, positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The first position that a token at each of these positions sees; it may be below 0."""
        if self.window is None:
            return np.zeros_like(positions)
        found: npt.NDArray[np.int32] = (
            positions - positions % self.window
            if self.chunked
            else positions - np.int32(self.window - 1)
        )
        return found


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


@dataclass(frozen=True, slots=True)
class State:
    """What a recurrent layer keeps: one row of ``width`` elements, whatever the sequence's length.

    It is f32, since every token changes all of it. It describes the sequence up to the last token
    that was processed; to go back to an earlier token, the states after both must be kept.
    """

    width: int


@dataclass(frozen=True, slots=True)
class CrossMemory:
    """What a layer keeps of an input other than text, such as audio; another graph writes it.

    Attributes:
        width: elements of a row, of all heads.
        head: elements that are read together, as in `Cached`.
        rows: the most rows of a sequence; its `CrossMask` says which of them it has.
    """

    width: int
    head: int
    rows: int


@dataclass(frozen=True, slots=True)
class CrossMask:
    """Which rows of a `CrossMemory` each sequence has, as a mask: 0, or -inf where there is none.

    It is f16. The graph that writes the memory writes it, too, and a copy of a sequence has it.

    Attributes:
        rows: those of the memory.
    """

    rows: int


#: What a layer keeps of a sequence under some name.
Kept: TypeAlias = Cached | CrossMask | CrossMemory | State
