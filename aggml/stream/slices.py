"""Work that a call may do at once and an await gives way in: written once, as a generator.

Here: driving such a generator to its end, at once or in slices; what is not done in slices but
elsewhere. Not here: what is done in steps (plan/, graph_memory.py, allocator/).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import anyio.lowlevel

from aggml.native import _native

__all__ = ["Away", "Sliced", "at_once", "finish", "give_way"]

P = ParamSpec("P")
T = TypeVar("T")


class Away(ABC):
    """Work that a step hands out, because it may take long in one piece: memory of a driver."""

    @abstractmethod
    def now(self) -> None:
        """Do it in this thread; what goes wrong is kept for the step that asked."""

    @abstractmethod
    async def later(self) -> None:
        """Do it while the loop goes on; likewise.

        Cancellation: abandons it.
        """


#: Yields wherever it may pause, at most some 50 us of work apart: None, or an `Away` that has to be
#: done before it goes on; returns its result. (Any: mypy would have each bare ``yield`` say None.)
Sliced: TypeAlias = Generator[Any, None, T]

# A checkpoint costs 5 to 20 us. Whose time to sleep is over is served in the third turn of
# asyncio's loop, in the second of trio's: with 0.4 ms a ticker was late by up to 1.6 ms.
SLICE_S: Final = 0.2e-3


def finish(steps: Sliced[T]) -> T:
    """Do all of it now."""
    while True:
        try:
            away: Away | None = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if away is not None:
            away.now()


def at_once(function: Callable[P, Sliced[T]]) -> Callable[P, T]:
    """The same function, which does all of its steps now: its result is what they return."""

    @functools.wraps(function)
    def now(*args: P.args, **kwargs: P.kwargs) -> T:
        return finish(function(*args, **kwargs))

    now.__doc__ = f"`{function.__name__}`, all at once."
    return now


async def give_way(steps: Sliced[T]) -> T:
    """Do it in slices of 0.2 ms, with a checkpoint before each.

    Cancellation: closes the generator where it is.
    """
    with closing(steps):
        while True:
            await anyio.lowlevel.checkpoint()
            end = _native.now() + SLICE_S
            away: Away | None = None
            try:
                while away is None and _native.now() < end:
                    away = next(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if away is not None:
                await away.later()
