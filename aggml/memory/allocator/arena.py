"""Offsets in memory: take the smallest hole that fits, merge returned ranges with their neighbours.

Not here: which tensor lies there, and when (lifetimes.py).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

__all__ = ["CHUNK_SHIFT", "Arena", "ArenaChunk"]


class ArenaChunk:
    """A range of memory: holes below ``top``, everything above ``top`` is free."""

    __slots__ = ("by_end", "by_start", "free", "high", "top")

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []  # (size, start), sorted
        self.by_start: dict[int, int] = {}  # start -> size
        self.by_end: dict[int, int] = {}  # end -> start
        self.top: int = 0
        self.high: int = 0

    def take(self, size: int) -> int:
        """Start of the smallest hole that fits, or of new memory at the top.

        Of several holes of that size it takes the last, as ggml does: the low ones can then merge.
        """
        i = bisect_left(self.free, (size,))
        if i < len(self.free):
            i = bisect_left(self.free, (self.free[i][0] + 1,)) - 1
        else:
            start = self.top
            self.top = end = start + size
            if end > self.high:
                self.high = end
            return start
        found, start = self.free.pop(i)
        del self.by_start[start], self.by_end[start + found]
        if found > size:
            self._insert(start + size, found - size)
        return start

    def give(self, start: int, size: int) -> None:
        """Return bytes; they merge with adjacent holes."""
        if not size:
            return
        end = start + size
        below = self.by_end.pop(start, None)
        if below is not None:
            self._forget(below)
            start = below
        if end == self.top:
            self.top = start
            return
        above = self.by_start.get(end)
        if above is not None:
            del self.by_end[end + above]
            self._forget(end)
            end += above
        self._insert(start, end - start)

    def _insert(self, start: int, size: int) -> None:
        insort(self.free, (size, start))
        self.by_start[start] = size
        self.by_end[start + size] = start

    def _forget(self, start: int) -> None:
        del self.free[bisect_left(self.free, (self.by_start.pop(start), start))]


CHUNK_SHIFT: Final = 52  # an address in an Arena: number of the chunk above this bit, offset below


class Arena:
    """Chunks of at most ``max_size`` bytes each; larger only if a single tensor needs it."""

    __slots__ = ("chunks", "max_size")

    def __init__(self, max_size: int) -> None:
        self.max_size: int = max_size
        self.chunks: list[ArenaChunk] = [ArenaChunk()]

    def take(self, size: int) -> int:
        """An address for ``size`` bytes: the number of a chunk, shifted, plus an offset in it."""
        i = self._choose(size)
        return i << CHUNK_SHIFT | self.chunks[i].take(size)

    def give(self, start: int, size: int) -> None:
        """Return the bytes that `take` gave."""
        self.chunks[start >> CHUNK_SHIFT].give(start & (1 << CHUNK_SHIFT) - 1, size)

    def _choose(self, size: int) -> int:
        # The smallest hole that fits, else the chunk that grows least, else a new one.
        holes, ends = [], []
        for i, chunk in enumerate(self.chunks):
            at = bisect_left(chunk.free, (size,))
            if at < len(chunk.free):
                holes.append((chunk.free[at][0], i))
            elif chunk.top + size <= max(self.max_size, chunk.high) or not chunk.high:
                ends.append((max(chunk.top + size - chunk.high, 0), i))
        if holes or ends:
            return min(holes or ends)[1]
        self.chunks.append(ArenaChunk())
        return len(self.chunks) - 1
