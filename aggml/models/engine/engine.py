"""The engine: requests of any number of tasks share the steps of one model (docs/engine.md).

A step computes one token of each sequence that runs, and a chunk of the prompts that wait: one pass
over the weights serves both. Whoever waits for a token drives the engine: it has no task and no
thread. Here, from top to bottom: those who wait, a turn, what is next, who runs, memory, results.
Not here: who is admitted (policy.py), which tokens a step computes (steps.py), requests
(requests.py), keys, values and states (../kv/), the arguments of users (options.py).
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import numpy as np

import aggml
from aggml.models.decoder.batch import CHAINED, Batch, Best
from aggml.models.engine import policy, steps
from aggml.models.engine.requests import (
    BEST,
    Counters,
    PageUsage,
    choose_tokens,
    draws_of,
    view_of,
)
from aggml.models.errors import (
    DeadlineError,
    EngineError,
    FullError,
    NotFiniteError,
    TooLongError,
)
from aggml.models.kv.paging import PAGE, count_fitting
from aggml.models.kv.rows import ROWS_STEP
from aggml.process.locks import new_lock
from aggml.stream.parker import Parker
from aggml.stream.reactor import running_loop
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aggml import Future
    from aggml.models.decoder.batch import F32, Shape
    from aggml.models.decoder.drawing import Draws
    from aggml.models.engine.requests import TextRequest
    from aggml.models.engine.speculation import Settles, Speculation, Verification
    from aggml.models.engine.staging import Piece
    from aggml.models.kv.paging import PagedDecoder, Pages
    from aggml.models.kv.prefixes import Prefixes

__all__ = ["STAGED", "Engine", "staged_slots"]

_log = logging.getLogger("aggml")

STAGED: Final = 2  # slots whose rows all prompts share while they are processed
AHEAD: Final = 2  # steps that are queued on the device at a time
IDLE: Final = 10_000  # turns in which nothing happens, until that is an error
IDLE_COUNTED: Final = 0.005  # seconds between two steps beyond which nobody asked for the next one
IN_A_TURN: Final = 0.0003  # seconds for giving memory back in one turn
NO_TOKEN: Final = (
    "no token can be chosen, because all logits are NaN or -inf: the model's numbers overflow, or "
    "its file is damaged"
)


NOT_ALLOWED: Final = (
    "no token can be chosen: the grammar allows some, and logit_bias or min_tokens none of these"
)


def staged_slots(slots: int) -> int:
    """Slots that a decoder needs beyond those of its sequences: prompts of several share them."""
    return STAGED if slots > 1 else 0


@dataclass(frozen=True, slots=True, eq=False)
class _StepPlan:
    """A step that is to be queued."""

    batch: Batch
    shape: Shape
    draws: Draws | None
    follows: list[tuple[TextRequest, int]]
    running: list[TextRequest]
    chunk: list[tuple[TextRequest, Piece]]
    chained: bool = False  # its tokens are those that the step before it chose
    drafts: Mapping[TextRequest, list[int]] = field(default_factory=dict)  # to be verified


@dataclass(slots=True, eq=False)
class _Flight:
    """A step that is queued."""

    plan: _StepPlan
    future: Future[Any]
    begun: float
    watched: bool = False  # a task has waited for it, so it is known when it ended

    @property
    def requests(self) -> list[TextRequest]:
        return [*self.plan.running, *(x for x, _ in self.plan.chunk)]


class _HeldTokens(NamedTuple):
    """Tokens whose keys, values and states a free slot still has.

    Attributes:
        tokens: from position 0 on.
        about: the adapter with which they were computed, as of `AdapterChoice`.
    """

    tokens: list[int]
    about: str


class _Waiters:
    """Tasks of one event loop that wait for tokens.

    Attributes:
        awake: how many of them do not sleep.
        parked: where each of the others sleeps.
    """

    def __init__(self) -> None:
        self.awake = 0
        self.parked: dict[TextRequest, Parker] = {}


class Engine:
    """Runs any number of requests on one decoder.

    Args:
        decoder: has `staged_slots` more sequences than ``slots``.
        slots: sequences at a time.
        budget: pages for keys and values.
        prefixes: keeps the beginnings of prompts for later ones; None: only slots keep them.
        swap: bytes of host memory for sequences that were preempted; without room there they are
            computed again.
        chunk: tokens in one step, of running sequences and prompts together. While no sequence
            runs, a step takes at least 512 tokens of prompts.
        max_waiting: requests that wait because no slot or not enough memory is free; more are
            refused.

    Attributes:
        speculation: decides which drafts are verified; None: there are none. If the model has
            states, its steps have at most `PagedDecoder.widest` tokens of a sequence. It is set
            before the first request comes.
    """

    def __init__(
        self,
        decoder: PagedDecoder,
        *,
        slots: int,
        budget: int,
        prefixes: Prefixes | None = None,
        swap: int = 1 << 30,
        chunk: int = 128,
        max_waiting: int = 256,
    ) -> None:
        more = staged_slots(slots)
        if decoder.sequences < slots + more:
            raise ValueError(
                f"the decoder has {decoder.sequences} sequences, {slots} slots need {slots + more}"
            )
        self.decoder = decoder
        self.pages: Pages = decoder.pages(budget, slots)
        self.prefixes = prefixes
        self.counters: Counters = Counters()
        self.slots = slots
        # The last rows are for padding; no prompt reads them.
        self._rows = steps.Rows(
            decoder.ctx, slots, max(0, more * decoder.ctx - ROWS_STEP),
            states=decoder.has_states, grows=decoder.grows,
        )  # fmt: skip
        self._best = min(BEST, decoder.vocabulary)
        self._swap = swap
        self.speculation: Speculation | None = None
        self._swapped = 0
        self._prompt_time = 0.0, 0.0  # seconds and tokens of prompts, later ones count more
        self.chunk = chunk
        self.max_waiting = max_waiting
        self._numbers = itertools.count(1)
        self._arriving: deque[TextRequest] = deque()  # any thread appends, a turn takes them
        self._waiting: list[TextRequest] = []
        self._active: dict[int, TextRequest] = {}  # by slot
        self._held: dict[int, _HeldTokens] = {}  # free slot: the tokens whose keys it still has
        self._flights: deque[_Flight] = deque()
        self._plan: _StepPlan | None = None  # its graph has to be built before it can be queued
        self._building = [None]  # who pops it builds the graph of `_plan`
        self._shares = policy.Shares()
        self._rates = policy.Rates()
        self._landed = 0.0  # when the last step was taken note of
        self._pace = 1.0  # seconds that recent requests took, on average
        self._give_backs: deque[Callable[[], object]] = deque()
        self._touched = 0  # pages of shared rows that may have memory
        self._in_common: tuple[tuple[int, ...], int] = ((), 0)
        self._pending: Settles | None = None  # what prompts or drafts wait for, without a step
        self._arrays_next = False  # requests for arrays and for tokens take turns
        self._arrays_last = False
        self._zeros = np.zeros(0, np.uint8)
        self._turning = new_lock()  # who has it decides; nobody waits for it
        self._again = False
        self._events = 0  # counts what a turn has to look at, besides the end of a step
        self._looked_at = -1  # `_events` when a turn last found nothing more to queue
        self._loops: dict[object, _Waiters] = {}  # the event loops in which tasks wait
        self._parked: dict[TextRequest, Parker] = {}
        self._resting: list[Parker] = []  # of tasks that wait for a turn of another thread
        self._idlers: list[Parker] = []
        self._closing: str | None = None
        self._ended_with: BaseException | None = None  # as `cut_off` was given

    # -- for those who wait

    def submit(self, request: TextRequest) -> None:
        """Queue a request.

        Raises:
            FullError: the queue is full, or the engine is stopping.
            TooLongError: the request could never run.
            DeadlineError: it would miss its deadline.
        """
        self.check([request])
        request.number = next(self._numbers)
        if request.constraint is not None:
            before = request.tokens[request.prompt - request.drawn :]
            request.constraint.begin(self._wake_resting, before)
        self._arriving.append(request)
        self._events += 1

    async def fetch(self, request: TextRequest) -> None:
        """Read what files have of the beginning of a prompt, before it is submitted.

        Cancellation: abandons the wait.
        """
        if self.prefixes is not None and self.prefixes.has_files and request.keeps:
            await self.prefixes.fetch(request.tokens, about=request.adapter.about)

    async def flush(self) -> None:
        """Wait until the beginnings that were stored so far are in files, if there are any."""
        if self.prefixes is not None and self.prefixes.has_files:
            await self.prefixes.flush()

    async def next(self, request: TextRequest) -> list[int]:
        """The tokens of a request that its task has not taken yet, at least one; none: it is over.

        Raises:
            EngineError: a step with this request failed, or the engine was stopped.
            DeadlineError: its deadline has passed.

        Cancellation: nothing is lost; `cancel` ends the request.
        """
        if request.deadline is None or request.has_news:
            await self._wait(request)
        else:
            with anyio.move_on_after(max(0.0, request.deadline - time.monotonic())):
                await self._wait(request)
            if not request.has_news:
                self.cancel(request)
                self.counters.late += 1
                raise _late(request)
        first = request.prompt + request.given
        tokens = request.tokens[first:]
        request.given += len(tokens)
        if not tokens and request.error is not None:
            error = request.error
            if isinstance(error, (EngineError, aggml.InvalidState)):
                raise error
            raise EngineError(f"[{request.place}] the computation failed: {error}") from error
        return tokens

    async def _wait(self, request: TextRequest) -> None:
        """Wait until a request has news, and drive the engine meanwhile.

        In each event loop that waits, at least one task drives. So nobody relies on a loop that has
        stopped, or whose thread does something else.
        """
        await CHECKPOINT
        if request.has_news:
            return
        loop = running_loop()
        here = self._loops.setdefault(loop, _Waiters())  # only tasks of this loop use it
        here.awake += 1
        idle = 0
        try:
            while not request.has_news:
                if self._needs_turn:
                    self.turn()
                    if request.has_news:
                        break
                if (self._plan is not None or self._drafts_need_graph) and await self._build():
                    idle = 0
                    continue
                flight = self._first_flight()
                if here.awake > 1 and (flight is None or request.slot is None):
                    await self._park(here, request)
                elif flight is not None:
                    flight.watched = True
                    await flight.future.wait_until_done()
                elif self._pending is not None:
                    await self._pending.wait_until_done()
                elif await self._rest():
                    idle += 1
                    if idle > IDLE:
                        raise EngineError(f"[{request.place}] the engine does not go on: {self!r}")
                    continue
                idle = 0
        finally:
            here.awake -= 1
            if not here.awake:
                if here.parked:
                    next(iter(here.parked.values())).unpark()
                else:
                    del self._loops[loop]

    async def _park(self, here: _Waiters, request: TextRequest) -> None:
        """Sleep until the request has news or its task is needed to drive the engine."""
        parker = self._parked[request] = here.parked[request] = Parker()
        here.awake -= 1
        try:
            # First in, then look: whoever has news for it looks for its parker afterwards.
            if not request.has_news:
                await parker.park()
        finally:
            here.awake += 1
            del here.parked[request]
            self._parked.pop(request, None)

    async def _rest(self) -> bool:
        """Wait for what another thread or the device does before a step can be queued.

        Returns:
            Whether there was nothing of that kind.
        """
        parker = Parker()
        self._resting.append(parker)
        try:
            # First in, then look: who ends a turn, or has computed a mask, wakes those who rest.
            if self._turning.locked() or not self._building or self._only_masks_missing():
                await parker.park()
                return False
        finally:
            self._resting.remove(parker)
        if self.decoder.is_moving:
            await self.decoder.wait_for_transfer()
            return False
        await CHECKPOINT
        return not self._give_backs

    def _only_masks_missing(self) -> bool:
        """Whether nothing can go on before a mask is known."""
        if self._flights or self._give_backs or self.decoder.is_moving:
            return False
        late = [x for x in list(self._active.values()) if x.late is not None and not x.over]
        return bool(late) and all(x.awaits_mask for x in late)

    def _wake_resting(self) -> None:
        self._events += 1
        for parker in list(self._resting):
            parker.unpark()

    def _notify(self, request: TextRequest) -> None:
        parker = self._parked.pop(request, None)
        if parker is not None:
            parker.unpark()

    def _wake_idlers(self) -> None:
        if self._idlers and not (self.queued or self.active):
            for parker in list(self._idlers):
                parker.unpark()

    async def _build(self) -> bool:
        """Build the graph that the next step needs, unless somebody else does; whether it did."""
        plan = self._plan
        if plan is None and not self._drafts_need_graph:
            return False
        try:
            self._building.pop()
        except IndexError:
            return False
        try:
            if plan is None:
                await self._prepare_drafts()
                return True
            if self._plan is not plan:
                return True
            try:
                await self.decoder.prepare_step(plan.shape)
            except Exception as error:
                if plan.drafts:  # answers need no drafts
                    self._stop_speculating(error)
                else:
                    self._fail([*plan.running, *(x for x, _ in plan.chunk)], error)
            self._plan = None
        finally:
            self._building.append(None)
            self._wake_resting()
        return True

    @property
    def _drafts_need_graph(self) -> bool:
        return self.speculation is not None and self.speculation.drafter.unbuilt is not None

    async def _prepare_drafts(self) -> None:
        if self.speculation is not None:
            try:
                await self.speculation.drafter.prepare()
            except Exception as error:  # of any class: answers need no drafts
                self._stop_speculating(error)

    def cancel(self, request: TextRequest) -> None:
        """End a request; its slot is free in the next turn. From any thread, also a finalizer.

        A step in which nobody else has an interest is aborted.
        """
        if request.over:
            return
        request.left = True
        self._events += 1
        self._wake_idlers()
        for flight in list(self._flights):
            if all(x.over for x in flight.requests):
                flight.future.abort()

    def tidy(self) -> None:
        """Have the slots of requests that are over freed when their step ends, in this loop.

        Else they stay until the next request comes, if nobody waits any more.
        """
        self.turn()
        flights = list(self._flights)
        if flights and not self._loops:
            flights[-1].future.add_done_callback(lambda _: self.turn())

    @property
    def queued(self) -> int:
        """Requests that have no slot yet."""
        return sum(not x.over for x in self._without_slot())

    def _without_slot(self) -> list[TextRequest]:
        return [*self._waiting, *self._arriving]

    @property
    def page_usage(self) -> PageUsage:
        """Pages of keys and values."""
        pages = self.pages
        return PageUsage(pages.used, pages.stored, pages.budget)

    @property
    def active(self) -> int:
        """Requests that have a slot."""
        return sum(not x.over for x in list(self._active.values()))

    @property
    def owed(self) -> int:
        """Tokens of prompts and answers that are still to come, at most."""
        those = (*self._without_slot(), *list(self._active.values()))
        return sum(x.limit - x.computed for x in those if not x.over)

    def __repr__(self) -> str:
        return (
            f"<Engine {self.active} of {self.slots} slots, {self.queued} waiting, "
            f"{self.pages.used} of {self.pages.budget} pages>"
        )

    def stop(self, why: str = "the engine is stopping") -> None:
        """Refuse new requests."""
        self._closing = self._closing or why

    def cut_off(self, error: BaseException | None = None) -> None:
        """Refuse new requests and end the present ones: all of them fail with ``error``."""
        self.stop()
        self._ended_with = error
        self._events += 1
        self._fail(
            [*self._without_slot(), *list(self._active.values())],
            error or EngineError("[generate] the engine was stopped"),
        )
        for flight in list(self._flights):
            flight.future.abort()

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and wait for the present ones; returns whether all ended in time."""
        self.stop()
        with anyio.move_on_after(seconds):
            while self.queued or self.active:
                parker = Parker()
                self._idlers.append(parker)
                try:
                    if self.queued or self.active:
                        await parker.park()
                finally:
                    self._idlers.remove(parker)
        return not (self.queued or self.active)

    def check(self, requests: Sequence[TextRequest]) -> None:
        """Check that all of these requests may be queued now.

        Raises:
            FullError, TooLongError, DeadlineError: as `submit`.
        """
        for one in requests:
            if one.limit - 1 > self.decoder.ctx:
                raise TooLongError(
                    f"[{one.place}] {one.prompt} tokens of prompt and {one.max_tokens} more do not "
                    f"fit a context of {self.decoder.ctx}"
                )
            need = self._need(one)
            if need > self.pages.budget:
                raise TooLongError(
                    f"[{one.place}] {one.limit} tokens need {need} pages of {PAGE} positions, "
                    f"there are {self.pages.budget}: ask for fewer tokens, or give the model more "
                    "memory"
                )
        place = next((x.place for x in requests), "generate")  # none: max_tokens is 0
        needs = [self._need(x) for x in requests]
        most = count_fitting(needs, self.slots, self.pages.budget) + self.max_waiting
        if len(requests) > most:
            raise TooLongError(
                f"[{place}] the request asks for {len(requests)} answers, at most {most} are "
                f"taken: {most - self.max_waiting} that run and {self.max_waiting} that wait", "n",
            )  # fmt: skip
        if isinstance(self._ended_with, aggml.InvalidState):
            raise self._ended_with
        if self._closing is not None:
            raise FullError(f"[{place}] {self._closing}", 5)
        queue = [self._need(x) for x in self._without_slot() if not x.over]
        going = [x for x in list(self._active.values()) if not x.over]
        room = self.slots - len(going), self.pages.budget - sum(map(self._need, going))
        waiting = len(queue) + len(requests) - count_fitting([*queue, *needs], *room)
        if waiting > self.max_waiting:
            seconds = self._pace * len(queue) / self.slots
            self.counters.refused += 1
            raise FullError(
                f"[{place}] the queue is full: {max(0, waiting - len(requests))} requests wait "
                "already",
                max(1, min(60, round(seconds))),
            )
        for one in requests:
            self._check_deadline(one)

    def _check_deadline(self, one: TextRequest) -> None:
        if one.deadline is None:
            return
        left = one.deadline - time.monotonic()
        waiting = [x for x in self._without_slot() if not x.over and x.priority >= one.priority]
        going = [x for x in list(self._active.values()) if not x.over]
        ahead = [*(x for x in going if x.standing >= one.priority), *waiting]
        cached = (
            0 if self.prefixes is None else self.prefixes.match(one.tokens, about=one.adapter.about)
        )
        seconds = policy.seconds_to_answer(
            one.prompt - cached, one.max_tokens,
            before=sum(max(0, x.prompt - x.computed) for x in ahead),
            ends=[x.max_tokens - x.made for x in ahead],
            slots=self.slots, rates=self._rates,
        )  # fmt: skip
        if left <= 0 or (seconds is not None and seconds > left):
            self.counters.refused += 1
            why = "has passed" if left <= 0 else f"the answer is expected in {seconds:.2f} s"
            raise DeadlineError(
                f"[{one.place}] the deadline, {max(left, 0):.2f} s from now, cannot be met: {why}"
            )

    def _need(self, one: TextRequest) -> int:
        """Pages that a request takes."""
        return self.pages.need(min(one.limit, self.decoder.ctx))

    # -- a turn

    def turn(self) -> None:
        """Take note of steps that have ended, decide what comes next, and queue it.

        It never waits. If another task or thread is in a turn, that one looks again before it
        leaves.
        """
        self._again = True
        while self._again:
            if not self._turning.acquire(blocking=False):
                return
            try:
                self._again = False
                self._turn()
            except Exception as error:  # of any class: one turn must not end the engine
                _log.exception("a turn of the engine failed")
                self._fail([*self._active.values()] or self._waiting[:1], error)
            finally:
                self._turning.release()
                if self._resting:
                    self._wake_resting()

    @property
    def _needs_turn(self) -> bool:
        """Whether a turn may find something to do.

        Of 32 tasks that got their tokens from one step, the first one queues the next. Without this
        the other 31 looked through all requests once more, in vain.
        """
        flight = self._first_flight()
        return self._looked_at != self._events or flight is None or flight.future.done()

    def _first_flight(self) -> _Flight | None:
        try:
            return self._flights[0]  # another thread may take it away at any time
        except IndexError:
            return None

    def _turn(self) -> None:
        events = self._events  # what comes from now on is for the next turn
        while self._arriving:
            one = self._arriving.popleft()
            self._shares.enter(one.caller)
            self._waiting.append(one)
        self._land()
        self._choose_late()
        if not self._building:
            return  # the plan that is being made ready must stay as it is
        self._plan = self._pending = None
        self._drop_overdue()
        if not self._flights:
            # Rows are not used again before their memory was given back: that would wipe them.
            if not self._give_back():
                return
            self._clear()
            self._admit()
            plan = self._next()
            self._return_memory()
            if not self._give_back():
                return  # the next turn plans again
            if plan is None or not self._launch(plan):
                return
        while len(self._flights) < AHEAD:
            ahead = self._next_ahead()
            if ahead is None:
                break
            if not self._launch(ahead):
                return
        self._looked_at = events

    def _launch(self, plan: _StepPlan) -> bool:
        """Queue a step; False if its graph must be built before."""
        try:
            step = self.decoder.find_step(plan.shape)
            if step is None:
                self._plan = plan
                return False
            inputs = self.decoder.inputs_of(step, plan.batch, plan.draws, chained=plan.chained)
            future = self.decoder.run_step(step, inputs, plan.batch, chained=plan.chained)
        except Exception as error:
            if plan.chained and any(
                x.future.done() and x.future.exception() for x in self._flights
            ):
                # The step before has failed since `_land`, and a lost state is refused here: that
                # step's error is the one to tell, not the refusal.
                self._again = True
                return False
            self._fail([*plan.running, *(x for x, _ in plan.chunk)], error)
            return False
        self._flights.append(_Flight(plan, future, time.perf_counter()))
        for one, _ in plan.chunk:
            self._report(one)  # the first time: what of its prompt is known
        return True

    # -- what comes next

    def _next(self) -> _StepPlan | None:
        """The next step if none is under way."""
        going = [x for x in self._active.values() if not x.over and x.late is None]
        arrays = [x for x in going if x.result != "tokens"]
        text = [x for x in going if x.result == "tokens"]
        running = [x for x in text if x.decodes]
        if arrays and (self._arrays_next or not text):
            self._arrays_next, self._arrays_last = False, True
            return self._plan_arrays(arrays, running)
        prompts = sorted((x for x in text if not x.decodes), key=lambda x: (-x.standing, x.number))
        self._arrays_next = bool(arrays)
        if self._arrays_last and running and prompts:
            # Between two tokens of a running sequence there is at most one chunk of others.
            self._arrays_next = False
            prompts = []
        self._arrays_last = False
        if not running and not prompts:
            return None
        if not prompts:
            return self._plan_running(running)
        beside = 0
        if running:
            highest = max(x.slot for x in running if x.slot is not None)
            beside = min(steps.size(highest + 1, steps.BESIDE), self.slots)
        verification = self._verification(running, beside) if running else None
        more = 0 if verification is None else beside * (verification.width - 1)
        room = steps.room_for_prompts(self.chunk, beside + more, running=bool(running))
        if self._rows.states:
            chunk = self._first_piece(prompts, room)
        else:
            if len(prompts) == 1 and not self._waiting and len(prompts[0].tokens) <= room:
                one = prompts[0]
                if one.staged is None and not one.in_place:
                    one.in_place = True
                    self._begin(one)
            chunk = steps.next_prompts(
                prompts,
                room,
                self._rows,
                self.pages,
                self._begin,
                self._awaits,
                self._count_staged(prompts),
            )
        if not running and not chunk:
            return None
        intake = steps.plan_step(
            running, chunk, beside, self._rows, self._common(running), verification
        )
        return self._plan_of(intake, running, chunk, verification)

    def _verification(
        self, running: Sequence[TextRequest], beside: int | None = None
    ) -> Verification | None:
        """The drafts that the next step verifies.

        Args:
            running: sequences of that step.
            beside: for how many of them it has room beside a chunk of prompts; None: it has none.
        """
        if self.speculation is None:
            return None
        try:
            if beside is not None:
                room = self._rates.prompt, self.chunk // 2
                return self.speculation.verification(running, beside, room)
            _, n = steps.slots_of(running, self._rows)
            found = self.speculation.verification(running, n)
            if found is None:
                self._pending = self.speculation.drafter.pending
        except Exception as error:  # of any class: answers need no drafts
            self._stop_speculating(error)
            return None
        return found

    def _is_verified_next(self, running: Sequence[TextRequest]) -> bool:
        """Whether no step is to be queued ahead, because drafts are worth more."""
        if self.speculation is None:
            return False
        _, n = steps.slots_of(running, self._rows)
        try:
            return self.speculation.is_wanted(running, n)
        except Exception as error:  # of any class: answers need no drafts
            self._stop_speculating(error)
            return False

    def _stop_speculating(self, error: BaseException) -> None:
        speculation, self.speculation = self.speculation, None
        if speculation is not None and self._closing is None:
            _log.warning("drafts cannot be made any more: %s", error)

    def _plan_of(
        self,
        intake: steps.Intake,
        running: list[TextRequest],
        chunk: list[tuple[TextRequest, Piece]],
        verification: Verification | None = None,
    ) -> _StepPlan:
        batch = intake.batch
        drafts = {} if verification is None else verification.drafts
        if intake.every or not self.decoder.draws:
            # Among as many as the device would draw, so that a seed gives the same tokens.
            shape = batch.shape(max(self._best, self._among(intake.follows)), every=True)
            shape = self._with_hidden(shape)
            return _StepPlan(batch, shape, None, intake.follows, running, chunk, drafts=drafts)
        shape = self._with_hidden(batch.shape(0))
        among = self._among(intake.follows)
        drawn = draws_of(intake.follows, shape.logits, among, drafts=drafts)
        shape = drawn.add_to(shape)
        return _StepPlan(batch, shape, drawn, intake.follows, running, chunk, drafts=drafts)

    def _with_hidden(self, shape: Shape) -> Shape:
        """The shape of a step that brings hidden states, too, if drafts are made of them."""
        observed = self.speculation is not None and self.speculation.observer is not None
        return replace(shape, tapped=True) if observed else shape

    def _plan_running(self, running: list[TextRequest]) -> _StepPlan | None:
        """A step of running sequences alone.

        It verifies drafts where that pays. Else its tokens stay on the device as well, so that the
        next step can be queued before they are known.
        """
        verification = self._verification(running)
        if verification is not None:
            intake = steps.plan_step(running, [], 0, self._rows, 0, verification)
            return self._plan_of(intake, running, [], verification)
        if self.speculation is not None and self.speculation.waits:
            return None  # drafts are being made
        if not self._stays_on_device(running):
            slots = self._rows.slots
            intake = steps.plan_step(running, [], 0, self._rows, self._common(running))
            assert intake.batch.groups[0].ids.shape[0] <= slots
            return self._plan_of(intake, running, [])
        return self._chain(running, 0)

    def _stays_on_device(self, running: Sequence[TextRequest]) -> bool:
        """Whether the next tokens can be drawn without the host knowing the ones before."""
        if any(x.needs_logits for x in running):
            return False
        if self.decoder.draws:
            return all(x.adjuster is None or x.adjuster.is_constant for x in running)
        best = self._among((x, 0) for x in running) == 1  # of the best token every device knows
        return best and all(x.adjuster is None for x in running)

    def _chain(self, running: list[TextRequest], ahead: int) -> _StepPlan:
        first, n = steps.slots_of(running, self._rows)
        group = steps.next_tokens(running, first, n, self._rows, self._common(running), ahead)
        batch = Batch((group,))
        follows = [(x, x.slot - first) for x in running if x.slot is not None]
        shape = self._with_hidden(batch.shape(CHAINED))
        among = self._among(follows)
        draws = None
        if among > 1 or any(x.adjuster is not None for x in running):
            draws = draws_of(follows, n, among, ahead)
            shape = draws.add_to(shape)
        return _StepPlan(batch, shape, draws, follows, running, [], chained=ahead > 0)

    def _next_ahead(self) -> _StepPlan | None:
        """The step after the one that is under way, if it needs nothing that is not known yet."""
        last = self._flights[-1].plan
        ahead = len(self._flights)
        if last.chunk or not last.shape.chained or not last.running:
            return None
        for one in last.running:
            if one.over or one.made + ahead >= one.max_tokens:
                return None
            if one.computed + ahead >= self.decoder.ctx:
                return None
        if len(last.running) != sum(not x.over for x in self._active.values()):
            return None
        if self._waiting and self._decide():
            return None
        if self._is_verified_next(last.running):
            return None
        return self._chain(last.running, ahead)

    def _plan_arrays(self, requests: list[TextRequest], running: list[TextRequest]) -> _StepPlan:
        """A chunk of prompts of which logits or hidden states of all tokens are wanted."""
        requests.sort(key=lambda x: (-x.standing, x.number))
        those = [x for x in requests if x.result == requests[0].result]
        if those[0].result == "logits":
            those = those[:1]  # 512 tokens have 50 to 300 MB of logits
        room = steps.room_for_prompts(self.chunk, 0, running=bool(running))
        if self._rows.states:
            chunk = self._first_piece(those, room)
        else:
            if len(those) == 1 and those[0].staged is None:
                those[0].in_place = True
            chunk = steps.next_prompts(
                those,
                room,
                self._rows,
                self.pages,
                self._begin,
                self._awaits,
                self._count_staged(those),
            )
        intake = steps.plan_arrays(chunk, self._rows)
        hidden = those[0].result == "hidden"
        shape = replace(intake.batch.shape(0), hidden=hidden)
        return _StepPlan(intake.batch, shape, None, [], [], chunk)

    def _count_staged(self, prompts: Sequence[TextRequest]) -> list[tuple[int, int]]:
        """Shared rows of all prompts but these."""
        return [
            (x.staged, x.staged + len(x.tokens))
            for x in self._active.values()
            if x.staged is not None and x not in prompts
        ]

    def _among(self, follows: Iterable[tuple[TextRequest, int]]) -> int:
        """Among how many of the best tokens the device draws."""
        vocabulary = self.decoder.vocabulary
        most = max(
            (x.sampler.count_candidates(vocabulary) for x, _ in follows if x.sampler), default=1
        )
        if most == 1:
            return 1
        return self._best if most <= self._best else min(vocabulary, 1 << (most - 1).bit_length())

    def _common(self, running: Sequence[TextRequest]) -> int:
        """How many first tokens the running sequences have in common; looked at once."""
        if len(running) < 2 or self._rows.states:
            return 0
        key = tuple(x.number for x in running)
        if self._in_common[0] != key:
            self._in_common = key, steps.shared_prefix_length(running)
        return self._in_common[1]

    # -- who runs

    def _candidate(self, one: TextRequest) -> policy.RequestView:
        return view_of(one, self._shares, self._need(one))

    def _decide(self) -> policy.Decision:
        waiting = [x for x in self._waiting if not x.over]
        running = [x for x in self._active.values() if not x.over]
        slots = self.slots - len(running)
        if not policy.may_admit(
            (x.priority for x in waiting), (x.standing for x in running), slots
        ):
            return policy.Decision()
        going = [self._candidate(x) for x in running]
        return policy.admit(
            [self._candidate(x) for x in waiting], going, slots=slots,
            pages=self.pages.budget - sum(x.pages for x in going), now=time.monotonic(),
        )  # fmt: skip

    def _admit(self) -> None:
        if not self._waiting:
            return
        decision = self._decide()
        by_number = {x.number: x for x in (*self._waiting, *self._active.values())}
        for number in decision.preempted:
            self._preempt(by_number[number])
        for number, waited in zip(decision.admitted, decision.waited, strict=True):
            one = by_number[number]
            try:
                if not self._let_in(one, waited):
                    return
            except Exception as error:  # of any class: it is nobody else's
                _log.exception("a request could not be admitted")
                self._fail([one], error)

    def _let_in(self, one: TextRequest, waited: float) -> bool:
        """Give a request a slot; False if something has to be done before."""
        if one.snapshot is not None:
            if not one.snapshot.done:
                return False
            if one.snapshot.failed:
                self._drop_snapshot(one)
                one.begin_again()
            elif one.snapshot.seconds is not None and one.snapshot.n:
                # Out and in again: both ways are the same copy between memory and memory.
                took = 2 * one.snapshot.seconds / one.snapshot.n
                old = took if self._rates.copy is None else self._rates.copy
                self._rates = replace(self._rates, copy=old + 0.2 * (took - old))
        need = self._need(one)
        if need > self.pages.free:
            self._shrink()
        if need > self.pages.free and self.prefixes is not None:
            missing = (need - self.pages.free) * self.decoder.page_bytes()
            self.prefixes.shrink(max(0, self.prefixes.nbytes - missing))
            self._count_stored()
        wanted, start = self._best_slot(one)
        slot = self.pages.take(min(one.limit, self.decoder.ctx), wanted)
        if slot is None:
            return False
        one.slot = slot
        self._active[slot] = one
        self._waiting.remove(one)
        self._shares.turn(one.standing, time.monotonic())
        one.waited = waited
        self._held.pop(slot, None)
        self.decoder.promise(slot, min(one.limit, self.decoder.ctx))
        if one.snapshot is not None:
            one.loads = self.decoder.load(slot, one.snapshot)
            one.computed = one.snapshot.n
            self._drop_snapshot(one)
            one.staged, one.in_place = None, not one.decodes
        elif start:
            one.computed = one.cached = start
            one.in_place = True
            self.counters.cached_tokens += start
        return True

    def _best_slot(self, one: TextRequest) -> tuple[int | None, int]:
        """The free slot that still has the longest beginning of a prompt, and how much of it."""
        if one.snapshot is not None or one.result != "tokens" or not one.keeps:
            return None, 0
        best: tuple[int | None, int] = None, 0
        stored = (
            0 if self.prefixes is None else self.prefixes.match(one.tokens, about=one.adapter.about)
        )
        lowest = min(self.pages.free_slots, default=None)
        for slot, (held, about) in self._held.items():
            if about != one.adapter.about:
                continue
            n = steps.common(held, one.tokens, len(one.tokens) - 1)
            if self._rows.states and (n < len(held) or not self.decoder.state_at(slot, n)):
                continue
            # In the slot that it would have anyway it need not be copied.
            least = stored - 1 if slot == lowest else stored
            if n > max(best[1], least, PAGE // 4):
                best = slot, n
        if best[0] is None and self._held:
            # The graph of a step of one sequence depends on its slot. So requests that come one
            # after the other have the lowest slot, unless what it holds would be lost.
            if lowest is not None and self._keep_held(lowest, self._need(one)):
                return lowest, 0
            # Rather a slot that holds nothing, or what was held longest: it is the first.
            free = [x for x in self.pages.free_slots if x not in self._held]
            return (min(free) if free else next(iter(self._held))), 0
        return best

    def _keep_held(self, slot: int, pages: int) -> bool:
        """Store what a free slot holds, before others get it; whether nothing of use is lost.

        Args:
            slot: a free one.
            pages: that have to stay free.
        """
        held = self._held.get(slot)
        if held is None:
            return True
        if self.prefixes is None:
            return False
        try:
            free = max(0, self.pages.free - pages) * self.decoder.page_bytes()
            self.prefixes.allowed = self.prefixes.nbytes + free
            n = self.prefixes.keep(
                held.tokens, slot, states=self._rows.states, tail=True, about=held.about
            )
            self._count_stored()
        except Exception as error:  # of any class: it is nobody else's
            if self._closing is None:
                _log.warning("what a slot holds could not be stored: %s", error)
            return False
        return len(held.tokens) - n < PAGE // 4

    def _preempt(self, one: TextRequest) -> None:
        """Take the slot of a running request; it goes on later."""
        slot = one.slot
        assert slot is not None
        self.counters.preemptions += 1
        one.preempted += 1
        one.waited += policy.AGING  # so nobody is preempted again and again
        one.queued = time.monotonic()
        n = one.computed
        stored = (
            0 if self.prefixes is None else self.prefixes.match(one.tokens, about=one.adapter.about)
        )
        size = n * self.decoder.form.position + self.decoder.form.state
        copied = n > 0 and one.result == "tokens" and self._swapped + size <= self._swap
        copied = copied and self._is_whole(one)
        if copied and (self._rows.states or policy.is_copied(n, stored, self._rates)):
            try:
                one.snapshot = self.decoder.save(slot, 0, n, states=self._rows.states)
                self._swapped += one.snapshot.nbytes
                one.staged, one.in_place = None, False
            except Exception as error:  # of any class: then it is computed again
                _log.warning("a preempted sequence could not be stored: %s", error)
        if one.snapshot is None:
            one.begin_again()
            one.forget_arrays()
        self._free(one, held=None)
        self._waiting.append(one)

    def _free(self, one: TextRequest, held: list[int] | None) -> None:
        slot = one.slot
        assert slot is not None
        self.pages.give_back(slot)
        del self._active[slot]
        self._held.pop(slot, None)
        if held:
            self._held[slot] = _HeldTokens(held, one.adapter.about)
        one.slot = None

    def _clear(self) -> None:
        """Free the slots of requests that are over."""
        gone = [x for x in self._waiting if x.over]
        for one in gone:
            self._waiting.remove(one)
            self._record_end(one)
        for one in [x for x in self._active.values() if x.over]:
            self._keep(one)
            self._free(one, one.fed if one.keeps and self._is_whole(one) else None)
            self._record_end(one)
            self._pace += 0.1 * (time.monotonic() - one.arrived - self._pace)
        if len(self._active) > 1 and self.decoder.can_move:
            self._close_ranks()
        self._wake_idlers()

    def _record_end(self, one: TextRequest) -> None:
        self._shares.leave(one.caller)
        self._drop_snapshot(one)
        if one.reason == "stop" and one.max_tokens:
            share = self._rates.share
            share += 0.1 * (one.made / one.max_tokens - share)
            self._rates = replace(self._rates, share=max(0.01, share))
        elif one.reason == "length":
            share = self._rates.share
            self._rates = replace(self._rates, share=share + 0.1 * (1.0 - share))

    def _drop_snapshot(self, one: TextRequest) -> None:
        if one.snapshot is not None:
            self._swapped -= one.snapshot.nbytes
            one.snapshot = None

    def _is_whole(self, one: TextRequest) -> bool:
        """Whether the slot of a request has what `fed` says: no step of it has failed."""
        return (
            one.slot is not None
            and one.error is None
            and self.decoder.savable(one.slot, len(one.fed)) == len(one.fed)
            and (not self._rows.states or self.decoder.state_at(one.slot, len(one.fed)))
        )

    def _close_ranks(self) -> None:
        """Move the highest slot down if steps get smaller: a step computes all slots up to it."""
        while True:
            highest = max(self._active)
            one = self._active[highest]
            if not all(x.decodes for x in self._active.values()):
                return
            if steps.size(highest + 1) == steps.size(len(self._active)):
                return
            if self._need(one) > self.pages.free:  # for a moment both slots have its memory
                return
            if not self._is_whole(one):
                return
            lower = min(self.pages.free_slots, default=highest)
            if lower >= highest:
                return
            self._keep_held(lower, self._need(one))
            try:
                self.decoder.promise(lower, min(one.limit, self.decoder.ctx))
                self.decoder.move(highest, lower, one.computed)
            except Exception as error:  # of any class: it goes on where it is
                _log.warning("a sequence could not be moved: %s", error)
                return
            self.pages.move(highest)
            del self._active[highest]
            self._held.pop(lower, None)
            self._active[lower] = one
            one.slot = lower
            if self.speculation is not None and self.speculation.observer is not None:
                self.speculation.observer.move(one, highest, lower)
            self._in_common = (), 0

    def _drop_overdue(self) -> None:
        now = None
        for one in (*self._waiting, *self._active.values()):
            if one.deadline is not None and not one.over:
                now = now or time.monotonic()
                if now > one.deadline:
                    self.counters.late += 1
                    self._fail([one], _late(one))

    # -- keys, values and states

    def _begin(self, one: TextRequest) -> None:
        """Load the stored beginning of a prompt, before its first tokens are computed."""
        if one.computed or one.result != "tokens" or self.prefixes is None or not one.keeps:
            return
        assert one.slot is not None
        row = None if one.staged is None else self._rows.slots * self._rows.ctx + one.staged
        try:
            n = self.prefixes.restore(one.tokens, one.slot, row=row, about=one.adapter.about)
        except Exception as error:  # of any class: it is nobody else's
            self._fail([one], error)
            return
        one.computed = one.cached = n
        self.counters.cached_tokens += n

    def _first_piece(
        self, prompts: list[TextRequest], room: int
    ) -> list[tuple[TextRequest, Piece]]:
        one = prompts[0] if prompts else None
        if one is not None and not one.computed and self._awaits(one):
            return []
        return steps.next_prompt(prompts, room, self._rows, self.pages, self._begin, self._stop)

    def _stop(self, one: TextRequest) -> int:
        """Where the next piece of a prompt ends at the latest: a checkpoint, or the prompt's end.

        Where the checkpoints are is decided when the first piece is computed: then it is known
        which other prompts wait.
        """
        if one.checkpoints is None:
            one.checkpoints = []
            if self.prefixes is not None and one.keeps and one.result == "tokens":
                n = len(one.tokens)
                known = [
                    steps.common(one.tokens, x.tokens, n - 1)
                    for x in (*self._waiting, *self._active.values())
                    if x is not one and not (x.over or x.computed) and x.shares_with(one)
                    and x.keeps and x.result == "tokens"
                ]  # fmt: skip
                try:
                    known.append(self.prefixes.branch(one.tokens, about=one.adapter.about))
                except Exception as error:  # of any class: the answer needs no checkpoint
                    _log.warning("what a prompt shares with earlier ones is not known: %s", error)
                one.checkpoints = steps.checkpoints_of(n, one.computed, known)
        return next((x for x in one.checkpoints if x > one.computed), len(one.tokens))

    def _awaits(self, one: TextRequest) -> bool:
        """Whether the beginning of a prompt is being stored: it will not have to be computed."""
        if self.prefixes is None or not one.keeps or one.result != "tokens":
            return False
        try:
            pending = self.prefixes.pending(one.tokens, about=one.adapter.about)
        except Exception as error:  # of any class: it is nobody else's
            self._fail([one], error)
            return True
        self._pending = self._pending or pending
        return pending is not None

    def _keep(self, one: TextRequest) -> None:
        """Store what a sequence has computed, for later prompts."""
        if self.prefixes is None or not one.keeps or one.error is not None or one.slot is None:
            return
        if one.result != "tokens" or not one.computed or not self._is_whole(one):
            return
        try:
            free = max(0, self.pages.free) * self.decoder.page_bytes()
            self.prefixes.allowed = self.prefixes.nbytes + free
            self.prefixes.keep(one.fed, one.slot, states=self._rows.states, about=one.adapter.about)
            self._count_stored()
        except Exception as error:  # of any class: the answer is good all the same
            if self._closing is None:
                _log.warning("the beginning of a prompt could not be stored: %s", error)

    def _count_stored(self) -> None:
        if self.prefixes is not None:
            self.pages.stored = -(-self.prefixes.nbytes // self.decoder.page_bytes())

    def _shrink(self) -> None:
        """Take back shared rows after those that prompts are using."""
        ends = [x.staged + len(x.tokens) for x in self._active.values() if x.staged is not None]
        self.pages.shared = min(self.pages.shared, self.pages.of(max(ends, default=0)))

    def _return_memory(self) -> None:
        """Give memory back to the system that others were promised."""
        for slot, kept in self.pages.surplus():
            held = self._held.get(slot)
            if held is not None:
                if self._rows.states and kept < len(held.tokens):
                    del self._held[slot]
                else:
                    self._held[slot] = held._replace(tokens=held.tokens[:kept])
            self._give_backs.extend(self.decoder.forget_parts(slot, kept))
        if self._touched > self.pages.shared:
            first, n = self.pages.shared * PAGE, (self._touched - self.pages.shared) * PAGE
            row = self._rows.slots * self._rows.ctx + first
            self._give_backs.extend(self.decoder.forget_row_parts(row, n))
        self._touched = self.pages.shared

    def _give_back(self) -> bool:
        """Give back memory for a while; whether all of it is given back."""
        if not self._give_backs:
            return True
        if self.decoder.is_moving:
            return False
        until = time.perf_counter() + IN_A_TURN
        while self._give_backs:
            self._give_backs.popleft()()
            if time.perf_counter() > until:
                break
        return not self._give_backs

    # -- results

    def _land(self) -> None:
        """Take note of the steps that have ended."""
        while self._flights and self._flights[0].future.done():
            flight = self._flights.popleft()
            # Without a task that waited nobody knows when it ended.
            now = time.perf_counter()
            took = now - max(flight.begun, self._landed) if flight.watched else None
            idle = max(0.0, flight.begun - self._landed)  # the device waited for the host
            self._landed = now
            self.counters.steps += 1
            self._drop_overdue()  # no token is given after its deadline
            try:
                self._apply(flight, took)
                if took is not None and self.speculation is not None:
                    self._measure_width(flight.plan, took + min(idle, IDLE_COUNTED))
            except aggml.Aborted as error:
                self._fail(flight.requests, error)  # nobody, unless the model is being closed
            except Exception as error:  # of any class: others must go on
                if not isinstance(error, aggml.AggmlError):
                    _log.exception("a step of the engine failed")
                self.counters.failed_steps += 1
                self._fail(flight.requests, error)
                if self._closing is None:
                    self.decoder.accept_rows()
            if took is not None:
                self.counters.stepped(took)
                self._divide(flight.plan, took)

    def _divide(self, plan: _StepPlan, took: float) -> None:
        """Note the seconds of a step: those of prompts, and those of answers."""
        of_prompts = sum(len(piece.ids) for _, piece in plan.chunk)
        of_answers = len(plan.running) + sum(map(len, plan.drafts.values()))
        part = took * of_prompts / max(1, of_prompts + of_answers)
        self.counters.prompt_seconds += part
        self.counters.answer_seconds += took - part

    def _apply(self, flight: _Flight, took: float | None) -> None:
        plan = flight.plan
        counters, requests = self.counters, flight.requests
        counters.sequences += len(requests)
        counters.longest = max([counters.longest, *(len(x.tokens) for x in requests)])
        result = flight.future.result()
        for one in flight.requests:
            if one.loads:
                self._check_loads(one)
        if plan.chunk and plan.chunk[0][0].result != "tokens":
            self._apply_arrays(plan, result)
            return
        if took is not None:
            self._measure(plan, took)
        hidden = None
        if plan.shape.tapped:
            *result, last = result
            hidden = np.asarray(last).reshape(-1, self.decoder.model.width)
        begins = {x: x.computed for x in plan.running}
        best: Best | None = None
        rows = [row for _, row in plan.follows]
        late: set[int] = set()
        tokens: list[int | None]
        if plan.shape.every:
            best = self._best_of(result, plan.shape.best)
            for one, _ in plan.follows:
                one.look_at_mask()
            late = {id(x) for x, _ in plan.follows if x.awaits_mask}
            known = [i for i, (x, _) in enumerate(plan.follows) if id(x) not in late]
            tokens = [None] * len(rows)
            chosen = choose_tokens([plan.follows[i] for i in known], best)
            for i, token in zip(known, chosen, strict=True):
                tokens[i] = token
            logits = np.fmax.reduce(best.logits[rows], axis=1).tolist()
        else:
            ids, chosen = result
            tokens = np.asarray(ids).reshape(-1)[rows].tolist()
            logits = np.asarray(chosen).reshape(-1)[rows].tolist()
        none = {
            id(one) for (one, _), logit in zip(plan.follows, logits, strict=True)
            if not one.over and not logit > -math.inf  # NaN is not, either
        }  # fmt: skip
        again = self._isolate(none, plan) if none else set()
        before = sum(x.made for x in plan.running) if plan.drafts else 0
        for one in plan.running:
            one.computed += 1
            self._shares.charge(one.caller, 1)
        for one, piece in plan.chunk:
            if id(one) not in again:
                self._record_computed(one, len(piece.ids))
        for (one, row), token in zip(plan.follows, tokens, strict=True):
            if one.over or id(one) in none | again:
                self._notify(one)
            elif id(one) in late and best is not None:
                one.late = best.row(row)
            else:
                self._give(one, token, best, row)
                draft = plan.drafts.get(one)
                if draft:
                    self._accept(one, draft, result, best, row)
        if hidden is not None:
            try:
                self._observe(plan, hidden, begins, again)
            except Exception as error:  # of any class: answers need no drafts
                self._stop_speculating(error)
        if plan.drafts:
            for one in plan.running:  # states go back to the last token that counts
                if one.slot is not None:
                    self.decoder.choose_state(one.slot, one.computed)
        if plan.drafts and not plan.chunk and took is not None:
            given = sum(x.made for x in plan.running) - before
            self._note_pace(took * len(plan.running) / max(given, 1))

    def _observe(
        self, plan: _StepPlan, hidden: F32, begins: Mapping[TextRequest, int], again: set[int]
    ) -> None:
        """Hand on the hidden states of a step, as far as its tokens count.

        Args:
            plan: the step.
            hidden: of all of its tokens.
            begins: how many tokens of running sequences were computed before.
            again: ids of the requests whose tokens do not count.
        """
        observer = None if self.speculation is None else self.speculation.observer
        if observer is None:
            return
        parts = plan.shape.parts
        beside = parts[0].sequences * parts[0].tokens if plan.running else 0
        rows = dict(plan.follows)
        for one in plan.running:
            row, first = rows[one], begins[one]
            observer.observe(one, first, hidden[row : row + one.computed - first])
        for one, piece in plan.chunk:
            n = len(piece.ids)
            if id(one) not in again:
                observer.observe(one, piece.first, hidden[beside : beside + n])
            beside += n

    def _accept(
        self,
        one: TextRequest,
        draft: list[int],
        result: Sequence[Any],
        best: Best | None,
        row: int,
    ) -> None:
        """Give a request the tokens after its next one, as far as its draft was right.

        A row of logits counts if all tokens before it are those that were chosen. If the last row
        that counts has no token, the next step begins with it and says so.

        Args:
            one: has just got its next token.
            draft: the tokens that were computed after its last one.
            result: of the step.
            best: the same, if tokens are chosen here.
            row: that from which its next token was chosen.
        """
        counters = self.counters
        counters.drafts += 1
        counters.draft_tokens += len(draft)
        one.drafted += len(draft)
        accepted = 0
        for i, expected in enumerate(draft, 1):
            got = one.end if one.reason == "stop" else one.tokens[-1]
            if got != expected:
                break
            accepted += 1
            if one.over:
                break
            token: int | None
            if best is not None:
                logit = float(np.fmax.reduce(best.logits[row + i]))
                token = choose_tokens([(one, row + i)], best)[0] if logit > -math.inf else None
            else:
                ids, logits = result
                logit = float(np.asarray(logits).reshape(-1)[row + i])
                token = int(np.asarray(ids).reshape(-1)[row + i])
            if token is None or not logit > -math.inf:  # NaN is not, either
                break
            one.computed += 1
            self._shares.charge(one.caller, 1)
            self._give(one, token, best, row + i)
        counters.accepted_tokens += accepted
        one.accepted += accepted
        if one.agreement is not None:
            one.agreement.note(accepted, len(draft))

    def _give(self, one: TextRequest, token: int | None, best: Best | None, row: int) -> None:
        """Give a request its next token; None: there is none that it may have."""
        if token is None:
            self._fail([one], EngineError(NOT_ALLOWED))
            return
        if one.first_token is None:
            one.first_token = time.monotonic()
            self.counters.waited(one.first_token - one.arrived)
        self.counters.tokens += one.take(token, best, row)
        self._notify(one)

    def _choose_late(self) -> None:
        """Choose the tokens of requests whose masks were not known when their steps ended."""
        for one in (*self._active.values(), *self._waiting):
            if one.late is None or one.over or one.awaits_mask:
                continue
            best, one.late = one.late, None
            one.look_at_mask()
            if one.over:
                self._notify(one)
            else:
                self._give(one, choose_tokens([(one, 0)], best)[0], best, 0)

    def _check_loads(self, one: TextRequest) -> None:
        """Fail a request that went on from keys, values or states that could not be loaded."""
        ended = [x for x in one.loads if x.done()]
        one.loads = [x for x in one.loads if not x.done()]
        for problem in [x.exception() for x in ended]:
            if problem is not None:
                self._fail([one], problem)

    def _best_of(self, result: Sequence[Any], n: int) -> Best:
        ids, logits, every = result
        return Best(
            np.asarray(ids).reshape(-1, n), np.asarray(logits).reshape(-1, n),
            np.asarray(every).reshape(-1, self.decoder.vocabulary),
        )  # fmt: skip

    def _record_computed(self, one: TextRequest, n: int) -> None:
        """Note that ``n`` more tokens of a prompt are computed."""
        one.computed += n
        self.counters.prompt_tokens += n
        self._shares.charge(one.caller, n)
        self._report(one)
        if one.computed == len(one.tokens):
            one.staged, one.in_place, one.alone = None, False, False
            if not one.checkpoints:  # else the last one is near enough
                self._keep(one)
        elif one.checkpoints and one.computed in one.checkpoints:
            self._keep(one)

    def _report(self, one: TextRequest) -> None:
        """Tell the progress of a prompt; an error of the function that is told ends its request."""
        try:
            one.report()
        except Exception as error:  # of any class: others must go on
            self._fail([one], error)

    def _apply_arrays(self, plan: _StepPlan, result: Sequence[Any]) -> None:
        decoder = self.decoder
        width = decoder.model.width if plan.shape.hidden else decoder.vocabulary
        found = np.asarray(result[0]).reshape(-1, width)
        at = 0
        for one, piece in plan.chunk:
            n = len(piece.ids)
            if not one.over:
                one.take_array(found[at : at + n])
                self.counters.prompt_tokens += n
                self._shares.charge(one.caller, n)
                if one.computed == len(one.tokens):
                    one.reason = "length"
                    self._notify(one)
            at += n

    def _measure(self, plan: _StepPlan, took: float) -> None:
        rates = self._rates
        if plan.chunk:
            n = sum(len(piece.ids) for _, piece in plan.chunk)
            if plan.drafts:  # their tokens take as long as those of prompts
                part = plan.shape.parts[0]
                n += part.sequences * (part.tokens - 1)
            # A step takes some time for any number of tokens. So steps count by their tokens: short
            # prompts alone must not make a long one look slow.
            seconds, tokens = self._prompt_time
            took = max(0.0, took - (rates.step or 0.0))
            self._prompt_time = seconds, tokens = 0.8 * seconds + took, 0.8 * tokens + n
            self._rates = replace(rates, prompt=seconds / tokens)
            if self.speculation is not None:
                self.speculation.record_prompt(seconds / tokens)
        elif not plan.chained and not plan.drafts:
            self._note_pace(took)

    def _note_pace(self, seconds: float) -> None:
        """Note how long running sequences took for a token of each."""
        old = seconds if self._rates.step is None else self._rates.step
        self._rates = replace(self._rates, step=old + 0.2 * (seconds - old))

    def _measure_width(self, plan: _StepPlan, seconds: float) -> None:
        """Note how long a step took, to tell whether drafts pay."""
        if self.speculation is None or plan.chunk or not plan.running:
            return
        part = plan.shape.parts[0]
        self.speculation.record_step(part.sequences, part.tokens, seconds, every=plan.shape.every)

    def _isolate(self, none: set[int], plan: _StepPlan) -> set[int]:
        """Fail requests for which no token can be chosen, once it is sure that they are the reason.

        Keys and values that are NaN reach all prompts of a chunk: where a mask hides them they are
        multiplied by 0, which gives NaN. So all prompts of the chunk begin again, each alone. NaN
        is also removed from the rows, because other sequences will have them.

        Args:
            none: ids of the requests whose logits are all NaN or -inf.
            plan: the step.

        Returns:
            Ids of the requests that begin again.
        """
        prompts = [x for x, _ in plan.chunk]
        again: list[TextRequest] = []
        if len(prompts) > 1 and any(id(x) in none for x in prompts):
            again = [x for x in self._active.values() if x.staged is not None and not x.over]
        ended = [x for x in (*plan.running, *prompts) if id(x) in none and x not in again]
        for one in (*again, *ended):
            assert one.slot is not None
            self._wipe(one.slot * self._rows.ctx, min(one.limit, self._rows.ctx))
            if one.staged is not None and one.computed < len(one.tokens):
                self._wipe(self._rows.slots * self._rows.ctx + one.staged, len(one.tokens))
        for one in again:
            one.begin_again()
            one.alone = one.in_place = True
        for one in ended:
            one.keeps = False  # keys and values that led to this are not used again
        self._fail(ended, NotFiniteError(NO_TOKEN))
        return {id(x) for x in again}

    def _wipe(self, first: int, n: int) -> None:
        self.decoder.wipe_rows(first, n)

    def _fail(self, requests: Iterable[TextRequest], error: BaseException) -> None:
        for one in list(requests):
            if not one.over:
                one.error = error
                self._notify(one)
        self._wake_idlers()


def _late(one: TextRequest) -> DeadlineError:
    return DeadlineError(
        f"[{one.place}] the deadline has passed after {time.monotonic() - one.arrived:.2f} s, with "
        f"{one.made} of at most {one.max_tokens} tokens made"
    )
