"""Lines: lines of standard input, read so that no Ctrl-C is missed.

A signal that arrives after Python's last look for signals, but before the read begins, does not end
that read: the program would wait for a line, and the signal for the program. So the read waits for
input and for signals at a time. Here: that. Not here: what Ctrl-C does (chat.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

import click

__all__ = ["Lines"]

AT_A_TIME = 1 << 16  # bytes


class Lines:
    """Lines of standard input.

    A terminal is read by `input`, so that its line can be edited. What has no file descriptor, as
    in tests, is read as Python reads it.
    """

    def __init__(self) -> None:
        self._read = b""  # and not yet returned
        self._ended = False

    def line(self, prompt: str = "") -> str | None:
        """The next line without its end; None: the input has ended.

        Only the main thread may call it.
        """
        if sys.stdin.isatty():
            try:
                return input(prompt)
            except EOFError:
                return None
        if prompt:
            click.echo(prompt, nl=False)
        try:
            source = sys.stdin.fileno()
        except (OSError, ValueError):
            source = -1
        if source < 0 or os.name == "nt":  # there `select` takes sockets alone
            text = sys.stdin.readline()
            return text.rstrip("\r\n") if text else None
        while b"\n" not in self._read and not self._ended:
            _wait(source)
            piece = os.read(source, AT_A_TIME)
            self._read += piece
            self._ended = not piece
        if not self._read:
            return None
        found, _, self._read = self._read.partition(b"\n")
        return found.decode(sys.stdin.encoding, "replace").rstrip("\r")


def _wait(source: int) -> None:
    """Wait until a file descriptor can be read; handlers of signals run meanwhile."""
    out, into = os.pipe()
    for end in (out, into):
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    try:
        while source not in select.select([source, out], [], [])[0]:
            _pass_on(out, before)
    finally:
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        _pass_on(out, before)
        os.close(out)
        os.close(into)


def _pass_on(out: int, to: int) -> None:
    """Tell the one who is usually told of signals, an event loop; -1: nobody is."""
    with contextlib.suppress(BlockingIOError):  # no signal came; or the other pipe is full
        signals = os.read(out, AT_A_TIME)
        if to != -1:
            os.write(to, signals)
