"""The inputs of one decoding step as arrays (`Batch`), and their `Shape`, which decides the graph.

Here: plain values and arrays, those of the results, too. Not here: the graph (step.py), who runs it
(decoder.py), which rows of a cache a token sees (../kv/rows.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from aggml import InvalidArgument
from aggml.models.errors import ModelError
from aggml.models.kv.rows import mask_of, ring_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.models.kv.room import Room
    from aggml.models.kv.state_rows import StateRows

__all__ = [
    "CHAINED",
    "F16",
    "F32",
    "I32",
    "Batch",
    "Best",
    "GivenEmbeddings",
    "Group",
    "Part",
    "Shape",
    "TokenAdapters",
    "check",
    "concatenate",
    "piece",
    "some_of_each",
]

CHAINED: Final = -1  # as `best`: choose one token, which stays on the device for the next step

F16 = npt.NDArray[np.float16]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step: ``tokens`` tokens of each of ``sequences`` sequences.

    The sequences lie in slots ``slot``, ``slot`` + 1, ... of the cache. Attention reads the first
    ``kv`` rows of each. The first ``shared`` positions of all of them hold the same tokens:
    attention may read these from sequence ``shared_from`` alone, counted within the part. Of each
    sequence the recurrent states after its last ``history`` tokens are written.
    """

    sequences: int
    tokens: int
    slot: int
    kv: int
    shared: int = 0
    shared_from: int = 0
    history: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The facts on which a graph depends.

    Attributes:
        parts: computed one by one in attention, as one batch everywhere else.
        ends: how many tokens logits are computed for; 0: for all tokens.
        staged: whether keys and values of the last part are written to a second place as well.
        best: how many of the best logits to bring here; 0: all logits.
        chained: whether the step takes the tokens that the previous step chose, and itself chooses
            those of the next step.
        every: whether to bring all logits beside the best ones.
        hidden: whether to bring hidden states instead of logits: the normalised output of the last
            layer, from which logits are computed.
        drawn: the device draws a token among so many of the best ones; 0: it draws none. Only the
            drawn tokens are brought here; after a chained step the next one also takes them.
        changed: room for so many changed logits of each row before the draw; 0: none change.
        adapted: the most adapters that any token has by its request's choice.
        scaled: whether any of these has another scale than 1.
        given: whether any position has an embedding of its own instead of a token's.
        placed: whether there are four rotary positions for each token: time, row, column, time.
        tapped: whether to bring the hidden states of all tokens as well, as ``hidden`` would.
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
    adapted: int = 0
    scaled: bool = False
    given: bool = False
    placed: bool = False
    tapped: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of all parts."""
        return sum(part.sequences * part.tokens for part in self.parts)

    @property
    def logits(self) -> int:
        """How many tokens logits are computed for."""
        return self.ends or self.tokens


@dataclass(frozen=True, slots=True)
class GivenEmbeddings:
    """Embeddings that take the place of those of tokens, as the rows of a picture do.

    Attributes:
        own: (tokens, 1), 1 where a position has a token, and 0 where its embedding is given.
        values: (tokens, width), the given embeddings, and zeros for tokens.
    """

    own: F32
    values: F32


@dataclass(frozen=True, slots=True)
class TokenAdapters:
    """The adapters that requests chose for their tokens.

    Attributes:
        numbers: of the adapters of each token, (tokens, most); 0: none.
        scales: of each of these, (tokens, most); None: all are 1.
    """

    numbers: I32
    scales: F32 | None = None

    @staticmethod
    def together(each: Sequence[TokenAdapters | None], tokens: Sequence[int]) -> TokenAdapters:
        """The adapters of the tokens of several groups.

        Args:
            each: those of a group; None: its tokens have none.
            tokens: how many tokens it has.
        """
        if len(each) == 1 and each[0] is not None:
            return each[0]
        most = max((x.numbers.shape[1] for x in each if x is not None), default=1)
        numbers = np.zeros((sum(tokens), most), np.int32)
        scaled = any(x is not None and x.scales is not None for x in each)
        scales = np.ones((sum(tokens), most), np.float32) if scaled else None
        begin = 0
        for one, n in zip(each, tokens, strict=True):
            if one is not None:
                at = np.s_[begin : begin + n, : one.numbers.shape[1]]
                numbers[at] = one.numbers
                if scales is not None and one.scales is not None:
                    scales[at] = one.scales
            begin += n
        return TokenAdapters(numbers, scales)


@dataclass(frozen=True, slots=True)
class Group:
    """The inputs of one part of a step: arrays of (sequences, tokens).

    ``rows`` are the rows to write in a cache that has a row for each position. If a row's number is
    not its token's position, ``mask(room)`` gives what each token sees: (sequences, 1, tokens, kv)
    float16, 0 or -inf. ``slot`` is the slot in which attention reads
    the first sequence. ``kept`` gives each sequence's number, which is the row of its recurrent
    state; None: ``slot``, ``slot`` + 1, ... ``shared`` and ``shared_from`` are those of `Part`.
    ``adapters`` are those of the tokens; None: no token has one. ``given`` are
    embeddings of positions that have no token; None: all have one. ``rotary`` are rotary positions,
    (1, sequences, tokens), or with those of rows and columns (4, sequences, tokens); None: they are
    the positions. ``history`` is that of `Part`. ``place`` is that of the first state that is
    written, among those to which sequences can go back: the steps before have written those before.
    """

    ids: I32
    positions: I32
    rows: I32
    slot: int
    kv: int
    mask: Callable[[Room], F16] | None = None
    kept: I32 | None = None
    shared: int = 0
    shared_from: int = 0
    adapters: TokenAdapters | None = None
    given: GivenEmbeddings | None = None
    rotary: I32 | None = None
    history: int = 1
    place: int = 0

    @property
    def part(self) -> Part:
        """The facts of this part on which a graph depends."""
        sequences, tokens = self.ids.shape
        return Part(
            sequences, tokens, self.slot, self.kv, self.shared, self.shared_from, self.history
        )

    def rows_in(self, length: int, ctx: int) -> I32:
        """The rows to write in a cache with ``length`` rows for each sequence."""
        if length == ctx:
            return self.rows
        slots = self.slot + np.arange(len(self.ids), dtype=np.int32)[:, None]
        found: I32 = slots * length + self.positions % length
        return found

    def states(self, rows: StateRows) -> tuple[I32, I32]:
        """The row of the state that each sequence reads, and the rows to which it writes states."""
        own = self.numbers
        written = rows.written_rows(own, self.history, self.place)
        return rows.read(own, self.positions[:, 0]), written

    @property
    def numbers(self) -> I32:
        """The number of each sequence."""
        if self.kept is not None:
            return self.kept
        found: I32 = self.slot + np.arange(len(self.ids), dtype=np.int32)
        return found

    def mask_in(self, room: Room, length: int, ctx: int) -> F16:
        """The mask of a cache: which of its rows each token sees."""
        if self.mask is not None:
            return self.mask(room)
        if length == ctx:
            return mask_of(self.positions, self.kv, room)
        return ring_mask(self.positions, length, room, min(self.kv, length))

    def masks_in_turn(self, room: Room, length: int, ctx: int) -> list[F16]:
        """The masks of steps that each process the next token of each sequence."""
        n = self.positions.shape[1]
        if length == ctx:
            whole = mask_of(self.positions, self.kv, room)
            return [whole[:, :, i : i + 1] for i in range(n)]
        seen = min(self.kv, length)  # a row of a ring changes its position from step to step
        steps = [self.positions[:, i : i + 1] for i in range(n)]
        return [ring_mask(step, length, room, seen) for step in steps]


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
    def adapted(self) -> int:
        """The most adapters that any token has."""
        given = (group.adapters for group in self.groups)
        return max((x.numbers.shape[1] for x in given if x is not None), default=0)

    @property
    def scaled(self) -> bool:
        """Whether any adapter of a token has another scale than 1."""
        given = (group.adapters for group in self.groups)
        return any(x is not None and x.scales is not None for x in given)

    @property
    def adapters(self) -> TokenAdapters:
        """The adapters of all tokens."""
        return TokenAdapters.together(
            [x.adapters for x in self.groups], [x.ids.size for x in self.groups]
        )

    @property
    def placed(self) -> bool:
        """Whether any token has rotary positions of rows and columns."""
        return any(x.rotary is not None and len(x.rotary) > 1 for x in self.groups)

    @property
    def rotary(self) -> I32:
        """The rotary positions of all tokens; four of each, kind by kind, if `placed`."""
        each = [x.positions[None] if x.rotary is None else x.rotary for x in self.groups]
        if not self.placed:
            return concatenate(each)
        n = [x.ids.size for x in self.groups]
        rows = [
            np.broadcast_to(x.reshape(len(x), -1), (4, k)) for x, k in zip(each, n, strict=True)
        ]
        found: I32 = np.concatenate(rows, axis=1).reshape(-1)
        return found

    def given_embeddings(self, width: int) -> GivenEmbeddings:
        """The embeddings that are given, of all tokens of the step."""
        found = []
        for group in self.groups:
            n = group.ids.size
            ones, zeros = np.ones((n, 1), np.float32), np.zeros((n, width), np.float32)
            found.append(group.given or GivenEmbeddings(ones, zeros))
        if len(found) == 1:
            return found[0]
        return GivenEmbeddings(
            np.concatenate([x.own for x in found]), np.concatenate([x.values for x in found])
        )

    @property
    def taken(self) -> list[tuple[int, int, int]]:
        """For each sequence its number, the first position and how many tokens."""
        return [
            (int(number), int(row[0]), len(row))
            for group in self.groups
            for number, row in zip(group.numbers, group.positions, strict=True)
        ]

    def written_rows(self, ctx: int) -> list[tuple[int, int, int]]:
        """For each run of rows that it writes the slot, the first position and how many.

        That is where slots have ``ctx`` rows, one for each position.
        """
        arrays = [group.rows for group in self.groups]
        if self.staged is not None:
            arrays.append(self.staged.reshape(self.groups[-1].rows.shape))
        found = []
        for rows in arrays:
            for row in rows:  # one prompt after the other in a chunk of several
                cuts = np.flatnonzero(np.diff(row) != 1) + 1
                found += [(*divmod(int(x[0]), ctx), len(x)) for x in np.split(row, cuts)]
        return found

    def shape(self, best: int, *, every: bool = False) -> Shape:
        """The shape of the graph for this batch; ``best`` may be CHAINED."""
        ends = 0 if self.last is None else len(self.last)
        parts = tuple(group.part for group in self.groups)
        chained = best == CHAINED
        return Shape(
            parts, ends, self.staged is not None, 0 if chained else best, chained, every,
            adapted=self.adapted, scaled=self.scaled,
            given=any(group.given is not None for group in self.groups), placed=self.placed,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Best:
    """The best tokens of each sequence, in no order: (sequences, best) int32 and float32.

    ``every``, if it was asked for, has the logits of all tokens: (sequences, vocabulary).
    """

    ids: npt.NDArray[np.int32]
    logits: F32
    every: F32 | None = None

    def row(self, at: int) -> Best:
        """A copy of one row."""
        every = None if self.every is None else self.every[at : at + 1].copy()
        return Best(self.ids[at : at + 1].copy(), self.logits[at : at + 1].copy(), every)


def check(ids: Sequence[int], start: int, ctx: int, vocabulary: int, what: str = "Decoder") -> None:
    """Refuse tokens that a sequence cannot process at ``start``."""
    if not len(ids):
        raise InvalidArgument(f"[{what}] ids are empty, there must be at least one token")
    if start + len(ids) > ctx:
        raise ModelError(
            f"{start + len(ids)} tokens do not fit into a context of {ctx}: load with a larger ctx"
        )
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        raise InvalidArgument(
            f"[{what}] token ids are 0 to {vocabulary - 1}, given were {min(ids)} to {max(ids)}"
        )


def some_of_each(positions: Sequence[int], n: int, first: I32, slot: int, kv: int) -> Group:
    """``n`` tokens of each sequence from ``slot`` on; the caller replaces the ids.

    Args:
        positions: of the first token of each.
        n: how many.
        first: the first row of each sequence in a cache, (sequences, 1).
        slot: the first of the sequences.
        kv: how many rows attention reads.
    """
    at: I32 = np.array(positions, np.int32)[:, None]
    if n > 1:
        at = np.add(at, np.arange(n, dtype=np.int32), dtype=np.int32)
    return Group(at, at, at + first, slot, kv)


def piece(ids: Sequence[int], start: int, first: I32, slot: int, kv: int, *, every: bool) -> Batch:
    """Tokens of one sequence from position ``start`` on; ``every`` or only the last gets logits."""
    positions = np.arange(start, start + len(ids), dtype=np.int32)[None]
    group = Group(np.array([ids], np.int32), positions, positions + first, slot, kv)
    last = None if every or len(ids) == 1 else np.array([len(ids) - 1], np.int32)
    return Batch((group,), last)


def concatenate(parts: list[I32]) -> I32:
    """All elements in one array of one dimension."""
    return (
        parts[0].reshape(-1) if len(parts) == 1 else np.concatenate([x.reshape(-1) for x in parts])
    )
