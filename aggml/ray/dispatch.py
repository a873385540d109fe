"""Keeps all stages busy: several steps are under way, each with a share of the slots that run.

An ask is the tokens of one slot for a step. Here: which asks go into one step. The engine of one
machine cannot do it: its steps have all sequences, and stand behind each other on one device. A
pipeline needs as many steps at a time as stages, each with other sequences. Not here: who has a
slot, which the policy decides (engine.py), connections (wire.py), losses (decoder.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

from aggml.ray.errors import LOST, StageLost
from aggml.ray.futures import post_here
from aggml.ray.step import PipelineStep
from aggml.ray.wire import raise_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.ray.stages import Stages
    from aggml.ray.step import Ask
    from aggml.ray.wire import SentStep

__all__ = ["Dispatcher", "PendingAsk", "ResultForm"]

Array = Any  # numpy's, of one of several types


@dataclass(frozen=True, slots=True)
class ResultForm:
    """Which results are wanted: the ``best`` logits, 0 for all; or the hidden states."""

    best: int = 0
    hidden: bool = False

    def goes_with(self, other: ResultForm) -> bool:
        """Whether one step can give both."""
        return self.hidden == other.hidden and (self.best > 0) == (other.best > 0)


@dataclass(eq=False, slots=True)
class PendingAsk:
    """An ask that waits or is under way, and its results."""

    ask: Ask
    form: ResultForm
    dispatcher: Dispatcher
    epoch: int  # of its turn
    done: anyio.Event = field(default_factory=anyio.Event)
    flight: _Flight | None = None  # None: it waits
    results: list[Array] | None = None
    error: BaseException | None = None

    async def result(self) -> list[Array]:
        """Wait for this ask's rows of what `StageActor.step` of the last stage returned.

        Raises:
            StageLost: a stage was lost while it had the step.
            Exception: the exception that a stage raised.

        Cancellation: only ends the wait; `withdraw` takes the ask back.
        """
        await self.done.wait()
        if self.error is not None:
            raise self.error
        assert self.results is not None
        return self.results

    def withdraw(self) -> None:
        """Take the ask back. A step for which nobody waits any more is cancelled on all stages."""
        self.dispatcher.withdraw(self)


@dataclass(eq=False, slots=True)
class _Flight:
    """A step under way."""

    asked: list[PendingAsk]
    waiting: int
    sent: SentStep | None = None


class Dispatcher:
    """Sends asks through the stages. All of it runs on one event loop.

    Args:
        stages: the stages, with the connections to them.
        most: how many steps may be under way.
    """

    def __init__(self, stages: Stages, most: int) -> None:
        self._stages = stages
        self._most = most
        self._waiting: list[PendingAsk] = []
        self._flights: set[_Flight] = set()
        self._post: Callable[[Callable[[], None]], None] | None = None

    def queue(self, ask: Ask, form: ResultForm) -> PendingAsk:
        """Send an ask as soon as there is a place for it."""
        asked = PendingAsk(ask, form, self, self._stages.epoch)
        self._waiting.append(asked)
        self._send()
        return asked

    def withdraw(self, asked: PendingAsk) -> None:
        """Take an ask back; does nothing if it is done."""
        flight = asked.flight
        if flight is None:
            if asked in self._waiting:
                self._waiting.remove(asked)
        elif not asked.done.is_set():
            flight.waiting -= 1
            if not flight.waiting and flight.sent is not None:
                flight.sent.cancel()

    def _send(self) -> None:
        if self._post is None:
            self._post = post_here()
        self._drop_stale()
        while self._waiting and len(self._flights) < self._most:
            self._fly(self._share())

    def _drop_stale(self) -> None:
        """Fail asks that waited while stages were restarted: their turns are unknown there now."""
        epoch = self._stages.epoch
        for asked in self._waiting:
            if asked.epoch != epoch:
                asked.error = StageLost("the stages were restarted before the step began")
                asked.done.set()
        self._waiting = [x for x in self._waiting if x.epoch == epoch]

    def _share(self) -> list[PendingAsk]:
        """The asks of the next step.

        A piece of a prompt goes alone. Asks of one token go together, but a step takes only its
        equal share of all asks: one large step would be at one stage at a time, and leave all other
        stages idle.
        """
        first = self._waiting[0]
        together = [x for x in self._waiting if _fits(x, first)] if _fits(first, first) else [first]
        in_flight = sum(len(flight.asked) for flight in self._flights)
        share = -(-(len(together) + in_flight) // self._most)
        taken = together[:share]
        self._waiting = [x for x in self._waiting if x not in taken]
        return taken

    def _fly(self, asked: list[PendingAsk]) -> None:
        form = ResultForm(max(x.form.best for x in asked), asked[0].form.hidden)
        step = PipelineStep(self._stages.epoch, tuple(x.ask for x in asked), form.best, form.hidden)
        flight = _Flight(asked, len(asked))
        for x in asked:
            x.flight = flight
        self._flights.add(flight)
        post = self._post
        assert post is not None

        def land(found: Callable[[], list[Array]]) -> None:
            post(lambda: self._land(flight, found))

        # `landed` must be called in any case, else the step would count as under way for ever.
        wire = self._stages.wire
        if wire is None:
            land(raise_later(StageLost("the stages are not connected")))
            return
        try:
            flight.sent = wire.send(step, land)
        except StageLost as error:
            land(raise_later(error))

    def _land(self, flight: _Flight, found: Callable[[], list[Array]]) -> None:
        self._flights.discard(flight)
        try:
            _deal(flight.asked, found())
        except BaseException as error:  # of any class: the waiting tasks must get it
            for asked in flight.asked:
                asked.error = self._stages.loss_of(error) if isinstance(error, LOST) else error
        for asked in flight.asked:
            asked.done.set()
        self._send()


def _fits(asked: PendingAsk, first: PendingAsk) -> bool:
    """Whether an ask may go into one step with ``first``."""
    return len(asked.ask.ids) == 1 and asked.form.goes_with(first.form)


def _deal(asked: list[PendingAsk], found: list[Array]) -> None:
    """Give each ask its rows."""
    best = max(x.form.best for x in asked)
    rows = [1 if x.ask.last else len(x.ask.ids) for x in asked]
    arrays = [np.asarray(x).reshape(sum(rows), -1) for x in found]
    at = 0
    for x, n in zip(asked, rows, strict=True):
        mine = [array[at : at + n] for array in arrays]
        at += n
        if x.form.best < best:
            order = np.argsort(-mine[1], axis=1, kind="stable")[:, : x.form.best]
            mine = [np.take_along_axis(array, order, axis=1) for array in mine]
        x.results = mine
