"""Whether what was seen agrees with some order in which threads may have queued their operations.

Each event changes a state and says what it reads. Events of one thread come one after the other;
those of threads that ran beside each other in any order, the same one for all who look. Not here:
events (schedules.py).
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
        what: for who reads the failure.
        apply: changes a state, and gives the arrays that are read.
        futures: of those arrays; each of one, or of several.
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
    """All states that some order of these rows leads to; and how the last one failed."""
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
    """None if there is an order that explains all that was seen.

    Args:
        events: in order; of each, what each of several threads did, beside each other.
        n_cells: arrays of a state.
        size: of each.

    Returns:
        The index of the first that no order explains, and what was wanted.
    """
    start = [np.zeros(size, np.float32) for _ in range(n_cells)]
    states = {_key(start): start}
    for i, rows in enumerate(events):
        if rows:
            states, told = _orders(rows, states)
            if not states:
                return i, told
    return None
