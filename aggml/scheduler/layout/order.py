"""Order: which action has to wait for which stream, from what each of them reads and writes.

Here: a pure function over actions in program order. Not here: what the actions are (script.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["order_splits"]

S = TypeVar("S")


def order_splits(
    actions: Sequence[tuple[S, set[Hashable], set[Hashable]]],
    before: Sequence[tuple[S, set[Hashable]]] = (),
) -> list[list[S]]:
    """For each action, the streams that its own stream has to wait for, as few as possible.

    A wait covers all work enqueued on the other stream so far, and all work for which that stream
    had waited (vector clocks). So actions have to be enqueued in the order given.

    Args:
        actions: (stream, resources read, resources written); resources are compared by equality.
        before: (stream, resources) that may still be written when the first action comes.
    """
    last_write: dict[Hashable, tuple[S, int]] = {}
    readers: dict[Hashable, dict[S, int]] = {}
    known: dict[S, dict[S, int]] = {}  # what each stream comes after
    latest: dict[S, int] = {}
    for stream, writes in before:
        for resource in writes:
            last_write[resource] = (stream, 0)
        latest[stream] = 0
    waits: list[list[S]] = []
    for i, (stream, reads, writes) in enumerate(actions, 1):
        clock = known.setdefault(stream, {})
        needed: dict[S, int] = {}
        for resource in (*reads, *writes):
            if resource in last_write:
                other, at = last_write[resource]
                if at > needed.get(other, -1):
                    needed[other] = at
        for resource in writes:
            for other, at in readers.pop(resource, {}).items():
                if at > needed.get(other, -1):
                    needed[other] = at
        mine = []
        for other, at in sorted(needed.items(), key=lambda item: -item[1]):
            if other == stream or clock.get(other, -1) >= at:
                continue
            mine.append(other)
            for s, n in known.get(other, {}).items():
                if n > clock.get(s, -1):
                    clock[s] = n
            clock[other] = latest[other]
        waits.append(mine)
        for resource in writes:
            last_write[resource] = (stream, i)
        for resource in reads:
            readers.setdefault(resource, {})[stream] = i
        latest[stream] = i
    return waits
