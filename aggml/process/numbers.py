"""Numbers: a counter that gives each number once, whichever thread asks.

On Python without the GIL (until 3.14), `itertools.count` sometimes gives a number to two threads.
"""

from __future__ import annotations

from aggml.process.locks import new_rlock

__all__ = ["Numbers"]


class Numbers:
    """``next()`` gives ``first``, then ``first + 1``, and so on."""

    __slots__ = ("_lock", "_next")

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._lock = new_rlock()  # a finalizer may ask, too, in a thread that is just asking

    def __next__(self) -> int:
        with self._lock:
            number = self._next
            self._next = number + 1
        return number
