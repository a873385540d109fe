"""Observers see each operation as it is enqueued: traces and the race checker are observers.

Here: the only place where operations go to the native streams, and the list of observers. Not
here: the observers (tracing/timeline.py, tracing/race.py). Without observers, an operation costs
one extra test of an empty list.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

from aggml.native import _native
from aggml.process.locks import new_rlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    Groups = Sequence[tuple[_native.Stream, list[_native.Desc]]]

__all__ = ["Observer", "notify_done", "notify_new_memory", "observers", "submit", "submit_in_line"]

#: All observers, in the order in which they came.
observers: list[Observer] = []
_lock = new_rlock()


class Observer(Protocol):
    """Sees operations; must not enqueue any itself."""

    def before(self, groups: Groups) -> object:
        """Called before operations are enqueued; `after` gets the return value as ``note``."""
        ...

    def after(self, groups: Groups, ops: list[list[_native.Op]], note: object) -> None:
        """Called after they were enqueued; no observed operation of another thread came between."""
        ...

    def on_new_memory(self, start: int, end: int, owner: object) -> None:
        """Called for new memory at these addresses, which lives as long as ``owner``."""
        ...

    def on_done(self, ops: Sequence[_native.Op]) -> None:
        """Called when the program has learned that these operations are done."""
        ...


def submit(groups: Groups) -> list[list[_native.Op]]:
    """Enqueue operations, as `_native.submit` does, and show them to all observers."""
    if not observers:
        return _native.submit(groups)
    with _lock:
        now = list(observers)
        notes = [w.before(groups) for w in now]
        ops = _native.submit(groups)
        for observer, note in zip(now, notes, strict=True):
            observer.after(groups, ops, note)
    return ops


def submit_in_line(
    groups: Groups, line: _native.Lineup, use: _native.Use
) -> list[list[_native.Op]]:
    """Enqueue operations after all work that ``use`` must wait for according to ``line``.

    Returns:
        The Ops of ``groups``, without those of the waits that were put before them.
    """
    with _lock if observers else nullcontext():
        now = list(observers)
        while True:  # until no other thread has enqueued something in between
            waits, ahead = line.before(use, bool(now))  # observers have not seen the ends
            first = [(stream, [_native.wait(other, upto)]) for stream, other, upto in waits]
            both = [*first, *groups]
            notes = [w.before(both) for w in now]
            ops = _native.submit_in_line(both, line, use, ahead)
            if ops is None:
                continue
            for observer, note in zip(now, notes, strict=True):
                observer.after(both, ops, note)
            return ops[len(first) :]


def notify_new_memory(start: int, end: int, owner: object) -> None:
    """Tell observers about new memory: earlier accesses at these addresses were to other memory."""
    with _lock:
        for observer in observers:
            observer.on_new_memory(start, end, owner)


def notify_done(ops: Sequence[_native.Op]) -> None:
    """Tell observers that the program knows these operations to be done.

    All later actions of the program come after these operations.
    """
    with _lock:
        for observer in observers:
            observer.on_done(ops)
