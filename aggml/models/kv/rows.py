"""Which rows of a cache a step writes, and which of them each token may see.

Here: plain functions on arrays. Not here: the caches themselves (../decoder/decoder.py), attention
(../blocks/attention.py).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.kv.room import Room

if TYPE_CHECKING:
    import numpy.typing as npt

    F16 = npt.NDArray[np.float16]
    I32 = npt.NDArray[np.int32]

__all__ = [
    "EVERYTHING",
    "LONG_STEP",
    "ROWS_STEP",
    "SHORT_STEP",
    "length_of",
    "mask_of",
    "ring_mask",
    "round_up",
]

EVERYTHING: Final = Room()
# Attention adds up keys 32 at a time, in blocks of 256. Each of the prompts that lie beside each
# other begins at a multiple of 32. It lies within one block, or begins with a block if it is
# longer. So its sums have the same terms in the same order as those of a prompt that is alone.
SHORT_STEP: Final = 32
LONG_STEP: Final = 256
ROWS_STEP: Final = 256  # caches and what attention reads are multiples of it: fewer graphs


def round_up(n: int) -> int:
    """The next multiple of `ROWS_STEP`."""
    return -(-n // ROWS_STEP) * ROWS_STEP


def length_of(room: Room, ctx: int, chunk: int) -> int:
    """Rows that each sequence needs in a room.

    When the last token of a step has been written to a ring, the ring must still hold the window of
    the step's first token.

    Args:
        room: which positions have rows.
        ctx: positions of a sequence.
        chunk: the most tokens of one sequence in a step.
    """
    return ctx if room.window is None else min(ctx, round_up(room.window + chunk - 1))


def mask_of(positions: I32, seen: int, room: Room = EVERYTHING) -> F16:
    """(sequences, 1, tokens, seen): 0 for rows that a token sees, else -inf; row p is position p.

    Each token's mask is a view of one array, which holds zeros and then -inf. For the tokens of one
    prompt each view begins one element before that of the previous token, so the result is a
    strided view of that array, which a worker thread reads. To copy it here, on the event loop,
    would block the loop for 3 ms with 512 tokens and 4096 rows.

    Args:
        positions: (sequences, tokens).
        seen: how many rows.
        room: which positions a token sees.
    """
    if room.chunked:
        whole, first_seen = mask_of(positions, seen), room.first_seen(positions)
        if not first_seen.any():
            return whole
        hidden = np.arange(seen) < first_seen[:, None, :, None]
        return np.where(hidden, np.float16(-np.inf), whole)
    windows = _windows(seen, room.window)
    sequences, tokens = positions.shape
    first = int(positions[0, 0])
    # One token is asked for in each step of a generation; comparing it would take 30 us.
    consecutive = sequences == 1 and (
        tokens == 1 or np.array_equal(positions[0], np.arange(first, first + tokens))
    )
    if consecutive:
        return windows[seen - first - tokens : seen - first][None, None, ::-1]
    found: F16 = windows[seen - 1 - positions][:, None]
    return found


@functools.lru_cache(maxsize=16)
def _windows(seen: int, window: int | None) -> F16:
    """All views of an array of ``seen`` zeros and ``seen`` times -inf; row i begins at element i.

    With a window only the last ``window`` zeros are zero, those before them -inf. The result is
    shared: nobody may write to it.
    """
    line = np.zeros(2 * seen, np.float16)
    line[seen:] = -np.inf
    if window is not None:
        line[: max(seen - window, 0)] = -np.inf
    return np.lib.stride_tricks.sliding_window_view(line, seen)


def ring_mask(positions: I32, length: int, room: Room, seen: int) -> F16:
    """`mask_of` for a ring, where row r holds the last written position p with p % length == r.

    Args:
        positions: (sequences, tokens), ascending in each sequence, and written in this order.
        length: rows of the ring.
        room: which positions a token sees.
        seen: how many rows attention reads.
    """
    last = positions.max(axis=1)[:, None]
    rows = np.arange(seen)
    held = last - (last - rows) % length  # negative: nothing has been written there
    held = held[:, None, None, :]
    at = positions[:, None, :, None]
    first_seen = room.first_seen(positions)[:, None, :, None]
    visible = (held >= 0) & (held <= at) & (held >= first_seen)
    return np.where(visible, np.float16(0), np.float16(-np.inf))
