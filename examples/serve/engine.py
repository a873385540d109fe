"""Continuous batching: sequences join and leave the running batch at every step.

Prompts are taken in by chunks between the steps of those that run, several short ones at once. All
that a step needs is decided between two steps, by one task; nothing here knows of HTTP. Not here:
memory of keys and values (paging.py).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Self

import anyio
import numpy as np
from llama import Batch

import aggml
from serve.paging import Pages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from types import TracebackType

    from llama import Best
    from sampling import Sampler

    from serve.paging import PagedLlama

BEST: Final = 64  # a token is chosen among so many; the rest never leaves the device
STAGED: Final = 8  # prompts taken in together
# Graphs are built for these sizes; what is smaller is filled up.
SEQUENCES: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
TOKENS: Final = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)

Reason = Literal["stop", "length"]


class EngineError(Exception):
    """A request could not be carried out; the cause is attached if there is one."""


class FullError(EngineError):
    """The queue is full, or the engine is stopping; try again after ``seconds``."""

    def __init__(self, message: str, seconds: int) -> None:
        super().__init__(message)
        self.seconds = seconds


class TooLongError(EngineError):
    """Prompt and answer do not fit the context, or the memory for keys and values."""


@dataclass(eq=False, slots=True)
class Job:
    """A sequence on its way, from the queue to its last token.

    Args:
        prompt: token ids, at least one.
        n_predict: tokens at most, at least one.
        sampler: chooses them.
        ends: tokens that end it; they are not given.
    """

    prompt: Sequence[int]
    n_predict: int
    sampler: Sampler
    ends: frozenset[int] = frozenset()
    slot: int | None = None
    taken_in: int = 0  # tokens of the prompt
    made: list[int] = field(default_factory=list)
    reason: Reason | None = None
    error: BaseException | None = None
    left: bool = False  # nobody wants it any more
    queued: float = 0.0
    news: anyio.Event = field(default_factory=anyio.Event)

    @property
    def over(self) -> bool:
        """Whether no more tokens will come."""
        return self.reason is not None or self.error is not None or self.left

    def tell(self) -> None:
        """Wake who waits for it."""
        self.news.set()


@dataclass
class Counters:
    """What happened so far; times in seconds."""

    steps: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    failed_steps: int = 0
    waited: Callable[[float], object] = lambda _: None  # told of each: from queued to first token
    stepped: Callable[[float], object] = lambda _: None  # told of each step's time


class Engine:
    """Runs any number of sequences on one model.

    ``async with Engine(model, pages) as engine: async for tokens in engine.stream(job): ...``

    Args:
        model: has STAGED slots more than ``slots``.
        slots: sequences at a time.
        budget: pages for keys and values.
        chunk: tokens of prompts between two steps of running sequences.
        max_waiting: jobs in the queue; more are refused.
    """

    def __init__(
        self,
        model: PagedLlama,
        *,
        slots: int,
        budget: int,
        chunk: int = 128,
        max_waiting: int = 256,
    ) -> None:
        if model.sequences < slots + STAGED:
            raise ValueError(f"{model.sequences} sequences are less than {slots} and {STAGED}")
        self.model = model
        self.pages = Pages(budget, slots)
        self.counters = Counters()
        self._slots = slots
        self._best = min(BEST, model.vocabulary)
        self._chunk = chunk
        self._max_waiting = max_waiting
        self._waiting: deque[Job] = deque()
        self._taking_in: deque[Job] = deque()  # have a slot; prompt not complete
        self._running: dict[int, Job] = {}  # by slot
        self._changed = anyio.Event()
        self._idle = anyio.Event()
        self._pace = 1.0  # seconds that a job took, lately
        self._closing = False

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._serve)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Stop at once. Whoever still waits gets an `EngineError`."""
        self._closing = True
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(kind, error, trace)
        finally:
            jobs = [*self._waiting, *self._taking_in, *self._running.values()]
            self._fail(jobs, EngineError("the server has stopped"))

    @property
    def queued(self) -> int:
        """Jobs that have no slot yet."""
        return len(self._waiting)

    @property
    def active(self) -> int:
        """Jobs that have a slot."""
        return len(self._taking_in) + len(self._running)

    async def drain(self, seconds: float) -> bool:
        """Refuse new jobs and wait for those there are; whether all ended in time."""
        self._closing = True
        with anyio.move_on_after(seconds):
            while self._waiting or self.active:
                self._idle = anyio.Event()
                await self._idle.wait()
        return not (self._waiting or self.active)

    async def stream(self, job: Job) -> AsyncGenerator[list[int], None]:
        """The tokens of a job as they come, those of one step at a time or more.

        Raises:
            FullError: the queue is full, or the engine is stopping.
            TooLongError: it could never run.
            EngineError: a step that it took part in failed.

        Cancellation, and closing the generator: the job's slot is free before the next step.
        """
        self.check([job])
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
        """Whether all of these may be queued now.

        Raises:
            FullError, TooLongError: as `stream`.
        """
        for job in jobs:
            length = len(job.prompt) + job.n_predict
            if not job.prompt or job.n_predict < 1:
                raise TooLongError("there must be at least one token of prompt and one of answer")
            if length >= self.model.ctx:
                raise TooLongError(
                    f"{len(job.prompt)} tokens of prompt and {job.n_predict} more do not fit a "
                    f"context of {self.model.ctx - 1}"
                )
            if Pages.of(length) > self.pages.budget:
                raise TooLongError(
                    f"{length} tokens need {Pages.of(length)} pages, of {self.pages.budget} in all"
                )
        if self._closing:
            raise FullError("the server is stopping", 5)
        if len(self._waiting) + len(jobs) > self._max_waiting:
            seconds = self._pace * len(self._waiting) / self._slots
            raise FullError(
                f"{len(self._waiting)} requests wait already", max(1, min(60, round(seconds)))
            )

    # -- between two steps

    async def _serve(self) -> None:
        while True:
            await self._clear()
            self._admit()
            if not self.active:
                if not self._waiting:
                    self._idle.set()
                self._changed = anyio.Event()
                await self._changed.wait()
                continue
            if self._taking_in:
                await self._guarded(self._take_in, self._next_prompts())
            if self._running:
                await self._guarded(self._decode, list(self._running.values()))

    async def _clear(self) -> None:
        """Free the slots of those that are over."""
        self._waiting = deque(job for job in self._waiting if not job.left)
        self._taking_in = deque(job for job in self._taking_in if not self._ended(job))
        for job in [job for job in self._running.values() if job.over]:
            assert job.slot is not None
            del self._running[job.slot]
            self._ended(job)
        if not self._taking_in:
            await self._close_ranks()

    def _ended(self, job: Job) -> bool:
        if job.over and job.slot is not None:
            self.model.forget(job.slot)
            self.pages.give_back(job.slot)
            job.slot = None
            self._pace += 0.1 * (time.perf_counter() - job.queued - self._pace)
        return job.over

    async def _close_ranks(self) -> None:
        """Steps compute all slots up to the highest: move that one down if it pays."""
        while self._running:
            highest = max(self._running)
            if _size(highest + 1, SEQUENCES) == _size(len(self._running), SEQUENCES):
                return
            lower = self.pages.move(highest)
            if lower is None:
                return
            job = self._running.pop(highest)
            job.slot = lower
            self._running[lower] = job
            try:
                await self.model.move(highest, lower, len(job.prompt) + len(job.made))
            except aggml.AggmlError as error:
                self._fail([job], error)
            self.model.forget(highest)

    def _admit(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            slot = self.pages.take(len(job.prompt) + job.n_predict)
            if slot is None:
                return
            self._waiting.popleft()
            job.slot = slot
            self._taking_in.append(job)

    async def _guarded(self, step: Callable[[list[Job]], Awaitable[None]], jobs: list[Job]) -> None:
        """Carry out a step; if it fails, those in it fail, and nobody else."""
        begin = time.perf_counter()
        try:
            await step(jobs)
        except aggml.AggmlError as error:
            self.counters.failed_steps += 1
            self._fail(jobs, error)
        self.counters.steps += 1
        self.counters.stepped(time.perf_counter() - begin)

    @staticmethod
    def _fail(jobs: list[Job], error: BaseException) -> None:
        for job in jobs:
            if not job.over:
                job.error = error
                job.tell()

    # -- prompts

    def _next_prompts(self) -> list[Job]:
        """The oldest prompt, and others that fit into the same step.

        A prompt longer than a step is in the first of the staging slots until it is complete.
        """
        first = self._taking_in[0]
        limit = self._chunk if self._running else max(self._chunk, TOKENS[-1])
        tokens = _size(min(len(first.prompt) - first.taken_in, limit), TOKENS)
        group = [first]
        room = min(STAGED, limit // tokens)
        for job in list(self._taking_in)[1:]:
            if len(group) >= room:
                break
            if not job.taken_in and len(job.prompt) <= tokens:
                group.append(job)
        return group

    async def _take_in(self, jobs: list[Job]) -> None:
        limit = self._chunk if self._running else max(self._chunk, TOKENS[-1])
        pieces = [job.prompt[job.taken_in : job.taken_in + limit] for job in jobs]
        tokens = _size(max(map(len, pieces)), TOKENS)
        n = _size(len(jobs), SEQUENCES)
        ctx, staging = self.model.ctx, self._slots
        # A token that fills up repeats the last position and is written where nobody looks.
        ids = np.zeros((n, tokens), np.int32)
        positions = np.zeros((n, tokens), np.int32)
        nowhere = (np.arange(staging, staging + n)[:, None] + 1) * ctx - 1
        rows = np.repeat(nowhere, tokens, 1).astype(np.int32)
        staged = rows.copy()
        last = np.zeros(n, np.int32)
        for i, (job, piece) in enumerate(zip(jobs, pieces, strict=True)):
            assert job.slot is not None
            k = len(piece)
            ids[i, :k] = piece
            positions[i] = np.minimum(np.arange(tokens), k - 1) + job.taken_in
            rows[i, :k] = positions[i, :k] + job.slot * ctx
            staged[i, :k] = positions[i, :k] + (staging + i) * ctx
            last[i] = k - 1
        batch = Batch(ids, positions, (rows, staged), last)
        best = await self.model.best_of(batch, staging, self._best)
        for i, (job, piece) in enumerate(zip(jobs, pieces, strict=True)):
            job.taken_in += len(piece)
            self.counters.prompt_tokens += len(piece)
            if job.taken_in < len(job.prompt):
                continue
            self._taking_in.remove(job)
            assert job.slot is not None
            self._running[job.slot] = job
            self.counters.waited(time.perf_counter() - job.queued)
            self._choose(job, best, i)
            if len(job.prompt) > TOKENS[-1]:
                self.model.forget(staging + i)  # short prompts leave it to the next ones

    # -- steps

    async def _decode(self, jobs: list[Job]) -> None:
        """One token more for all that run."""
        jobs = [job for job in jobs if not job.over]
        if not jobs:
            return
        ctx = self.model.ctx
        n = min(_size(max(self._running) + 1, SEQUENCES), self._slots)
        ids, positions = np.zeros((2, n, 1), np.int32)
        rows = ((np.arange(n, dtype=np.int32)[:, None] + 1) * ctx - 1).astype(np.int32)
        for job in jobs:
            assert job.slot is not None
            position = len(job.prompt) + len(job.made) - 1
            ids[job.slot] = job.made[-1]
            positions[job.slot] = position
            rows[job.slot] = job.slot * ctx + position
        batch = Batch(ids, positions, (rows,), np.zeros(n, np.int32))
        best = await self.model.best_of(batch, 0, self._best)
        for job in jobs:
            assert job.slot is not None
            self._choose(job, best, job.slot)

    def _choose(self, job: Job, best: Best, row: int) -> None:
        """Take the next token of a job."""
        if job.over:
            return
        token = job.sampler.among(best.ids[row], best.logits[row])
        if token in job.ends:
            job.reason = "stop"
        else:
            job.made.append(token)
            self.counters.tokens += 1
            if len(job.made) == job.n_predict:
                job.reason = "length"
        job.tell()


def _size(n: int, sizes: Sequence[int]) -> int:
    """The least of the sizes that holds ``n``."""
    return next((size for size in sizes if size >= n), n)
