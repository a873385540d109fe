"""Huge pages under the rows that a slot of the caches was promised, and under no others.

A page of the system is 4 KB, a huge one 2 MB: the first row written there takes all of it. So only
pages that lie whole within what a sequence was promised may be huge: they hold no more memory than
the promise. Attention reads long contexts faster from them, because it misses fewer addresses.
Here: which pages those are, what becomes of them. Not here: who is promised how much (paging.py).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["HugePages", "huge_size"]

SIZE: Final = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")


@functools.cache
def huge_size() -> int:
    """Bytes of a huge page; 0: the system has none that memory could ask for."""
    if not (hasattr(mmap, "MADV_HUGEPAGE") and hasattr(mmap, "MADV_NOHUGEPAGE")):
        return 0
    try:
        return int(SIZE.read_text())
    except (OSError, ValueError):
        return 0


class HugePages:
    """The huge pages of one mapped memory, which has none before `promise`.

    A range is what a slot has in one cache: ``begin`` names it. Offsets are those of the memory.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._size = huge_size()
        first = ctypes.c_char.from_buffer(memory)
        self._skew = -ctypes.addressof(first) % self._size if self._size else 0
        del first  # it would keep the memory from being closed
        self._ends: dict[int, int] = {}  # of each range: where its last huge page ends

    def _up(self, offset: int) -> int:
        return offset + (self._skew - offset) % self._size

    def _down(self, offset: int) -> int:
        return offset - (offset - self._skew) % self._size

    def promise(self, begin: int, end: int) -> None:
        """Make pages huge that lie whole in the range so far; they must not have memory yet."""
        if not self._size:
            return
        first, last = self._up(begin), self._down(end)
        first = max(first, self._ends.get(begin, first))
        if first >= last:
            return
        # The system keeps a limited number of ranges with advice of their own (65,530). Behind it
        # pages stay small.
        with suppress(OSError):
            self._memory.madvise(mmap.MADV_HUGEPAGE, first, last - first)
            self._ends[begin] = last

    def forget(self, begin: int, kept: int) -> None:
        """Give back what lies behind ``kept`` in huge pages; they are small ones from now on.

        The system frees a huge page only as a whole. Of the one that ``kept`` cuts in two, what is
        kept moves to small pages.
        """
        last = self._ends.get(begin, 0)
        if kept >= last:
            return
        first = max(self._down(kept), self._up(begin))
        held = self._memory[first:kept] if first < kept else b""
        self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)
        with suppress(OSError):  # then the next rows there take a huge page again
            self._memory.madvise(mmap.MADV_NOHUGEPAGE, first, last - first)
        if held:
            self._memory[first:kept] = held
        if first > self._up(begin):
            self._ends[begin] = first
        else:
            del self._ends[begin]
