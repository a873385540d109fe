"""Ends the process of a test that hangs, with the stack of every thread.

pytest-timeout would start a thread for each test, and so would pytest's faulthandler plugin: with
35,000 tests that takes minutes. Here one timer of the module faulthandler, which needs no GIL, is
set anew every few seconds. Tests marked ``timeout`` use pytest-timeout's timer instead. Not here:
what a process does between tests (workers.py).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time

__all__ = ["Watch"]

PERIOD = 5.0


class Watch:
    """The timer of a process.

    Args:
        seconds: the time limit of a test. A test may get up to `PERIOD` less, because a timer that
            was set less than `PERIOD` ago serves the next test, too.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # A duplicate of the real stderr: pytest redirects stderr to a file while a test runs.
        self._stderr = os.dup(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2)
        self._running = False
        self._set = 0.0  # when the timer was set; 0 if it is not set
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._rest, name="watch", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """A test begins."""
        self._running = True
        if self._set == 0 or time.monotonic() - self._set > PERIOD:
            self._set = time.monotonic()
            faulthandler.dump_traceback_later(self._seconds, file=self._stderr, exit=True)

    def end(self) -> None:
        """The test has ended. Its timer serves the next test; without one the thread stops it."""
        self._running = False

    def stop(self) -> None:
        """Stop the timer: no test is watched any more."""
        self._running = False
        self._set = 0
        faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Stop the timer and the thread, at the end of the run."""
        self._ended.set()
        self._thread.join()
        self.stop()
        os.close(self._stderr)

    def _rest(self) -> None:
        """The thread: stops the timer while the process waits for its next test."""
        while not self._ended.wait(PERIOD):
            if self._set and not self._running:
                self.stop()
