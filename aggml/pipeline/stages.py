"""Stages: what a pipeline is made of, its errors and its statistics.

Here: descriptions, checked when they are made; one may be used in any number of runs. Not here:
how they run (running.py).
"""

from __future__ import annotations

import functools
import math
import numbers
import operator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.errors import AggmlError, InvalidArgument
from aggml.process.foreign import short

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Fan", "Stage", "StageError", "StageStats", "as_stage", "fan", "show", "whole"]

MOST_WORKERS = 1 << 16  # of a stage: each is a task, whether there is an item for it or not
SHOWN = 80  # characters of an item in a message


class StageError(AggmlError, RuntimeError):
    """A stage failed on an item; ``__cause__`` says why.

    Attributes:
        stage: name of the stage; "source" if the source failed.
        item: what the stage's function was given: an item, with ``batch=`` the list of them; None
            for the source.
    """

    def __init__(self, stage: str, item: object, cause: BaseException) -> None:
        try:
            why = f"{type(cause).__name__}: {cause}".rstrip(": ")
        except Exception:  # an exception of somebody else, which has no text
            why = type(cause).__name__
        on = "" if stage == "source" else f" failed on the item {show(item)}"
        super().__init__(f"[pipeline] the stage {stage!r}{on or ' failed'}: {why}")
        self.stage: str = stage
        self.item: object = item
        self.__cause__: BaseException | None = cause


def show(item: object) -> str:
    """Show a value in a message: short, in one line, whatever it is."""
    return short(item, SHOWN)


@dataclass(frozen=True, slots=True)
class StageStats:
    """What a stage has done so far.

    Attributes:
        taken: items that its workers took.
        given: items that it gave to the next stage.
        waiting: items that wait for it now.
        busy_seconds: time in its function, summed over its workers.
        failed: calls of its function that failed for good.
        latency: mean seconds from an item's arrival at the stage to its result.
    """

    taken: int
    given: int
    waiting: int
    busy_seconds: float
    failed: int = 0
    latency: float = 0.0


class Stage:
    """An async function that works on items of a pipeline, and how it does so.

    Args:
        fn: takes an item. ``async def`` with a result: it is the next item; None drops the item. An
            async generator, or a function that returns one: each of its results is an item. With
            ``batch``: takes a list of items and returns as many results.
        workers: how many calls run at the same time.
        batch: the most items of a call; None: items are not collected.
        within: seconds for which the first item of a batch waits for others.
        buffer: how many items may wait for this stage; None: as `run` says.
        timeout: seconds for a call, or for each result of a generator; None: no limit.
        retries: how often a call that failed is made again. A generator is called again only if it
            has given nothing.
        name: for errors, statistics and drawings; None: that of the function.

    Raises:
        InvalidArgument: one of them has another type or is out of its range.
    """

    __slots__ = ("batch", "buffer", "fn", "name", "retries", "timeout", "within", "workers")

    def __init__(
        self,
        fn: Callable[[Any], Any],
        *,
        workers: int = 1,
        batch: int | None = None,
        within: float = 0.005,
        buffer: int | None = None,
        timeout: float | None = None,
        retries: int = 0,
        name: str | None = None,
    ) -> None:
        given: object = fn
        if not callable(given) or isinstance(given, (Stage, Fan)):
            raise InvalidArgument(f"[Stage] fn is {show(fn)}, expected an async function")
        named: object = name
        if named is not None and not (isinstance(named, str) and named):
            raise InvalidArgument(f"[Stage] name is {show(name)}, expected a text")
        self.fn: Callable[[Any], Any] = fn
        self.name: str = _name_of(fn) if name is None else name
        self.workers: int = whole("Stage", "workers", workers, 1, MOST_WORKERS)
        self.batch: int | None = None if batch is None else whole("Stage", "batch", batch, 1)
        self.within: float = _seconds("within", within)
        self.buffer: int | None = None if buffer is None else whole("Stage", "buffer", buffer, 1)
        self.timeout: float | None = None if timeout is None else _seconds("timeout", timeout)
        self.retries: int = whole("Stage", "retries", retries, 0)

    def __repr__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        batch = "" if self.batch is None else f", batch of {self.batch}"
        return f"<Stage {self.name}: {workers}{batch}>"


class Fan:
    """Several stages that each get every item: see `fan`."""

    __slots__ = ("branches",)

    def __init__(self, branches: tuple[Stage | Fan, ...]) -> None:
        self.branches: tuple[Stage | Fan, ...] = branches

    def __repr__(self) -> str:
        return f"<Fan of {', '.join(map(repr, self.branches))}>"


def fan(*stages: Stage | Fan | Callable[[Any], Any]) -> Fan:
    """Give each item to all these stages; the result is the tuple of their results, in order.

    An item that one of them drops is dropped. None of them may be a generator: its results would
    have no place in the tuple.

    Raises:
        InvalidArgument: there is no stage, or something else is among them.
    """
    if not stages:
        raise InvalidArgument("[fan] there is no stage, expected at least one")
    return Fan(tuple(as_stage("fan", stage) for stage in stages))


def as_stage(place: str, given: object) -> Stage | Fan:
    """A bare function as the stage that it stands for."""
    if isinstance(given, (Stage, Fan)):
        return given
    if not callable(given):
        raise InvalidArgument(
            f"[{place}] a stage is {show(given)}, expected an async function, Stage or fan"
        )
    return Stage(given)


def whole(
    place: str, name: str, value: Any, least: int, most: int | None = None  # noqa: ANN401
) -> int:  # fmt: skip
    """A whole number of Python or numpy, within ``least`` and ``most``."""
    found = None
    if not isinstance(value, (bool, np.bool_)):
        with suppress(TypeError):
            found = operator.index(value)
    if found is None or found < least or (most is not None and found > most):
        wanted = f"at least {least}" if most is None else f"{least} to {most}"
        raise InvalidArgument(
            f"[{place}] {name} is {show(value)}, expected a whole number of {wanted}"
        )
    return found


def _seconds(name: str, value: object) -> float:
    found = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_)):
        with suppress(OverflowError):
            found = float(value)
    if not math.isfinite(found) or found < 0:
        raise InvalidArgument(f"[Stage] {name} is {show(value)}, expected seconds, not negative")
    return found


def _name_of(fn: object) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) and name else type(fn).__name__
