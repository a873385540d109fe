"""Beginnings of prompts: pages of keys and values that later prompts can reuse.

A page is found by a hash of its tokens and of all tokens before it, so it stands for one beginning
only. Stored pages are copies, so a sequence that writes never changes them. Here: which pages are
stored, and which are given up first. Not here: copying them (aggml/models/kv/copying.py), and
when that is done (engine.py).
"""

from __future__ import annotations

import hashlib
import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.kv.copying import Run
from aggml.models.kv.paging import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aggml.models.engine.jobs import Job
    from aggml.models.kv.paging import Pages

__all__ = ["Prefixes", "key_of"]

DIGEST: Final = 16  # bytes; a collision of two hashes is expected after 2^64 pages


def key_of(parent: bytes, ids: Sequence[int]) -> bytes:
    """The hash of a page: of its tokens, and of the page before it."""
    tokens = np.asarray(ids, np.int32).tobytes()
    return hashlib.blake2b(parent + tokens, digest_size=DIGEST).digest()


class Prefixes:
    """The pages that are stored, the least recently used first.

    ``pages.stored`` counts them. There are at most ``most``, and fewer if sequences need their
    memory (`make_room`).

    Args:
        pages: counts all pages.
        most: pages that may be stored; 0: none.
        ctx: rows of a slot.
        first: the row of the first stored page.
        model: everything but the tokens that keys and values depend on, as text.
    """

    def __init__(self, pages: Pages, most: int, *, ctx: int, first: int, model: str) -> None:
        self.pages = pages
        self._ctx = ctx
        self._first = first
        self._root = hashlib.blake2b(model.encode(), digest_size=DIGEST).digest()
        self._at: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(min(most, pages.budget)))
        self._gone: list[int] = []  # pages whose memory can be given back
        self.most = len(self._free)

    def __len__(self) -> int:
        return len(self._at)

    def name(self, job: Job) -> None:
        """Hash the whole pages of a job's prompt."""
        if self.most:
            self._name(job, len(job.prompt) // PAGE)

    def _name(self, job: Job, n: int) -> None:
        """Hash the first ``n`` pages of a job's prompt and answer."""
        prompt, keys = job.prompt, job.keys
        while len(keys) < n:
            begin, end = len(keys) * PAGE, (len(keys) + 1) * PAGE
            ids = list(prompt[begin:end])
            if end > len(prompt):
                ids += job.made[max(0, begin - len(prompt)) : end - len(prompt)]
            keys.append(key_of(keys[-1] if keys else self._root, ids))

    @staticmethod
    def _wanted(job: Job) -> list[bytes]:
        """The pages that a prompt may reuse; its last token is always computed, for its logits."""
        return job.keys[: (len(job.prompt) - 1) // PAGE]

    def _found(self, job: Job) -> int:
        """How many of these pages are stored, counted up to the first that is not."""
        wanted = self._wanted(job)
        return next((n for n, key in enumerate(wanted) if key not in self._at), len(wanted))

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Note that a beginning was used. Pages that follow a page are given up before it."""
        for key in reversed(keys):
            self._at.move_to_end(key)

    # -- reusing

    def begin(self, job: Job, staged: int | None) -> None:
        """Let a new prompt reuse the stored pages; ``job.copies`` gets the copies to its rows.

        Args:
            job: a job that has a slot.
            staged: the first of its shared rows; None: it has none.
        """
        n = self._found(job)
        assert job.slot is not None
        for i, key in enumerate(job.keys[:n]):
            source = self._row(self._at[key])
            for first in (job.slot * self._ctx, staged):
                if first is not None:
                    job.copies.append(Run(source, first + i * PAGE, PAGE))
        job.copies.sort(key=lambda run: run.target)
        self._touch(job.keys[:n])
        job.taken_in = job.cached = n * PAGE
        job.kept = n

    def awaits(self, job: Job, coming: set[bytes]) -> bool:
        """Whether a prompt's next page is being computed for another prompt.

        Args:
            job: a job whose prompt has not begun.
            coming: pages of the prompts that are being processed before it.
        """
        wanted, n = self._wanted(job), self._found(job)
        return n < len(wanted) and wanted[n] in coming

    def coming(self, job: Job) -> list[bytes]:
        """The pages of a prompt that will be stored when they are computed."""
        if job.kept is None or (self.pages.free <= 0 and not self._at):
            return []
        return job.keys[job.kept : len(job.prompt) // PAGE]

    # -- storing

    def keep(self, job: Job, written: int) -> list[tuple[bytes, Run]]:
        """Store the pages that a job has completed; returns their keys and the copies to make.

        Args:
            job: a job that has a slot.
            written: positions whose keys and values are complete.
        """
        added: list[tuple[bytes, Run]] = []
        if not self.most or job.kept is None or (job.kept + 1) * PAGE > written:
            return added
        self._name(job, written // PAGE)
        if job.kept and job.keys[job.kept - 1] not in self._at:
            job.kept = None  # without the page before it, a page would never be found
            return added
        assert job.slot is not None
        self._touch(job.keys[: job.kept])
        for i in range(job.kept, written // PAGE):
            key = job.keys[i]
            if key not in self._at:
                place = self._place(i)
                if place is None:
                    job.kept = None
                    break
                self._at[key] = place
                run = Run(job.slot * self._ctx + i * PAGE, self._row(place), PAGE)
                added.append((key, run))
            self._at.move_to_end(key)
            job.kept = i + 1
        self._touch(job.keys[: job.kept or 0])
        return added

    def _place(self, before: int) -> int | None:
        """A place for one more page: a free one, else that of the least recently used page.

        Args:
            before: pages of the same beginning; they were used last and must stay.
        """
        if self.pages.free > 0 and self._free:
            self.pages.stored += 1
            return heapq.heappop(self._free)
        if len(self._at) <= before:
            return None
        return self._at.popitem(last=False)[1]

    def lose(self, keys: Iterable[bytes]) -> None:
        """Forget pages whose copies have failed."""
        for key in keys:
            if (place := self._at.pop(key, None)) is not None:
                self._drop(place)

    def make_room(self, job: Job) -> None:
        """Give up as many pages as a job needs for a slot; those that it would reuse go last."""
        lacks = self.pages.lacks(len(job.prompt) + job.n_predict)
        if lacks:
            self._touch(job.keys[: self._found(job)])
        for _ in range(min(lacks, len(self._at))):
            self._drop(self._at.popitem(last=False)[1])

    def _drop(self, place: int) -> None:
        heapq.heappush(self._free, place)
        self.pages.stored -= 1
        self._gone.append(place)

    def surplus(self) -> list[tuple[int, int]]:
        """Ranges of rows whose memory can be given back: the first row and the number of rows."""
        gone, self._gone = set(self._gone), []
        return [(self._row(place), PAGE) for place in sorted(gone.intersection(self._free))]

    def _row(self, place: int) -> int:
        return self._first + place * PAGE
