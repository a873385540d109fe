"""Huge pages under the rows that a slot of the caches was promised, and under no others.

A normal page is 4 KB, a huge page 2 MB: the first row written in a huge page takes all 2 MB. So
only huge pages that lie wholly within the promised rows are used: they take no more memory than was
promised. Attention over long contexts reads them faster, because the TLB misses fewer addresses.
Here: which pages are huge, and giving them back. Not here: who is promised how much (paging.py).
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
    """Bytes of a huge page; 0: the system does not let programs ask for huge pages."""
    if not (hasattr(mmap, "MADV_HUGEPAGE") and hasattr(mmap, "MADV_NOHUGEPAGE")):
        return 0
    try:
        return int(SIZE.read_text())
    except (OSError, ValueError):
        return 0


class HugePages:
    """The huge pages of one mapped memory; it has none before `promise`.

    A range is the bytes of one slot in one cache. It is named by ``begin``, its first byte. All
    offsets count from the beginning of the memory.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._size = huge_size()
        first = ctypes.c_char.from_buffer(memory)
        self._skew = -ctypes.addressof(first) % self._size if self._size else 0
        del first  # it would keep the memory from being closed
        self._ends: dict[int, int] = {}  # begin of a range: end of its last huge page

    def _up(self, offset: int) -> int:
        return offset + (self._skew - offset) % self._size

    def _down(self, offset: int) -> int:
        return offset - (offset - self._skew) % self._size

    def promise(self, begin: int, end: int) -> None:
        """Make the pages huge that lie wholly between ``begin`` and ``end``.

        They must not have been written yet.
        """
        if not self._size:
            return
        first, last = self._up(begin), self._down(end)
        first = max(first, self._ends.get(begin, first))
        if first >= last:
            return
        # The system allows a process a limited number of mapped ranges (65,530), and each advice
        # splits one. Beyond the limit madvise fails, and pages stay small.
        with suppress(OSError):
            self._memory.madvise(mmap.MADV_HUGEPAGE, first, last - first)
            self._ends[begin] = last

    def forget(self, begin: int, kept: int) -> None:
        """Give back the huge pages of a range after offset ``kept``; they are small from now on.

        The system frees a huge page only as a whole. If ``kept`` lies within a huge page, the bytes
        before it move to small pages.
        """
        last = self._ends.get(begin, 0)
        if kept >= last:
            return
        first = max(self._down(kept), self._up(begin))
        held = self._memory[first:kept] if first < kept else b""
        self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)
        with suppress(OSError):  # if it fails, the next rows there take a huge page again
            self._memory.madvise(mmap.MADV_NOHUGEPAGE, first, last - first)
        if held:
            self._memory[first:kept] = held
        if first > self._up(begin):
            self._ends[begin] = first
        else:
            del self._ends[begin]
