"""Signals: threads that the package causes to start leave signals to the program.

Importing this module imports numpy with signals blocked, because numpy's OpenBLAS starts threads
immediately. Not here: native threads (native/runtime/thread.c).
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["signals_blocked"]

#: Signals that a thread raises by its own fault are not blocked, for faulthandler.
_FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Threads started in this block do not receive the signals of the process.

    A program may block SIGTERM in its own threads, to receive it by ``sigwait``. Without this
    block, SIGTERM would be delivered to our threads and kill it. See native/runtime/thread.c.
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
