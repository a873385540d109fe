"""Continuous batching: sequences join and leave the running batch at every step.

A step computes one token of each sequence that runs. Beside them it computes a chunk of the prompts
that wait. One pass over the weights serves both, so running streams keep their pace. One task
decides, between two steps, what the next step needs. Nothing here knows of HTTP. Not here: what a
step takes in (steps.py), a sequence and its next token (jobs.py), memory of keys and values
(aggml/models/kv/paging.py), how prompts share a chunk (staging.py), which beginnings of prompts
are stored (prefixes.py), and when they are copied (keeping.py).
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Self

import anyio
import numpy as np
from anyio.lowlevel import checkpoint

import aggml
from aggml.models.beside import Beside
from aggml.models.engine import steps
from aggml.models.engine.jobs import (
    Counters,
    EngineError,
    FullError,
    Job,
    TooLongError,
    chosen,
    draws,
)
from aggml.models.engine.keeping import Keeper
from aggml.models.engine.prefixes import Prefixes
from aggml.models.kv.paging import PAGE, fitting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Sequence

    from aggml.models.decoder import Best
    from aggml.models.engine.staging import Piece
    from aggml.models.engine.steps import Intake
    from aggml.models.kv.paging import PagedDecoder

__all__ = ["STAGED", "Engine"]

_log = logging.getLogger("aggml")

BEST: Final = 64  # the next token is chosen among so many; other logits stay on the device
STAGED: Final = 2  # slots whose rows all prompts share while they are processed
NO_TOKEN: Final = (
    "no token can be chosen, because all logits are NaN or -inf: the model's numbers overflow, or "
    "its file is damaged"
)
WAKE: Final = 4  # streams that are woken in one turn of the loop


class Engine:
    """Runs any number of sequences on one model.

    ``async with Engine(model, pages) as engine: async for tokens in engine.stream(job): ...``

    Args:
        model: has STAGED slots more than ``slots``, and more for pages that are stored.
        slots: sequences at a time.
        budget: pages for keys and values.
        stored: how many of these pages may keep beginnings of prompts for later prompts. A model
            with states keeps none, because a state cannot be cut back to the end of a page.
        chunk: tokens in one step, of running sequences and prompts together. While no sequence
            runs, a step takes at least 512 tokens of prompts.
        max_waiting: jobs that wait because no slot or not enough memory is free; more are refused.
    """

    def __init__(
        self,
        model: PagedDecoder,
        *,
        slots: int,
        budget: int,
        stored: int = 0,
        chunk: int = 128,
        max_waiting: int = 256,
    ) -> None:
        if model.sequences < slots + STAGED:
            raise ValueError(
                f"the model has {model.sequences} sequences, {slots} slots need {slots + STAGED}"
            )
        self.model = model
        self.pages = model.pages(budget, slots)
        room = (model.sequences - slots - STAGED) * model.ctx // PAGE
        self.prefixes = Prefixes(
            self.pages, 0 if model.has_states else min(stored, room),
            ctx=model.ctx, first=(slots + STAGED) * model.ctx, model=model.kept_as,
        )  # fmt: skip
        self.counters = Counters()
        self._slots = slots
        self._rows = steps.Rows(
            model.ctx, slots, STAGED * model.ctx, states=model.has_states, grows=model.grows
        )
        self._best = min(BEST, model.vocabulary)
        self._chunk = chunk
        self._max_waiting = max_waiting
        self._waiting: deque[Job] = deque()
        self._taking_in: deque[Job] = deque()  # they have a slot; their prompt is not done
        self._running: dict[int, Job] = {}  # by slot
        self._told: deque[Job] = deque()  # their waiting streams have not been woken yet
        self._news = anyio.Event()
        self._changed = anyio.Event()
        self._idle = anyio.Event()
        self._touched = 0  # pages of shared rows that may have memory
        self._pace = 1.0  # seconds that recent jobs took, on average
        self._closing = False

    async def __aenter__(self) -> Self:
        self._beside = Beside()
        self._tasks = await self._beside.__aenter__()
        self._keeper = Keeper(self.model, self.prefixes, self._tasks)
        self._tasks.start_soon(self._serve)
        self._tasks.start_soon(self._tell)
        return self

    async def __aexit__(self, *raised: object) -> bool | None:
        """Stop at once. Whoever still waits gets an `EngineError`."""
        self._closing = True
        try:
            return await self._beside.__aexit__(*raised)  # type: ignore[arg-type]
        finally:
            self.cut_off()

    @property
    def queued(self) -> int:
        """Jobs that have no slot yet."""
        return len(self._waiting)

    @property
    def active(self) -> int:
        """Jobs that have a slot."""
        return len(self._taking_in) + len(self._running)

    @property
    def owed(self) -> int:
        """Tokens of prompts and answers that are still to come, at most."""
        jobs = (*self._waiting, *self._taking_in, *self._running.values())
        return sum(len(x.prompt) - x.taken_in + x.n_predict - len(x.made) for x in jobs)

    def stop(self) -> None:
        """Refuse new jobs."""
        self._closing = True

    def cut_off(self) -> None:
        """Refuse new jobs and end the present ones: they fail with an `EngineError`."""
        self._closing = True
        jobs = [*self._waiting, *self._taking_in, *self._running.values()]
        self._fail(jobs, EngineError("the server has stopped"))
        self._waiting.clear()
        self._changed.set()

    async def drain(self, seconds: float) -> bool:
        """Refuse new jobs and wait for the present ones; returns whether all ended in time."""
        self._closing = True
        with anyio.move_on_after(seconds):
            while self._waiting or self.active:
                self._idle = anyio.Event()
                await self._idle.wait()
        return not (self._waiting or self.active)

    async def stream(self, job: Job) -> AsyncGenerator[list[int], None]:
        """Yield the tokens of a job as they come, those of one or more steps at a time.

        Raises:
            FullError: the queue is full, or the engine is stopping.
            TooLongError: the job could never run.
            EngineError: a step with this job failed.

        Cancellation, and closing the generator: the job's slot is free before the next step.
        """
        self.check([job])
        self.prefixes.name(job)
        job.queued = time.perf_counter()
        self._waiting.append(job)
        self._changed.set()
        given = 0
        try:
            while True:
                if given < len(job.made):
                    tokens = job.made[given:]
                    given += len(tokens)
                    yield tokens
                elif job.error is not None:
                    raise EngineError(f"the computation failed: {job.error}") from job.error
                elif job.over:
                    return
                else:
                    job.news = anyio.Event()
                    await job.news.wait()
        finally:
            if not job.over:
                job.left = True
                self._changed.set()

    def check(self, jobs: Sequence[Job]) -> None:
        """Check that all of these jobs may be queued now.

        Raises:
            FullError, TooLongError: as `stream`.
        """
        for job in jobs:
            length = len(job.prompt) + job.n_predict
            if not job.prompt or job.n_predict < 1:
                raise TooLongError("prompt and answer must have at least one token each")
            if length >= self.model.ctx:
                raise TooLongError(
                    f"{len(job.prompt)} tokens of prompt and {job.n_predict} more do not fit a "
                    f"context of {self.model.ctx - 1}"
                )
            need = self._need(job)
            if need > self.pages.budget:
                raise TooLongError(
                    f"{length} tokens need {need} pages, the server has {self.pages.budget}: ask "
                    "for fewer tokens, or start the server with more --kv-memory"
                )
        needs = [self._need(job) for job in jobs]
        most = fitting(needs, self._slots, self.pages.budget) + self._max_waiting
        if len(jobs) > most:
            raise TooLongError(
                f"the request asks for {len(jobs)} answers, this server takes {most} of them: "
                f"{most - self._max_waiting} that run and {self._max_waiting} that wait", "n",
            )  # fmt: skip
        if self._closing:
            raise FullError("the server is stopping", 5)
        queue = [self._need(job) for job in self._waiting if not job.left]
        waiting = len(queue) + len(jobs) - fitting([*queue, *needs], *self._room())
        if waiting > self._max_waiting:
            seconds = self._pace * len(queue) / self._slots
            raise FullError(
                f"the queue is full: {max(0, waiting - len(jobs))} requests wait already",
                max(1, min(60, round(seconds))),
            )

    def _need(self, job: Job) -> int:
        """Pages that a job takes."""
        return self.pages.need(len(job.prompt) + job.n_predict)

    def _room(self) -> tuple[int, int]:
        """Slots and pages that the next turn can give to jobs; stored pages are given up."""
        going = [x for x in (*self._taking_in, *self._running.values()) if not x.over]
        return self._slots - len(going), self.pages.budget - sum(map(self._need, going))

    # -- between two steps

    async def _serve(self) -> None:
        while True:
            try:
                await self._turn()
            except Exception as error:  # of any class: one turn must not end the service
                _log.exception("a turn of the engine failed")
                self._give_up(error)
                await checkpoint()

    async def _turn(self) -> None:
        """Compute one step. If no job has a slot, wait until there is a new job."""
        await self._clear()
        self._admit()
        if not self.active:
            assert not self._waiting, f"{len(self._waiting)} sequences wait although none runs"
            await self._rest()
            return
        running, chunk, beside = self._next()
        if running or chunk:
            await self._return_memory()
            jobs = [*running, *(job for job, _ in chunk)]
            await self._guarded(jobs, self._step(running, chunk, beside))
            return
        # A turn that computes nothing must wait for something, or it is repeated for ever and no
        # other task runs. Here jobs have ended since `_clear`: the next turn frees their slots.
        jobs = [*self._taking_in, *self._running.values()]
        assert any(job.over for job in jobs), f"{len(jobs)} sequences, and none of them goes on"
        await checkpoint()

    def _next(self) -> tuple[list[Job], list[tuple[Job, Piece]], int]:
        """What the next step computes: arguments of `_step`."""
        running = [job for job in self._running.values() if not job.over]
        beside = 0
        if self._taking_in and running:
            beside = min(steps.size(max(self._running) + 1, steps.BESIDE), self._slots)
        room = steps.room_for_prompts(self._chunk, beside, running=bool(self._running))
        if self._rows.states:
            chunk = steps.next_prompt(self._taking_in, room, self._rows, self.pages)
            return running, chunk, beside
        chunk = steps.next_prompts(self._taking_in, room, self._rows, self.prefixes)
        return running, chunk, beside

    async def _return_memory(self) -> None:
        """Give memory back to the system that others were promised."""
        await self._forget(self.pages.surplus())
        if self._touched > self.pages.shared:
            first, n = self.pages.shared * PAGE, (self._touched - self.pages.shared) * PAGE
            await self.model.forget_rows(self._slots * self.model.ctx + first, n)
        self._touched = self.pages.shared
        for rows in self.prefixes.surplus():
            await self._keeper.done()
            await self.model.forget_rows(*rows)

    def _give_up(self, error: Exception) -> None:
        """Fail all jobs that have a slot; without any, the first that waits for one."""
        jobs = [*self._taking_in, *self._running.values()]
        if not jobs and self._waiting:
            jobs = [self._waiting.popleft()]
        self._fail(jobs, error)

    async def _rest(self) -> None:
        """Wait for the next job; the cache gives its memory back meanwhile."""
        self._idle.set()
        self._changed = anyio.Event()
        await self._forget(self.pages.surplus(idle=True))
        self.pages.shared = self._touched = 0
        for slot in range(self._slots, self._slots + STAGED):
            await self.model.forget(slot)
        await self._changed.wait()

    async def _forget(self, surplus: Sequence[tuple[int, int]]) -> None:
        if surplus:
            await self._keeper.done()
        for slot, kept in surplus:
            await self.model.forget(slot, kept)

    async def _tell(self) -> None:
        """Wake waiting streams, a few in each turn: all at once would hold up the loop."""
        while True:
            while self._told:
                for _ in range(min(WAKE, len(self._told))):
                    self._told.popleft().tell()
                await checkpoint()
            self._news = anyio.Event()
            await self._news.wait()

    async def _clear(self) -> None:
        """Free the slots of jobs that are over."""
        await self._keeper.may_free()
        self._waiting = deque(job for job in self._waiting if not job.left)
        self._taking_in = deque(job for job in self._taking_in if not self._ended(job))
        for job in [job for job in self._running.values() if job.over]:
            slot = job.slot
            assert slot is not None
            self._ended(job)
            del self._running[slot]
        if not self._taking_in:
            await self._close_ranks()

    def _ended(self, job: Job) -> bool:
        if job.over and job.slot is not None:
            self.pages.give_back(job.slot)
            job.slot = None
            self._pace += 0.1 * (time.perf_counter() - job.queued - self._pace)
        return job.over

    async def _close_ranks(self) -> None:
        """Move the highest slot down if steps get smaller: a step computes all slots up to it."""
        while self._running:
            highest = max(self._running)
            if steps.size(highest + 1) == steps.size(len(self._running)):
                return
            await self._keeper.done()
            need = self._need(self._running[highest])
            if need > self.pages.free:  # for a moment both slots have its memory
                return
            await self._forget(self.pages.surplus(more=need))
            lower = self.pages.move(highest)
            if lower is None:
                return
            job = self._running.pop(highest)
            job.slot = lower
            self._running[lower] = job
            self.model.promise(lower, len(job.prompt) + job.n_predict)
            try:
                await self.model.move(highest, lower, len(job.prompt) + len(job.made))
            except Exception as error:  # of any class, as in `_guarded`
                self._fail([job], error)

    def _shrink(self) -> None:
        """Take back shared rows after those that prompts are using."""
        staged = [x for x in self._taking_in if x.staged is not None]
        ends = [job.staged + len(job.prompt) for job in staged if job.staged is not None]
        self.pages.shared = min(self.pages.shared, self.pages.of(max(ends, default=0)))

    def _admit(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            if self._need(job) > self.pages.free:
                self._shrink()
            self.prefixes.make_room(job)
            slot = self.pages.take(len(job.prompt) + job.n_predict)
            if slot is None:
                return
            job.slot = slot
            self._taking_in.append(self._waiting.popleft())
            self.model.promise(slot, len(job.prompt) + job.n_predict)

    async def _guarded(self, jobs: list[Job], step: Awaitable[None]) -> None:
        """Carry out a step. If it fails, only the jobs in it fail."""
        begin = time.perf_counter()
        try:
            await step
        except Exception as error:  # of any class: others must go on
            if not isinstance(error, aggml.AggmlError):
                _log.exception("a step of the engine failed")
            self.counters.failed_steps += 1
            self._fail(jobs, error)
            await checkpoint()
        self.counters.steps += 1
        self.counters.stepped(time.perf_counter() - begin)

    @staticmethod
    def _fail(jobs: list[Job], error: BaseException) -> None:
        for job in jobs:
            if not job.over:
                job.error = error
                job.tell()

    async def _step(self, running: list[Job], chunk: list[tuple[Job, Piece]], beside: int) -> None:
        """Compute one step, then tell each job in it the token that follows."""
        for job, _ in chunk:
            await self._reuse(job)
        step = steps.planned(running, chunk, beside, self._rows)
        best, tokens, logits = await self._computed(step)
        none = {id(job) for (job, _), logit in zip(step.follows, logits, strict=True)
                if not logit > -math.inf}  # fmt: skip  # NaN is not, either
        again = await self._isolate(none, running, chunk) if none else set()
        for job, piece in chunk:
            if id(job) not in again:
                self._taken_in(job, len(piece.ids))
        for (job, row), token in zip(step.follows, tokens, strict=True):
            if not job.over and id(job) not in none | again:
                self._take(job, token, best, row)
        self._news.set()
        jobs = [*running, *(job for job, _ in chunk)]
        await self._keeper.keep(jobs, self._return_memory)

    async def _isolate(
        self, none: set[int], running: list[Job], chunk: list[tuple[Job, Piece]]
    ) -> set[int]:
        """Fail jobs for which no token can be chosen, once it is sure that they are the reason.

        Keys and values that are NaN reach all prompts of a chunk: where a mask hides them they are
        multiplied by 0, which gives NaN. So all prompts of the chunk begin again, each alone. NaN
        is also removed from the rows, because other sequences will have them.

        Args:
            none: ids of the jobs whose logits are all NaN or -inf.
            running: jobs of which the step has computed a token.
            chunk: prompts of which the step has computed a piece.

        Returns:
            Ids of the jobs that begin again.
        """
        await self._keeper.done()
        prompts = [job for job, _ in chunk]
        again: list[Job] = []
        if len(chunk) > 1 and any(id(job) in none for job in prompts):
            again = [job for job in self._taking_in if job.staged is not None]
        ended = [x for x in (*running, *prompts) if id(x) in none and x not in again]
        for job in (*again, *ended):
            assert job.slot is not None
            length = len(job.prompt) + job.n_predict
            spoilt = [(job.slot * self.model.ctx, length)]
            if job.staged is not None and job.taken_in < len(job.prompt):
                spoilt.append((self._slots * self.model.ctx + job.staged, len(job.prompt)))
            for first, n in spoilt:
                await self.model.clear_rows(first, n)
        for job in again:
            job.begin_again()
        self._fail(ended, EngineError(NO_TOKEN))
        for job in ended:
            job.kept = None  # keys and values that led to this are not stored
        return {id(job) for job in again}

    async def _reuse(self, job: Job) -> None:
        """Copy the stored beginning of a job's prompt to its slot."""
        if job.copies:
            self.counters.cached_tokens += job.cached
            copies, job.copies = job.copies, []
            await self._keeper.done()
            await self.model.copy_rows(copies)

    async def _computed(self, step: Intake) -> tuple[Best | None, list[int], list[float]]:
        """The best logits, if a job tells of them; each job's next token, and its logit.

        Where no token can be chosen the logit is NaN or -inf.
        """
        rows = [row for _, row in step.follows]
        if step.every:
            best = await self.model.best_of(step.batch, self._best, every=True)
            tokens = chosen(step.follows, best)
            return best, tokens, np.fmax.reduce(best.logits[rows], axis=1).tolist()
        drawn = draws(step.follows, step.batch.shape(0).logits, self._best)
        ids, logits = await (await self.model.queue(step.batch, draws=drawn))
        return None, ids.reshape(-1)[rows].tolist(), logits.reshape(-1)[rows].tolist()

    def _taken_in(self, job: Job, n: int) -> None:
        """Note that ``n`` more tokens of the job's prompt are processed."""
        job.taken_in += n
        self.counters.prompt_tokens += n
        if job.taken_in == len(job.prompt) and not job.over:
            self._taking_in.remove(job)
            assert job.slot is not None
            self._running[job.slot] = job
            self.counters.waited(time.perf_counter() - job.queued)

    def _take(self, job: Job, token: int, best: Best | None, row: int) -> None:
        """Give a job its next token, chosen from a row of the logits."""
        self.counters.tokens += job.take(token, best, row)
        self._told.append(job)
