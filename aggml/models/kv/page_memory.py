"""PageMemory: host memory for stored pages of keys and values, within a fixed number of pages.

The rows of one cache lie together, ordered by the number of the page. So pages with consecutive
numbers are read or written with one transfer for each cache, however many they are. The system
gives memory to a page when it is first written. Not here: which page holds what (prefixes.py).
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.models.kv.paging import PAGE, give_back_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml import Future
    from aggml.models.kv.snapshots import Bytes, CacheForm

__all__ = ["PageMemory"]


class PageMemory:
    """Room for ``pages`` pages.

    A page that is given back may be taken again at once, although the device may still read or
    write it: all transfers of one cache are made by one stream, in order. Whoever writes pages by
    other means than that stream waits for `transfers` first.

    Args:
        form: of the caches.
        pages: how many pages there are.
    """

    def __init__(self, form: CacheForm, pages: int) -> None:
        self._sizes = [PAGE * row for _, row in form.rows]
        self._begins = [0]
        for size in self._sizes:
            whole = -(-pages * size // mmap.PAGESIZE) * mmap.PAGESIZE
            self._begins.append(self._begins[-1] + whole)
        self._memory: mmap.mmap | None = None  # made when it is first needed
        self._bytes: Bytes = np.empty(0, np.uint8)
        self._free = [(0, pages)] if pages else []  # runs: first page and the one after the last
        self._busy: dict[int, Sequence[Future[Any]]] = {}  # page: its latest transfers
        self._idle: set[int] = set()  # pages that are free and may have memory

    @property
    def free(self) -> int:
        """Pages that can be taken."""
        return sum(end - first for first, end in self._free)

    def take(self, n: int, after: int | None = None) -> list[tuple[int, int]]:
        """Take ``n`` pages, or as many as there are: runs of consecutive pages, as few as possible.

        Args:
            n: how many.
            after: the page that comes before them, so that they may continue its run.

        Returns:
            For each run its first page and how many.
        """
        found = []
        while n and self._free:
            run = next(
                (run for run in self._free if after is not None and run[0] == after + 1), None
            )
            if run is None:
                fits = [run for run in self._free if run[1] - run[0] >= n]
                size = min if fits else max
                run = size(fits or self._free, key=lambda run: run[1] - run[0])
            first, end = run
            count = min(n, end - first)
            at = bisect_left(self._free, run)
            self._free[at : at + 1] = [(first + count, end)] if first + count < end else []
            found.append((first, count))
            n -= count
            after = None
        return found

    def give_back(self, page: int) -> None:
        """Free a page."""
        run = (page, page + 1)
        at = bisect_left(self._free, run)
        if at < len(self._free) and self._free[at][0] == run[1]:
            run = (page, self._free.pop(at)[1])
        if at and self._free[at - 1][1] == page:
            run = (self._free.pop(at - 1)[0], run[1])
        insort(self._free, run)
        self._idle.add(page)

    def rows(self, page: int, n: int) -> list[Bytes]:
        """The memory of ``n`` consecutive pages, for each cache."""
        if self._memory is None:
            self._memory = mmap.mmap(-1, max(self._begins[-1], 1), flags=_FLAGS)
            self._bytes = np.frombuffer(self._memory, np.uint8)
        return [
            self._bytes[begin + page * size : begin + (page + n) * size]
            for begin, size in zip(self._begins, self._sizes, strict=False)
        ]

    def note(self, page: int, n: int, transfers: Sequence[Future[Any]]) -> None:
        """Note the transfers that read or write these pages, one of each stream."""
        self._busy.update(dict.fromkeys(range(page, page + n), transfers))

    def transfers(self, page: int, n: int) -> list[Future[Any]]:
        """The transfers of these pages that may be under way."""
        found = []
        for x in range(page, page + n):
            found += [future for future in self._busy.get(x, ()) if not future.done()]
            if not found:
                self._busy.pop(x, None)
        return found

    def trim(self) -> None:
        """Give the memory of free pages back to the system, unless the device still uses them."""
        idle, self._idle = sorted(self._idle), set()
        runs: list[tuple[int, int]] = []
        for page in idle:
            if not any(first <= page < end for first, end in self._free):
                continue  # taken again
            if self.transfers(page, 1):
                self._idle.add(page)
            elif runs and runs[-1][1] == page:
                runs[-1] = (runs[-1][0], page + 1)
            else:
                runs.append((page, page + 1))
        for page, end in runs if self._memory is not None else ():
            assert self._memory is not None
            for begin, size in zip(self._begins, self._sizes, strict=False):
                give_back_memory(self._memory, begin + page * size, begin + end * size)


_FLAGS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
