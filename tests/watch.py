"""Ends the process of a test that hangs, with the stack of every thread.

pytest-timeout would start a thread for each test, and pytest's faulthandler another: with 35,000
tests these are minutes. Here one timer of faulthandler, which needs no GIL, is set every few
seconds. Tests with a mark ``timeout`` have a timer of pytest-timeout. Not here: what a process does
between tests (workers.py).
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
    """One for each process.

    Args:
        seconds: what a test may take; it may get up to `PERIOD` less.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # pytest puts a file in place of stderr while a test runs.
        self._stderr = os.dup(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2)
        self._running = False
        self._set = 0.0  # when the timer was set; 0: it is not
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
        """It has ended; the timer is left to the next test, or to the thread below."""
        self._running = False

    def stop(self) -> None:
        """No test is watched any more."""
        self._running = False
        self._set = 0
        faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """At the end of the run."""
        self._ended.set()
        self._thread.join()
        self.stop()
        os.close(self._stderr)

    def _rest(self) -> None:
        """Stop the timer where a process waits for its next test."""
        while not self._ended.wait(PERIOD):
            if self._set and not self._running:
                self.stop()
