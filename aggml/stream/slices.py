"""Work that runs in one go in a call, or in slices in an await: written once, as a generator.

Here: running such a generator to its end, in one go or in slices; parts of the work that run on
another thread (`Away`). Not here: the work itself (plan/, memory/graph_memory.py,
memory/allocator/).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import anyio.lowlevel

from aggml.native import _native

__all__ = ["ATTEMPTS", "IN_SLICES", "Away", "Sliced", "at_once", "finish", "give_way"]

P = ParamSpec("P")
T = TypeVar("T")


class Away(ABC):
    """Work that may take long and cannot be sliced, such as getting memory from a driver."""

    @abstractmethod
    def now(self) -> None:
        """Do it in this thread; an exception is kept for the step that yielded it."""

    @abstractmethod
    async def later(self) -> None:
        """Do it while the event loop goes on; an exception is kept as for `now`.

        Cancellation: abandons the work.
        """


#: A generator that yields wherever it may pause, at most about 50 us of work apart. It yields None,
#: or an `Away` that has to be done before it goes on, and returns its result. (Any: otherwise mypy
#: would require ``yield None``.)
Sliced: TypeAlias = Generator[Any, None, T]

# A checkpoint costs 5 to 20 us. A task whose sleep is over runs in the third turn of asyncio's
# loop, in the second of trio's. With slices of 0.4 ms a ticker was late by up to 1.6 ms.
SLICE_S: Final = 0.2e-3


#: Work in slices is a transaction: it takes down the facts on which it rests before the first
#: slice, compares them after the last one, and begins again if other tasks or threads have changed
#: them. So many times it is tried, and so often of these in slices. Other tasks of the loop cannot
#: interrupt an attempt in one go; only other threads can.
ATTEMPTS: Final = 16
IN_SLICES: Final = 4


def finish(steps: Sliced[T]) -> T:
    """Do all steps now; returns their result."""
    while True:
        try:
            away: Away | None = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if away is not None:
            away.now()


def at_once(function: Callable[P, Sliced[T]]) -> Callable[P, T]:
    """Make a function of steps an ordinary one: it does all steps now and returns their result."""

    @functools.wraps(function)
    def now(*args: P.args, **kwargs: P.kwargs) -> T:
        return finish(function(*args, **kwargs))

    now.__doc__ = f"`{function.__name__}`, all at once."
    return now


async def give_way(steps: Sliced[T]) -> T:
    """Do all steps in slices of 0.2 ms, with a checkpoint before each slice.

    Cancellation: closes the generator at its present step.
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
