"""Work that a call may do at once and an await gives way in: written once, as a generator.

Here: driving such a generator to its end, at once or in slices. Not here: what is done in steps
(plan.py, graph_memory.py, allocator/).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Final, TypeAlias, TypeVar

import anyio.lowlevel

from aggml.native import _native

__all__ = ["Steps", "finish", "give_way"]

T = TypeVar("T")

#: Yields wherever it may pause, at most some 50 us of work apart; returns its result.
Steps: TypeAlias = Generator[None, None, T]

# A checkpoint costs 5 to 20 us, a loop is to be held for 0.5 ms at most.
SLICE_S: Final = 0.4e-3


def finish(steps: Steps[T]) -> T:
    """Do all of it now."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def give_way(steps: Steps[T]) -> T:
    """Do it in slices of 0.4 ms, with a checkpoint before each.

    Cancellation: closes the generator where it is.
    """
    with closing(steps):
        while True:
            await anyio.lowlevel.checkpoint()
            end = _native.now() + SLICE_S
            try:
                while _native.now() < end:
                    next(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result
