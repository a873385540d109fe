"""Threads that work on the host's side of answers while the device computes a step.

Masks of grammars and probabilities of prompts are made in them. Not here: what they compute
(constraints.py, requests.py).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from aggml.process.locks import in_child, new_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

__all__ = ["workers"]

T = TypeVar("T")
THREADS: Final = 2


class _HostWorkers:
    """One pool for the process, made when it is first used."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = new_lock()
        in_child(self._forget)

    def _forget(self) -> None:
        self._pool = None  # its threads are those of the parent

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call in one of the threads."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="aggml answers")
            return self._pool.submit(call)


workers: Final = _HostWorkers()
