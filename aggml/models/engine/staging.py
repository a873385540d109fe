"""Prompts side by side: tokens of several prompts in one step, as if they were one sequence.

While a prompt is processed, its keys and values are written twice: into its slot, and into a range
of rows that all prompts share. There the prompts lie one after the other, and a mask lets each see
only itself. So the graph depends on the number of tokens alone, and only its end is padded. Not
here: which prompts take part in a step (steps.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aggml.models.kv.rows import EVERYTHING, LONG_STEP, SHORT_STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aggml.models.kv.room import Room

__all__ = ["Chunk", "Piece", "mask", "place"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some tokens of one prompt.

    Attributes:
        ids: the token ids.
        first: the position of the first token.
        slot: the sequence's slot in the cache.
        at: the shared row of the sequence's position 0; None: its keys are only in its slot.
        whole: ranges of positions, the first and the one after the last, that see each other also
            where they come later. The piece has all of each range from its first position on.
    """

    ids: Sequence[int]
    first: int
    slot: int
    at: int | None
    whole: tuple[tuple[int, int], ...] = ()

    @property
    def begin(self) -> int:
        """The row of position 0, counted from the rows that attention reads."""
        return self.at or 0

    @property
    def end(self) -> int:
        """The row after the last token's, counted in the same way."""
        return self.begin + self.first + len(self.ids)


def place(length: int, held: Sequence[tuple[int, int]], rows: int) -> int | None:
    """The lowest row at which ``length`` positions fit; None if there is no room.

    Args:
        length: positions of a whole prompt.
        held: for each prompt that is there, its first row and the row after its last.
        rows: how many shared rows there are.
    """
    at = 0
    for first, end in [*sorted(held), (rows, rows)]:
        at = -(-at // SHORT_STEP) * SHORT_STEP
        if at % LONG_STEP and at % LONG_STEP + length > LONG_STEP:
            at = -(-at // LONG_STEP) * LONG_STEP
        if at + length <= first:
            return at
        at = max(at, end)
    return None


@dataclass(frozen=True, slots=True)
class Chunk:
    """All pieces of a step in arrays of (1, tokens); padding goes to a row that nobody reads."""

    ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    staged: npt.NDArray[np.int32]

    @classmethod
    def of(
        cls, pieces: Sequence[Piece], tokens: int, *, ctx: int, staging: int, rows: int
    ) -> Chunk:
        """Lay the pieces out one after the other.

        Args:
            pieces: at least one; together they have at most ``tokens`` tokens.
            tokens: how many tokens there are with padding.
            ctx: rows of a slot.
            staging: the first shared row.
            rows: how many shared rows there are; the last one is for padding.
        """
        nowhere = staging + rows - 1
        ids, positions = np.zeros((2, 1, tokens), np.int32)
        to, staged = np.full((2, 1, tokens), nowhere, np.int32)
        begin = 0
        for piece in pieces:
            end = begin + len(piece.ids)
            at = np.arange(piece.first, piece.first + len(piece.ids), dtype=np.int32)
            ids[0, begin:end] = piece.ids
            positions[0, begin:end] = at
            to[0, begin:end] = piece.slot * ctx + at
            staged[0, begin:end] = staging + piece.begin + at
            begin = end
        return cls(ids, positions, to, staged)


def mask(
    pieces: Sequence[Piece], tokens: int, kv: int, room: Room = EVERYTHING
) -> npt.NDArray[np.float16]:
    """The mask of attention, (1, 1, tokens, kv): 0 where a token sees a key, else -inf.

    A token sees the keys of its own prompt up to itself, as far as ``room`` lets it. In a range of
    `Piece.whole` it sees the later ones as well, unless the room is causal.
    """
    found = np.full((1, 1, tokens, kv), -np.inf, np.float16)
    begin = 0
    for piece in pieces:
        n = len(piece.ids)
        # Row i sees first + i + 1 keys: each row is a window into zeros followed by -inf.
        line = np.zeros(piece.first + 2 * n, np.float16)
        line[piece.first + n :] = -np.inf
        if room.window is not None and not room.chunked:
            line[: max(piece.first + n - room.window, 0)] = -np.inf
        seen = np.lib.stride_tricks.sliding_window_view(line, piece.first + n)[n - 1 :: -1]
        own = found[0, 0, begin : begin + n, piece.begin : piece.end]
        own[:] = seen
        if room.chunked:
            at = np.arange(piece.first, piece.first + n, dtype=np.int32)
            own[np.arange(piece.first + n) < room.first_seen(at)[:, None]] = -np.inf
        for first, end in () if room.causal else piece.whole:
            first, row = max(first, piece.first), begin + max(first - piece.first, 0)
            square = found[0, 0, row : row + end - first, piece.begin + first : piece.begin + end]
            square[np.triu(np.ones(square.shape, bool), 1)] = 0
        begin += n
    found[0, 0, begin:, 0] = 0  # padding sees one key: a row of -inf has no soft_max
    return found
