"""Finds an order of the operations of several threads that explains all results read.

An event changes a state, which is a list of arrays, and reads arrays of it. Events of one thread
keep their order; events of concurrent threads may interleave in any way, but all results must agree
with one interleaving. Not here: events (schedules.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml import Future

    Array = np.ndarray[Any, Any]
    State = list[Array]

__all__ = ["Event", "agree"]


class Event(NamedTuple):
    """An operation that was queued.

    Attributes:
        what: describes the operation in the message of a failure.
        apply: changes a state; returns the arrays that the operation must read from it.
        futures: of the arrays that it did read; a result is one array or a list.
    """

    what: str
    apply: Callable[[State], list[Array]]
    futures: tuple[Future[Any], ...] = ()

    def seen(self) -> list[Array]:
        """The arrays that were read."""
        found: list[Array] = []
        for future in self.futures:
            result = future.result()
            found += result if isinstance(result, list) else [result]
        return found


def _key(state: State) -> bytes:
    return b"".join(x.tobytes() for x in state)


def _after(event: Event, state: State) -> tuple[State, list[Array]]:
    copy = [x.copy() for x in state]
    wanted = event.apply(copy)
    return copy, wanted


def _orders(
    rows: Sequence[list[Event]], states: dict[bytes, State]
) -> tuple[dict[bytes, State], str]:
    """All states that some order of these rows leads to; and how the last order failed."""
    told = ""
    todo = {(tuple(0 for _ in rows), key): state for key, state in states.items()}
    done: dict[bytes, State] = {}
    while todo:
        (at, key), state = todo.popitem()
        if all(i == len(row) for i, row in zip(at, rows, strict=True)):
            done[key] = state
            continue
        for r, row in enumerate(rows):
            if at[r] == len(row):
                continue
            event = row[at[r]]
            after, wanted = _after(event, state)
            seen = event.seen()
            if all(np.array_equal(a, b) for a, b in zip(wanted, seen, strict=True)):
                then = tuple(i + (k == r) for k, i in enumerate(at))
                todo[then, _key(after)] = after
            else:
                told = f"{event.what}\n  wanted {_show(wanted)}\n  seen   {_show(seen)}"
    return done, told


def _show(arrays: list[Array]) -> str:
    return str([x.astype(int).tolist() for x in arrays])


def agree(
    events: Sequence[Sequence[list[Event]]], n_cells: int, size: int
) -> tuple[int, str] | None:
    """Search for an order of the events that explains all arrays that were read.

    Args:
        events: one entry after the other; an entry has a row for each of the threads that ran
            beside each other.
        n_cells: arrays of a state.
        size: elements of each array.

    Returns:
        None if there is such an order; else the index of the first entry that no order explains,
        and the arrays that were wanted and seen.
    """
    start = [np.zeros(size, np.float32) for _ in range(n_cells)]
    states = {_key(start): start}
    for i, rows in enumerate(events):
        if rows:
            states, told = _orders(rows, states)
            if not states:
                return i, told
    return None
