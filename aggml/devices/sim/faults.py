"""Faults: the queue of failures that a test asked a simulated device for.

Not here: failing the operations (__init__.py).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from aggml.process.locks import new_rlock

__all__ = ["Faults", "Struck"]

#: Which operations a fault strikes.
Struck: TypeAlias = Literal["alloc", "transfer", "compute", "any"]


class Faults:
    """Failures in the order in which they were asked for; false if there are none."""

    def __init__(self) -> None:
        self._lock = new_rlock()
        self._waiting: list[tuple[int, Struck, BaseException]] = []  # operations still to pass

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, k: int, struck: Struck, cause: BaseException) -> None:
        """Have the ``k``-th of these operations from now on fail; 0 is the next one."""
        with self._lock:
            self._waiting.append((k, struck, cause))

    def next(self, operation: Struck) -> BaseException | None:
        """Count one operation; returns the exception with which it must fail, or None."""
        with self._lock:
            kept, found = [], None
            for left, struck, cause in self._waiting:
                if struck not in ("any", operation):
                    kept.append((left, struck, cause))
                elif left > 0 or found is not None:
                    kept.append((max(0, left - 1), struck, cause))
                else:
                    found = cause
            self._waiting = kept
            return found

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._waiting = []
