"""Signals: threads that start because of us leave them to the program.

Importing this module imports numpy in that way: its OpenBLAS starts threads at once. Not here:
native threads (native/runtime/thread.c).
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["signals_blocked"]

#: What a thread raises by its own fault stays open, for faulthandler.
_FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Threads started in this block leave the signals of the process to others.

    Otherwise a program that blocks SIGTERM in its own threads, to take it by ``sigwait``, dies of
    it in ours. As in native/runtime/thread.c.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    faults = {getattr(signal, name) for name in _FAULTS if hasattr(signal, name)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


with signals_blocked():
    import numpy as np  # noqa: F401
