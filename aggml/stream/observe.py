"""Watchers: who wants to see each operation as it is enqueued (traces, the race checker).

Here: the one place where operations go to the native streams, and the list of who looks on. Not
here: what they make of it (trace.py, race.py). With nobody looking on it costs one test.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

from aggml.native import _native
from aggml.process.locks import new_rlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    Groups = Sequence[tuple[_native.Stream, list[_native.Desc]]]

__all__ = ["Watcher", "born", "observed", "submit", "submit_in_line", "watchers"]

#: Those who look on, in the order in which they came.
watchers: list[Watcher] = []
_lock = new_rlock()


class Watcher(Protocol):
    """Looks on; must not enqueue anything itself."""

    def before(self, groups: Groups) -> object:
        """Operations are about to be enqueued; what it returns comes back to `after`."""
        ...

    def after(self, groups: Groups, ops: list[list[_native.Op]], note: object) -> None:
        """They were; nothing of another thread that is watched came between."""
        ...

    def born(self, start: int, end: int, owner: object) -> None:
        """There is new memory at these addresses, for as long as ``owner`` lives."""
        ...

    def seen(self, ops: Sequence[_native.Op]) -> None:
        """The program learned that these are done."""
        ...


def submit(groups: Groups) -> list[list[_native.Op]]:
    """Enqueue, as `_native.submit` does, and show it to all watchers."""
    if not watchers:
        return _native.submit(groups)
    with _lock:
        now = list(watchers)
        notes = [w.before(groups) for w in now]
        ops = _native.submit(groups)
        for watcher, note in zip(now, notes, strict=True):
            watcher.after(groups, ops, note)
    return ops


def submit_in_line(
    groups: Groups, line: _native.Lineup, use: _native.Use
) -> list[list[_native.Op]]:
    """The same after what ``line`` says that ``use`` has to wait for; the waits have no Ops."""
    with _lock if watchers else nullcontext():
        now = list(watchers)
        while True:  # until nobody was faster: what another thread enqueues meanwhile counts, too
            waits, ahead = line.before(use, bool(now))  # who looks on has not seen what is over
            first = [(stream, [_native.wait(other, upto)]) for stream, other, upto in waits]
            both = [*first, *groups]
            notes = [w.before(both) for w in now]
            ops = _native.submit_in_line(both, line, use, ahead)
            if ops is None:
                continue
            for watcher, note in zip(now, notes, strict=True):
                watcher.after(both, ops, note)
            return ops[len(first) :]


def born(start: int, end: int, owner: object) -> None:
    """Memory was allocated; what watchers know of these addresses is of others before."""
    with _lock:
        for watcher in watchers:
            watcher.born(start, end, owner)


def observed(ops: Sequence[_native.Op]) -> None:
    """The program learned that these operations are done: what it does next comes after them."""
    with _lock:
        for watcher in watchers:
            watcher.seen(ops)
