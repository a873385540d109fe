"""Which row of the caches of states each sequence's state lies in, so that a state can go back.

A step that verifies drafts writes a state after each of its tokens, each to a row of its own. To go
back is then to choose a row: nothing is copied and nothing is computed again. Here: the rows. Not
here: the position of a state (reached.py), the tensors (caches.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    I32 = npt.NDArray[np.int32]

__all__ = ["Rewind", "StateRows"]


@dataclass(frozen=True, slots=True)
class Rewind:
    """How far states can go back.

    Attributes:
        sequences: the first so many sequences can; the others keep their last state alone.
        tokens: how many tokens; each takes the memory of another state of each sequence.
    """

    sequences: int = 0
    tokens: int = 0

    @property
    def rows(self) -> int:
        """States beyond the last one of each sequence."""
        return self.sequences * self.tokens


class StateRows:
    """The rows of states: one of each sequence, one that stays zero, then those for going back.

    Args:
        sequences: how many there are.
        rewind: how far they can go back.

    Attributes:
        none: the row that stays zero, as the state of a new sequence.
    """

    def __init__(self, sequences: int, rewind: Rewind) -> None:
        self.none = sequences
        self.rewind = rewind
        # The last one is that of no sequence: one that does not run may have its number.
        self._current: I32 = np.arange(sequences + 1, dtype=np.int32)

    @property
    def total(self) -> int:
        """How many rows there are."""
        return self.none + 1 + self.rewind.rows

    def current(self, sequence: int) -> int:
        """The row of a sequence's state."""
        return int(self._current[sequence])

    def choose(self, sequence: int, place: int = 0) -> None:
        """Go on with a state that was written last.

        Args:
            sequence: its number.
            place: of the states that the step wrote, oldest first.
        """
        self._current[sequence] = self._of(np.array([sequence], np.int32), place + 1)[place, 0]

    def read(self, sequences: I32, first: I32) -> I32:
        """The row that each of these sequences reads.

        Args:
            sequences: their numbers.
            first: the first position of each in the step; at 0 it has no state yet.
        """
        found: I32 = np.where(first == 0, np.int32(self.none), self._current[sequences])
        return found

    def written_rows(self, sequences: I32, history: int, place: int = 0) -> I32:
        """The rows that a step writes: for each place, oldest first, that of each sequence.

        Args:
            sequences: their numbers.
            history: how many states of each sequence the step writes.
            place: of the first of these states; the steps before have written those of the others.
        """
        if place + history == 1:
            return sequences
        return self._of(sequences, place + history)[place:].reshape(-1)

    def _of(self, sequences: I32, history: int) -> I32:
        rows: I32 = np.tile(sequences.astype(np.int32), (history, 1))
        goes_back = sequences < self.rewind.sequences
        for place in range(1, history):
            further = self.none + sequences * self.rewind.tokens + place
            rows[place] = np.where(goes_back, further, sequences)
        return rows

    def further(self, sequence: int) -> tuple[int, int]:
        """The first row for going back of a sequence, and how many it has."""
        if sequence >= self.rewind.sequences:
            return self.total, 0
        return self.none + 1 + sequence * self.rewind.tokens, self.rewind.tokens
