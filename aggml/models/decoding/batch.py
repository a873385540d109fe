"""What one step takes in, and what of that its graph depends on.

Here: plain values and arrays, also of what it gives. Not here: the graph (step.py), who runs it
(decoder.py), which rows of a cache a token sees (../cache/rows.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from aggml import InvalidArgument
from aggml.models.cache.rows import mask_of, ring_mask
from aggml.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.models.cache.room import Room

__all__ = [
    "CHAINED",
    "F16",
    "F32",
    "I32",
    "Batch",
    "Best",
    "Group",
    "Part",
    "Shape",
    "check",
    "joined",
    "one_of_each",
    "piece",
]

CHAINED: Final = -1  # in place of a number of best tokens: one, which stays on the device

F16 = npt.NDArray[np.float16]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Part:
    """``tokens`` of each of ``sequences``; attention looks at the first ``kv`` positions.

    The first of these sequences is ``slot`` of the cache, the others follow it there. The first
    ``shared`` positions of all of them hold the same tokens, and may be read from sequence number
    ``shared_from`` of these.
    """

    sequences: int
    tokens: int
    slot: int
    kv: int
    shared: int = 0
    shared_from: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """The facts on which a graph depends.

    Attributes:
        parts: computed one by one in attention, as one batch everywhere else.
        ends: how many tokens logits are computed for; 0: for all tokens.
        staged: whether keys and values of the last part are written to a second place as well.
        best: how many of the best logits to bring here; 0: all logits.
        chained: whether the tokens are those that the step before chose; this step then chooses for
            the next one.
        every: whether to bring all logits beside the best ones.
        drawn: among how many of the best the device draws one token; 0: it draws none. Of a chained
            step the next one goes on with it; of another nothing but the tokens is brought here.
        changed: of how many tokens, at most, each of the logits change before that; 0: of none.
    If ``hidden`` what the output would be made of comes instead of logits.
    """

    parts: tuple[Part, ...]
    ends: int = 0
    staged: bool = False
    best: int = 0
    chained: bool = False
    every: bool = False
    hidden: bool = False
    drawn: int = 0
    changed: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all parts."""
        return sum(part.sequences * part.tokens for part in self.parts)

    @property
    def logits(self) -> int:
        """How many tokens logits are computed for."""
        return self.ends or self.tokens


@dataclass(frozen=True, slots=True)
class Group:
    """What one part of a step takes in: arrays of (sequences, tokens).

    ``rows`` are those of a cache that has a row for each position. Where a row is not its token's
    position, ``mask`` gives, for a window or None, what each token sees: (sequences, 1, tokens, kv)
    float16, 0 or -inf. ``kept`` is the number of each sequence, under which its state lies; if not
    given, they are those from ``slot`` on. ``slot`` is where attention finds their rows. ``shared``
    and ``shared_from`` are those of `Part`.
    """

    ids: I32
    positions: I32
    rows: I32
    slot: int
    kv: int
    mask: Callable[[int | None], F16] | None = None
    kept: I32 | None = None
    shared: int = 0
    shared_from: int = 0

    @property
    def part(self) -> Part:
        """The facts of this part on which a graph depends."""
        sequences, tokens = self.ids.shape
        return Part(sequences, tokens, self.slot, self.kv, self.shared, self.shared_from)

    def rows_in(self, length: int, ctx: int) -> I32:
        """Where keys and values are written in a cache with ``length`` rows for each sequence."""
        if length == ctx:
            return self.rows
        slots = self.slot + np.arange(len(self.ids), dtype=np.int32)[:, None]
        found: I32 = slots * length + self.positions % length
        return found

    def states(self, none: int) -> tuple[I32, I32]:
        """Rows of states that each sequence goes on from, ``none`` if it begins; and of its own."""
        own = self.numbers
        found: I32 = np.where(self.positions[:, 0] == 0, np.int32(none), own)
        return found, own

    @property
    def numbers(self) -> I32:
        """The number of each sequence."""
        if self.kept is not None:
            return self.kept
        found: I32 = self.slot + np.arange(len(self.ids), dtype=np.int32)
        return found

    def mask_in(self, room: Room, length: int, ctx: int) -> F16:
        """Which rows of that cache each token sees."""
        if self.mask is not None:
            return self.mask(room.window)
        if length == ctx:
            return mask_of(self.positions, self.kv, room.window)
        assert room.window is not None
        return ring_mask(self.positions, length, room.window, min(self.kv, length))


@dataclass(frozen=True, slots=True)
class Batch:
    """The arrays of one step.

    Keys and values of the last group are written to the rows ``staged`` as well. Logits are
    computed for the tokens ``last``, counted over all groups; None: for each token.
    """

    groups: tuple[Group, ...]
    last: I32 | None = None
    staged: I32 | None = None

    @property
    def taken(self) -> list[tuple[int, int, int]]:
        """Of each sequence its number, the first position and how many tokens."""
        return [
            (int(number), int(row[0]), len(row))
            for group in self.groups
            for number, row in zip(group.numbers, group.positions, strict=True)
        ]

    def shape(self, best: int, *, every: bool = False) -> Shape:
        """The shape of the graph for this batch; ``best`` may be CHAINED."""
        ends = 0 if self.last is None else len(self.last)
        parts = tuple(group.part for group in self.groups)
        chained = best == CHAINED
        return Shape(parts, ends, self.staged is not None, 0 if chained else best, chained, every)


@dataclass(frozen=True, slots=True)
class Best:
    """The best tokens of each sequence, in no order: (sequences, best) int32 and float32.

    If they were asked for, ``every`` has the logits of all tokens: (sequences, vocabulary).
    """

    ids: npt.NDArray[np.int32]
    logits: F32
    every: F32 | None = None


def check(ids: Sequence[int], start: int, ctx: int, vocabulary: int, what: str = "Decoder") -> None:
    """Refuse tokens that a sequence cannot take in at ``start``."""
    if not len(ids):
        raise InvalidArgument(f"[{what}] there must be at least one token")
    if start + len(ids) > ctx:
        raise ModelError(
            f"{start + len(ids)} tokens do not fit a context of {ctx}: load with a larger ctx"
        )
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        raise InvalidArgument(
            f"[{what}] token ids are 0 to {vocabulary - 1}, given were {min(ids)} to {max(ids)}"
        )


def one_of_each(positions: Sequence[int], first: I32, slot: int, kv: int) -> Batch:
    """One token, any, of each sequence from ``slot`` on; ``first``: their first rows in a cache."""
    # No more than this: what weights pushed out of the caches comes back at 0.2 us a line.
    at = np.array(positions, np.int32)[:, None]
    return Batch((Group(at, at, at + first, slot, kv),))


def piece(ids: Sequence[int], start: int, first: I32, slot: int, kv: int, *, every: bool) -> Batch:
    """Tokens of one sequence from position ``start`` on, for ``every`` logit or the last one."""
    positions = np.arange(start, start + len(ids), dtype=np.int32)[None]
    group = Group(np.array([ids], np.int32), positions, positions + first, slot, kv)
    last = None if every or len(ids) == 1 else np.array([len(ids) - 1], np.int32)
    return Batch((group,), last)


def joined(parts: list[I32]) -> I32:
    """All elements in one line."""
    return (
        parts[0].reshape(-1) if len(parts) == 1 else np.concatenate([x.reshape(-1) for x in parts])
    )
