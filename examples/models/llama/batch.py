"""What one step takes in, and what of that its graph depends on.

Here: plain values and arrays. Not here: the graph (graph.py), who runs it (model.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

CHAINED: Final = -1  # instead of how many best ones: one, which stays on the device


@dataclass(frozen=True, slots=True)
class Part:
    """``tokens`` of each of ``sequences``; attention looks at the first ``kv`` positions.

    The first of these sequences is ``slot`` of the cache, the others follow it there.
    """

    sequences: int
    tokens: int
    slot: int
    kv: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph depends on: its parts, one behind the other in all that is no attention.

    Keys and values are written at one place; those of the last part, if ``staged``, at a second one
    as well. Logits follow ``ends`` tokens (0: all of them); of these, if not 0, the ``best`` ones,
    and beside them, if ``every``, all of them.
    If ``chained`` the tokens are those that the step before chose, as this one does for the next.
    """

    parts: tuple[Part, ...]
    ends: int = 0
    staged: bool = False
    best: int = 0
    chained: bool = False
    every: bool = False

    @property
    def tokens(self) -> int:
        """Of all parts."""
        return sum(part.sequences * part.tokens for part in self.parts)

    @property
    def logits(self) -> int:
        """How many tokens they follow."""
        return self.ends or self.tokens


@dataclass(frozen=True, slots=True)
class Group:
    """What one part of a step takes in: arrays of (sequences, tokens).

    ``rows`` are those of the cache. The mask, (sequences, 1, tokens, kv) float16, hides what comes
    behind each token's own position, if not given.
    """

    ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    slot: int
    kv: int
    mask: npt.NDArray[np.float16] | None = None

    @property
    def part(self) -> Part:
        """What a graph depends on."""
        sequences, tokens = self.ids.shape
        return Part(sequences, tokens, self.slot, self.kv)

    @property
    def seen(self) -> npt.NDArray[np.float16]:
        """The mask."""
        return mask_of(self.positions, self.kv) if self.mask is None else self.mask


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step takes in.

    ``staged`` are rows to which the last group's keys and values are written as well; logits follow
    the tokens ``last``, counted over all groups (None: each).
    """

    groups: tuple[Group, ...]
    last: npt.NDArray[np.int32] | None = None
    staged: npt.NDArray[np.int32] | None = None

    def shape(self, best: int, *, every: bool = False) -> Shape:
        """What its graph depends on; ``best`` may be CHAINED."""
        ends = 0 if self.last is None else len(self.last)
        parts = tuple(group.part for group in self.groups)
        chained = best == CHAINED
        return Shape(parts, ends, self.staged is not None, 0 if chained else best, chained, every)


def joined(parts: list[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """All elements in one line."""
    return (
        parts[0].reshape(-1) if len(parts) == 1 else np.concatenate([x.reshape(-1) for x in parts])
    )


def mask_of(positions: npt.NDArray[np.int32], kv: int) -> npt.NDArray[np.float16]:
    """(sequences, 1, tokens, kv): 0 up to each token's own position, -inf behind it.

    Each row is a window into one row of ``kv`` zeros and ``kv`` infinities. Of one prompt each is
    one to the left of the row before, and the worker that takes the mask reads the windows: written
    out on the loop, those of 512 tokens that look at 4096 would hold it up for 3 ms.
    """
    windows = _windows(kv)
    sequences, tokens = positions.shape
    first = int(positions[0, 0])
    if sequences == 1 and np.array_equal(positions[0], np.arange(first, first + tokens)):
        return windows[kv - first - tokens : kv - first][None, None, ::-1]
    found: npt.NDArray[np.float16] = windows[kv - 1 - positions][:, None]
    return found


@functools.lru_cache(maxsize=16)
def _windows(kv: int) -> npt.NDArray[np.float16]:
    """Row i ends with i infinities behind ``kv`` - i zeros; nobody may write to it."""
    line = np.zeros(2 * kv, np.float16)
    line[kv:] = -np.inf
    return np.lib.stride_tricks.sliding_window_view(line, kv)
