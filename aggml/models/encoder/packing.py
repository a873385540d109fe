"""Which texts are computed together, and which one lies where.

Here: dividing a batch into parts, packing the texts of a part into rows, the arrays of a packed
part. Not here: the computation (encoder.py).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "F32",
    "FEWEST_TOKENS",
    "Ids",
    "Packing",
    "PackingShape",
    "divide",
    "fill",
    "pack",
    "pack_apart",
    "segments_of",
    "types_of",
]

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

#: A part with fewer tokens loses more by reading the weights again than it saves in waiting for
#: other threads after each node.
FEWEST_TOKENS: Final = 128
LONGER: Final = (32, 64)  # tokens of rows for texts that are shorter
#: In rows of so many tokens attention takes as long as all products, in a model as narrow as
#: all-MiniLM-L6-v2.
ATTENTION: Final = 400


class PackingShape(NamedTuple):
    """The shape of a batch: rows of tokens, each with up to ``segments`` sentences.

    If not ``masked``, every row is one sentence that fills it. It is a tuple, because graphs are
    found by it: the methods of a dataclass take 1 us for each look.
    """

    rows: int
    tokens: int
    segments: int
    masked: bool


class Packing(NamedTuple):
    """Where each sentence of a batch lies: row, first token in the row, number within the row."""

    shape: PackingShape
    places: tuple[tuple[int, int, int], ...]


def divide(lengths: Sequence[int], workers: int, most: int) -> list[list[int]]:
    """The texts of a batch in parts that are computed separately: the numbers of each part's texts.

    The texts of a part are of similar length, so that their rows have little padding. There are
    equally many parts for each worker, of about as many tokens each, unless there are few tokens.

    Args:
        lengths: tokens of each text.
        workers: how many parts are computed at a time.
        most: tokens of a part, about.
    """
    total = sum(lengths)
    if len(lengths) == 1 or 0 < total <= FEWEST_TOKENS:
        return [[*range(len(lengths))]]
    count = -(-total // most)
    count = min(-(-count // workers) * workers, total // FEWEST_TOKENS, len(lengths))
    parts: dict[int, list[int]] = {}
    before = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        parts.setdefault(before * max(count, 1) // max(total, 1), []).append(i)
        before += lengths[i]
    return [*parts.values()]


def pack(lengths: Sequence[int], *, alike: bool = False) -> Packing:
    """Pack texts into few rows, so that few tokens of padding are computed.

    Rows are as long as the longest text, or longer if short texts then leave less room unused. Each
    text, longest first, goes to the first row with room. A block mask keeps the texts of a row
    apart. Attention to masked tokens costs little: at 64 tokens it is 3 % of a layer's arithmetic.

    Args:
        lengths: tokens of each text, at least one text, each at least 1.
        alike: whether the whole batch has texts of one length: then each text is a row without a
            mask. Else only multiples of 8 become rows, so that there are few different graphs.
    """
    if alike:
        shape = PackingShape(len(lengths), lengths[0], 1, masked=False)
        return Packing(shape, tuple((row, 0, 0) for row in range(len(lengths))))
    longest = -(-max(lengths) // 8) * 8
    tried = [_first_fit(lengths, n) for n in (longest, *(n for n in LONGER if n > longest))]
    return min(tried, key=_cost)


def pack_apart(lengths: Sequence[int]) -> Packing:
    """Pack texts, each in a row of its own; all rows are as long as the longest text."""
    longest = max(lengths)
    masked = min(lengths) < longest
    longest = -(-longest // 8) * 8 if masked else longest
    shape = PackingShape(len(lengths), longest, 1, masked=masked)
    return Packing(shape, tuple((row, 0, 0) for row in range(len(lengths))))


def _cost(packing: Packing) -> float:
    """How long a packing takes, measured in tokens; attention grows with the length of rows."""
    shape = packing.shape
    return shape.rows * shape.tokens * (1 + shape.tokens / ATTENTION)


def _first_fit(lengths: Sequence[int], tokens: int) -> Packing:
    """Pack texts into rows of ``tokens`` tokens."""
    used: list[int] = []  # tokens taken, by row
    count: list[int] = []  # texts, by row
    places = [(0, 0, 0)] * len(lengths)
    first_open: dict[int, int] = {}  # length -> rows before this one have no room for it
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        row = first_open.get(length, 0)
        while row < len(used) and used[row] + length > tokens:
            row += 1
        first_open[length] = row
        if row == len(used):
            used.append(0)
            count.append(0)
        places[index] = (row, used[row], count[row])
        used[row] += length
        count[row] += 1
    segments = 1 << (max(count) - 1).bit_length()  # powers of 2: fewer different graphs
    return Packing(PackingShape(len(used), tokens, segments, masked=True), tuple(places))


def types_of(packing: Packing, sentences: Sequence[Ids], separator: int) -> Ids:
    """The types of all tokens: 1 behind the first ``separator`` of a sentence, else 0."""
    found = np.zeros((packing.shape.rows, packing.shape.tokens), np.int32)
    for (row, start, _), ids in zip(packing.places, sentences, strict=True):
        at = int(np.argmax(ids == separator))
        if ids[at] == separator:
            found[row, start + at + 1 : start + len(ids)] = 1
    return found.reshape(-1)


def segments_of(shape: PackingShape, member: F32 | None) -> Ids:
    """The number of each token's sentence within its row, -1 for padding: (rows, tokens).

    Args:
        shape: of the packed batch.
        member: as `fill` returns it.
    """
    if member is None:
        return np.zeros((shape.rows, shape.tokens), np.int32)
    return np.where(member.any(axis=2), member.argmax(axis=2), -1).astype(np.int32)


def fill(packing: Packing, sentences: Sequence[Ids]) -> tuple[Ids, Ids, F32 | None]:
    """Arrays of a packed batch: ids and positions of all rows, and members of masked ones.

    A member is 1 if the token belongs to that sentence of its row, (rows, tokens, segments);
    padding belongs to none. None: each sentence is a row. The arrays may be those of the sentences
    or of other parts, so nobody writes to them.
    """
    shape = packing.shape
    if not shape.masked:
        ids = sentences[0] if len(sentences) == 1 else np.concatenate(sentences)
        return ids, _positions_of_rows(shape.rows, shape.tokens), None
    total = shape.rows * shape.tokens
    ids = np.zeros(total, np.int32)
    positions = np.zeros(total, np.int32)
    member = np.zeros((shape.rows, shape.tokens, shape.segments), np.float32)
    # All sentences at once: one by one would block the event loop for 1 ms with forty sentences.
    row, start, segment = np.array(packing.places).T
    lengths = np.fromiter(map(len, sentences), np.intp, len(sentences))
    position = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    token = np.repeat(row * shape.tokens + start, lengths) + position
    ids[token] = np.concatenate(sentences)
    positions[token] = position
    member.reshape(-1)[token * shape.segments + np.repeat(segment, lengths)] = 1
    return ids, positions, member


@functools.lru_cache(64)  # each is 4 bytes a token; making them took 10 us of a sentence's 1.4 ms
def _positions_of_rows(rows: int, tokens: int) -> Ids:
    """Positions if each row is one sentence."""
    positions = np.tile(np.arange(tokens, dtype=np.int32), rows)
    positions.flags.writeable = False
    return positions
