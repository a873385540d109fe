"""Storing pages: copies of the pages that sequences have completed, made beside the next step.

Here: when a copy is made, and who waits for it. Not here: which pages are stored (prefixes.py), the
copying itself (aggml/models/kv/copying.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup

    from aggml.models.engine.jobs import Job
    from aggml.models.engine.prefixes import Prefixes
    from aggml.models.kv.copying import Run
    from aggml.models.kv.paging import PagedDecoder

__all__ = ["Keeper"]

_log = logging.getLogger("aggml")


class Keeper:
    """Copies complete pages to where they are stored, one batch of copies at a time.

    In host memory a thread copies a page of 3 MB in 2 to 8 ms, most of which the system takes to
    provide new memory. The next step need not wait: it writes only later positions of the
    sequence. Whoever gives a slot to another sequence, moves or gives back rows, or reads stored
    pages, calls `done` or `may_free` before. On devices with memory of their own a graph copies the
    rows, and `keep` waits for it.

    Args:
        model: its caches hold sequences and stored pages.
        prefixes: decides which pages are stored.
        tasks: the copies run in it.
    """

    def __init__(self, model: PagedDecoder, prefixes: Prefixes, tasks: TaskGroup) -> None:
        self._model = model
        self._prefixes = prefixes
        self._tasks = tasks
        self._beside = model.copies_beside
        self._jobs: Sequence[Job] = ()  # whose pages are being copied
        self._copied = anyio.Event()
        self._copied.set()

    async def keep(self, jobs: Sequence[Job], before: Callable[[], Awaitable[None]]) -> None:
        """Begin to store the pages that these jobs have completed, for later prompts.

        Args:
            jobs: all of them have slots.
            before: is awaited before anything is copied; it gives memory back that pages need.
        """
        found = [(job, self._prefixes.keep(job, job.written)) for job in jobs]
        added = [x for _, some in found for x in some]
        if not added:
            return
        await self.done()
        await before()
        self._jobs = [job for job, some in found if some]
        if self._beside:
            self._copied = anyio.Event()
            self._tasks.start_soon(self._copy, added)
        else:
            await self._copy(added)

    async def _copy(self, added: Sequence[tuple[bytes, Run]]) -> None:
        try:
            await self._model.copy_rows([run for _, run in added])
        except BaseException as error:
            self._prefixes.lose(key for key, _ in added)
            # A failure here would end the task group, and the engine with it. Nobody needs these
            # pages yet: later prompts are computed instead of copied.
            if not (self._beside and isinstance(error, Exception)):
                raise
            _log.warning("%d pages were not stored: %s", len(added), error)
        finally:
            self._jobs = ()
            self._copied.set()

    async def done(self) -> None:
        """Wait until no copy is under way."""
        if not self._copied.is_set():
            await self._copied.wait()

    async def may_free(self) -> None:
        """Wait for copies from slots that are about to be freed, because their jobs are over."""
        if any(job.over for job in self._jobs):
            await self.done()
