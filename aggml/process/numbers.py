"""Numbers that are given out once each, to whatever thread.

`itertools.count` gives one of them to two threads at times where Python has no GIL (until 3.14).
"""

from __future__ import annotations

from aggml.process.locks import new_lock

__all__ = ["Numbers"]


class Numbers:
    """``next()`` gives ``first``, and then each time one more."""

    __slots__ = ("_lock", "_next")

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._lock = new_lock()

    def __next__(self) -> int:
        with self._lock:
            number = self._next
            self._next = number + 1
        return number
