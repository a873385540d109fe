"""Which rows of a cache a step writes, and which of them each token may see.

Here: plain functions on arrays. Not here: the caches themselves (../decoding/decoder.py), attention
(../blocks/attention.py).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from aggml.models.cache.room import Room

    F16 = npt.NDArray[np.float16]
    I32 = npt.NDArray[np.int32]

__all__ = ["ROWS_STEP", "length_of", "mask_of", "ring_mask", "rounded"]

ROWS_STEP: Final = 256  # caches grow and are seen in steps of so many rows: fewer different graphs


def rounded(n: int) -> int:
    """The next multiple of `ROWS_STEP`."""
    return -(-n // ROWS_STEP) * ROWS_STEP


def length_of(room: Room, ctx: int, chunk: int) -> int:
    """Rows that each sequence needs in a room.

    A ring must hold the window of the first token of a step when its last one has been written.

    Args:
        room: the last positions, or all.
        ctx: positions of a sequence.
        chunk: tokens of one sequence that a step takes in at most.
    """
    return ctx if room.window is None else min(ctx, rounded(room.window + chunk - 1))


def mask_of(positions: I32, seen: int, window: int | None = None) -> F16:
    """(sequences, 1, tokens, seen): 0 where a token may look, -inf elsewhere; position p is row p.

    Each row is a window into one line of zeros and infinities. Of one prompt each is one to the
    left of the row before, and the worker that takes the mask reads the windows: written out on the
    loop, those of 512 tokens that look at 4096 would hold it up for 3 ms.

    Args:
        positions: (sequences, tokens).
        seen: rows.
        window: how many positions a token sees, its own included; None: all before it.
    """
    windows = _windows(seen, window)
    sequences, tokens = positions.shape
    first = int(positions[0, 0])
    if sequences == 1 and np.array_equal(positions[0], np.arange(first, first + tokens)):
        return windows[seen - first - tokens : seen - first][None, None, ::-1]
    found: F16 = windows[seen - 1 - positions][:, None]
    return found


@functools.lru_cache(maxsize=16)
def _windows(seen: int, window: int | None) -> F16:
    """Row i begins i elements into ``seen`` zeros (the last ``window`` of them) and infinities.

    Nobody may write to it.
    """
    line = np.zeros(2 * seen, np.float16)
    line[seen:] = -np.inf
    if window is not None:
        line[: max(seen - window, 0)] = -np.inf
    return np.lib.stride_tricks.sliding_window_view(line, seen)


def ring_mask(positions: I32, length: int, window: int, seen: int) -> F16:
    """The same where row r holds the last position p with p % length == r that has been written.

    Args:
        positions: (sequences, tokens), each sequence's ascending; the last one is written last.
        length: rows of the ring.
        window: how many positions a token sees, its own included.
        seen: rows that attention looks at.
    """
    last = positions.max(axis=1)[:, None]
    rows = np.arange(seen)
    held = last - (last - rows) % length  # negative: nothing has been written there
    held = held[:, None, None, :]
    at = positions[:, None, :, None]
    visible = (held >= 0) & (held <= at) & (held > at - window)
    return np.where(visible, np.float16(0), np.float16(-np.inf))
