"""The end of all streams at exit, and failures of streams that are gone.

Not here: closing one stream (stream.py).
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

from aggml.errors import AllocFailed, InvalidArgument, InvalidState, Unsupported
from aggml.native import _native
from aggml.process.foreign import report, show, text_of
from aggml.stream.call_thread import join_callers, stop_callers
from aggml.stream.failures import exception_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["at_exit"]

_native.set_exceptions(InvalidState, AllocFailed, InvalidArgument, Unsupported)


def _tell_unseen(name: str, errors: Sequence[_native.Error]) -> None:
    for error in errors:
        report(f"[Stream] {name} is gone, and nobody saw {text_of(exception_of(error))}")


_native.set_unseen(_tell_unseen)


_endings: list[Callable[[], object]] = []


def at_exit(function: Callable[[], object]) -> None:
    """Register a function that a device needs at exit, called after all streams and pools ended."""
    if function not in _endings:
        _endings.append(function)


@atexit.register
def _shut_down() -> None:
    """Abort what runs, end the Python threads, join the workers: no thread is left behind.

    This includes streams, threads and pools that no Python object refers to any more. Failures that
    nobody has seen are logged. Functions that a stream still runs are given 2 s, all together.
    """
    try:
        _native.end_streams()
        callers = stop_callers()
        _native.stop_pools()
        for function in _endings:
            try:
                function()
            except Exception as error:
                report(f"[exit] {show(function)} failed", error)
        join_callers(callers, 2.0)
        for name, errors in _native.take_unseen():
            _tell_unseen(name, errors)
    finally:  # also after Ctrl-C: threads that come back later must not touch Python any more
        _native.shutdown()
