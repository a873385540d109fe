"""PipelineEngine: requests on a model whose stages lie on other machines.

Who gets a slot, and who gives one up, is decided by the policy of the engine of one machine
(aggml.models.stages). Each request drives its own steps; the dispatcher puts steps of several
requests into one batch of the stages. Here: slots, and the next token of a request. Not here: the
steps (decoder.py), batches (dispatch.py).
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio
import numpy as np

from aggml.models import DeadlineError, EngineError, FullError, NotFiniteError, TooLongError
from aggml.models.stages import (
    AGING,
    Best,
    Counters,
    PageUsage,
    Shares,
    admit,
    choose_tokens,
    view_of,
)
from aggml.process.locks import new_lock
from aggml.stream.parker import Parker

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from aggml.models.stages import F32, TextRequest
    from aggml.ray.decoder import PipelineDecoder

__all__ = ["PipelineEngine"]

FEW: Final = 64  # if no more tokens can be drawn, only so many logits are brought here


class PipelineEngine:
    """Runs requests on a `PipelineDecoder`; it has the methods of `aggml.models`' engine.

    A request that is preempted goes on later with the same tokens: they go through the stages once
    more, because these keep nothing but what lies in their slots.

    Args:
        decoder: computes.
        max_waiting: requests that wait for a slot; more are refused.
    """

    def __init__(self, decoder: PipelineDecoder, max_waiting: int = 256) -> None:
        self.decoder = decoder
        self.slots: int = decoder.sequences
        self.max_waiting = max_waiting
        self.counters: Counters = Counters()
        self._lock = new_lock()  # of all below; held for moments only
        self._free = list(range(decoder.sequences))
        self._requests: dict[TextRequest, None] = {}
        self._waiting: dict[TextRequest, Parker] = {}  # those whose tasks wait for a slot
        self._in_step: set[TextRequest] = set()
        self._yielding: set[TextRequest] = set()  # preempted, when their steps end
        self._gone: deque[TextRequest] = deque()  # they have left, and are not removed yet
        self._shares = Shares()
        self._numbers = itertools.count(1)
        self._closing: str | None = None

    def submit(self, request: TextRequest) -> None:
        """Queue a request.

        Raises:
            FullError: the queue is full, or the engine has stopped.
            TooLongError: the request could never run.
        """
        self._check(request, 1)
        request.number = next(self._numbers)
        with self._lock_slots():
            self._requests[request] = None
            self._shares.enter(request.caller)
        if request.constraint is not None:
            before = request.tokens[request.prompt - request.drawn :]
            request.constraint.begin(lambda: None, before)

    def _check(self, request: TextRequest, more: int) -> None:
        if request.limit - 1 > self.decoder.ctx:
            raise TooLongError(
                f"[{request.place}] {request.prompt} tokens of prompt and {request.max_tokens} "
                f"more do not fit a context of {self.decoder.ctx}"
            )
        if self._closing is not None:
            raise FullError(f"[{request.place}] {self._closing}", 5)
        if self.queued + more - len(self._free) > self.max_waiting:
            raise FullError(
                f"[{request.place}] the queue is full: {self.queued} requests wait already", 1
            )

    async def fetch(self, request: TextRequest) -> None:
        """Do nothing: stages store no beginnings."""

    async def flush(self) -> None:
        """Do nothing, as `fetch`."""

    async def next(self, request: TextRequest) -> list[int]:
        """The next token of a request; none: it is over.

        Raises:
            EngineError: a step failed, no token can be chosen, or the engine has stopped.
            DeadlineError: the deadline has passed.

        Cancellation: aborts the step; `cancel` ends the request.
        """
        if request.error is None and not request.over:
            left = None if request.deadline is None else request.deadline - time.monotonic()
            with anyio.move_on_after(left) as scope:
                await self._step(request)
            if scope.cancelled_caught:
                self.cancel(request)
                raise DeadlineError(
                    f"[{request.place}] the deadline has passed, with {request.made} of at most "
                    f"{request.max_tokens} tokens made"
                )
        if request.error is not None:
            raise request.error
        first = request.prompt + request.given
        tokens = request.tokens[first:]
        request.given += len(tokens)
        return tokens

    async def _step(self, request: TextRequest) -> None:
        slot = await self._begin(request)
        try:
            await self._compute(request, slot)
        finally:
            self._end(request)

    async def _begin(self, request: TextRequest) -> int:
        """Wait for a slot, unless the request has one; it keeps it until its step ends."""
        parker = Parker()
        try:
            while not request.over:
                with self._lock_slots():
                    if request.slot is None:
                        self._waiting[request] = parker
                        self._admit()
                    if request.slot is not None:
                        self._in_step.add(request)
                        return request.slot
                await parker.park()
        finally:
            self._waiting.pop(request, None)
        raise request.error or EngineError("[generate] the request has ended")

    def _end(self, request: TextRequest) -> None:
        with self._lock_slots():
            self._in_step.discard(request)
            if request in self._yielding:
                self._give_up(request)
                self._admit()
        if request.over:
            self._leave(request)

    @contextmanager
    def _lock_slots(self) -> Generator[None]:
        """A block that decides about slots; at its end, requests that have left are removed."""
        with self._lock:
            yield
        self._sweep()

    def _sweep(self) -> None:
        """Remove the requests that have left; if the lock is taken, its owner does it.

        Who leaves never waits for the lock: Python's collector may end a stream of tokens in the
        middle of a block of the same thread.
        """
        while self._gone and self._lock.acquire(blocking=False):
            try:
                while self._gone:
                    self._remove(self._gone.popleft())
                self._admit()
            finally:
                self._lock.release()

    # -- with the lock

    def _admit(self) -> None:
        """Give slots to those who come next. Others make room for them when their steps end."""
        if not self._waiting:
            return
        requests = [x for x in list(self._requests) if not x.over]
        by_number = {x.number: x for x in requests}
        running = [x for x in requests if x.slot is not None and x not in self._yielding]
        found = admit(
            [view_of(x, self._shares, 0) for x in requests if x in self._waiting],
            [view_of(x, self._shares, 0) for x in running],
            slots=len(self._free) + len(self._yielding), pages=0, now=time.monotonic(),
        )  # fmt: skip
        for number in found.preempted:
            victim = by_number[number]
            self._yielding.add(victim)
            if victim not in self._in_step:
                self._give_up(victim)
        for number, waited in zip(found.admitted, found.waited, strict=True):
            if not self._free:
                break
            one = by_number[number]
            one.slot, one.waited = self._free.pop(), waited
            self._shares.turn(one.standing, time.monotonic())
            self._waiting.pop(one).unpark()

    def _give_up(self, request: TextRequest) -> None:
        """Take the slot of a preempted request."""
        self._yielding.discard(request)
        if request.slot is None:
            return
        self._free.append(request.slot)
        request.slot = None
        if not request.over:
            self.counters.preemptions += 1
            request.preempted += 1
            request.waited += AGING  # so nobody is preempted again and again
            request.queued = time.monotonic()
            request.begin_again()
            request.arrays.clear()

    # -- a step

    async def _compute(self, request: TextRequest, slot: int) -> None:
        decoder = self.decoder
        if request.result != "tokens":
            compute = decoder.logits if request.result == "logits" else decoder.hidden
            request.arrays.append(await compute(request.tokens, slot))
            request.reason = "length"
        else:
            whole = request.needs_logits or request.adjuster is not None
            sampler = request.sampler
            assert sampler is not None
            need = sampler.count_candidates(decoder.vocabulary)
            if request.computed == 0:
                request.report()
                row = await decoder.prefill(slot, request.tokens)
                best = _best(row, min(max(need, FEW), decoder.vocabulary))
            elif whole or need > FEW:
                logits = await decoder.decode([request.tokens[-1]], [request.computed], slot)
                best = _best(logits[0], min(max(need, FEW), decoder.vocabulary))
            else:
                few = min(FEW, decoder.vocabulary)
                best = await decoder.decode_best(
                    [request.tokens[-1]], [request.computed], few, slot
                )
            self._shares.charge(request.caller, len(request.tokens) - request.computed)
            request.computed = len(request.tokens)
            request.report()
            if not np.fmax.reduce(best.logits[0]) > -np.inf:
                request.error = NotFiniteError(
                    "[sample] no token can be chosen, because all logits are NaN or -inf: the "
                    "model's numbers overflow, or its file is damaged"
                )
            else:
                if request.constraint is not None:
                    await request.constraint.wait_for_mask()
                    request.look_at_mask()
                if not request.over:
                    (token,) = choose_tokens([(request, 0)], best)
                    if token is None:
                        request.error = EngineError(
                            "[sample] no token that is allowed can be chosen"
                        )
                    else:
                        self.counters.tokens += request.take(token, best, 0)

    def cancel(self, request: TextRequest) -> None:
        """End a request: its slot is free for the next one. From any thread."""
        if not request.over:
            request.left = True
        self._leave(request)

    def _leave(self, request: TextRequest) -> None:
        self._gone.append(request)
        self._sweep()

    def _remove(self, request: TextRequest) -> None:
        """Forget a request; with the lock."""
        if request in self._requests:
            del self._requests[request]
            self._shares.leave(request.caller)
        self._yielding.discard(request)
        self._in_step.discard(request)
        slot, request.slot = request.slot, None
        if slot is not None:
            self._free.append(slot)
        parker = self._waiting.pop(request, None)
        if parker is not None:
            parker.unpark()

    @property
    def page_usage(self) -> PageUsage:
        """None: the stages count their own memory."""
        return PageUsage()

    @property
    def owed(self) -> int:
        """Tokens of prompts and answers that are still to come, at most."""
        return sum(x.limit - x.computed for x in list(self._requests) if not x.over)

    def check(self, requests: Sequence[TextRequest]) -> None:
        """Check that all of these requests may be queued now.

        Raises:
            FullError, TooLongError: as `submit`.
        """
        for request in requests:
            self._check(request, len(requests))

    def tidy(self) -> None:
        """Do nothing: `cancel` frees the slot."""

    def stop(self, why: str = "the engine is stopping") -> None:
        """Refuse new requests."""
        self._closing = why

    @property
    def active(self) -> int:
        """Requests that have a slot."""
        return self.slots - len(self._free)

    @property
    def queued(self) -> int:
        """Requests that have none yet."""
        return sum(x.slot is None for x in list(self._requests))

    def cut_off(self, error: BaseException | None = None) -> None:
        """Refuse new requests and end the present ones: they fail."""
        self.stop("the engine has stopped")
        for request in list(self._requests):
            if not request.over:
                request.error = error or EngineError("[generate] the engine was stopped")
                parker = self._waiting.get(request)
                if parker is not None:
                    parker.unpark()


def _best(row: F32, n: int) -> Best:
    """The ``n`` best logits of a row, and all of them."""
    ids = np.argpartition(-row, n - 1)[:n].astype(np.int32)
    if np.isnan(row).any():
        finite = np.where(np.isnan(row), np.float32(-np.inf), row)
        ids = np.argpartition(-finite, n - 1)[:n].astype(np.int32)
    return Best(ids[None], row[ids][None], row[None])
