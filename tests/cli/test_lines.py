"""Lines of standard input: none is lost, and no signal is missed."""

from __future__ import annotations

import ctypes
import functools
import os
import select
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from aggml.cli.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def into(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A pipe to standard input: its end for writing."""
    out, into = os.pipe()
    with os.fdopen(out, encoding="utf-8") as source:
        monkeypatch.setattr(sys, "stdin", source)
        yield into


def test_lines_come_one_by_one_however_they_arrive(
    into: int, capsys: pytest.CaptureFixture[str]
) -> None:
    read = Lines()
    os.write(into, "a line\r\n\nthé".encode()[:-1])
    assert read.line("> ") == "a line"
    assert read.line("> ") == ""
    later = threading.Thread(target=os.write, args=(into, "é end\nlast".encode()[1:]))
    later.start()
    assert read.line("> ") == "thé end"
    later.join()
    os.close(into)
    assert read.line() == "last"
    assert read.line() is None
    assert capsys.readouterr().out == "> > > "


def test_a_signal_just_before_the_wait_is_seen(into: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_signal = ctypes.CDLL(None)["raise"]
    seen: list[int] = []
    real = select.select

    def handle(*_: Any) -> None:
        seen.append(len(seen))
        os.write(into, b"seen\n")

    def late(*args: Any) -> Any:
        if seen:
            return real(*args)
        # Both calls in C, one after the other: Python has no chance to run the handler between.
        steps = [functools.partial(raise_signal, signal.SIGUSR1), functools.partial(real, *args)]
        return list(map(functools.partial.__call__, steps))[1]

    monkeypatch.setattr("aggml.cli.lines.select.select", late)
    before = signal.signal(signal.SIGUSR1, handle)
    rescue = threading.Timer(20, os.write, (into, b"missed\n"))
    rescue.start()
    try:
        assert Lines().line() == "seen"
    finally:
        rescue.cancel()
        signal.signal(signal.SIGUSR1, before)
        os.close(into)
    assert seen == [0]


def test_an_event_loop_hears_of_signals_that_arrived_meanwhile(into: int) -> None:
    out, loop = os.pipe()
    os.set_blocking(loop, False)
    before = signal.set_wakeup_fd(loop)
    handled = signal.signal(signal.SIGUSR1, lambda *_: os.write(into, b"x\n"))
    sender = threading.Timer(0, os.kill, (os.getpid(), signal.SIGUSR1))
    sender.start()
    try:
        assert Lines().line() == "x"
    finally:
        sender.join()
        assert signal.set_wakeup_fd(before) == loop
        signal.signal(signal.SIGUSR1, handled)
        os.close(into)
    os.close(loop)
    assert os.read(out, 9) == bytes([signal.SIGUSR1])
    os.close(out)
