"""PipelineEngine: requests on a model whose stages lie on other machines.

Each request drives its own steps; the dispatcher puts steps of several requests into one batch of
the stages. Here: slots, and the next token of a request. Not here: the steps (decoder.py), batches
(dispatch.py), the engine of a model on one machine (aggml.models).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio
import numpy as np

from aggml.models import DeadlineError, EngineError, FullError, NotFiniteError, TooLongError
from aggml.models.stages import Best, Counters, PageUsage, choose_tokens
from aggml.stream.slot_pool import SlotPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.stages import F32, TextRequest
    from aggml.ray.decoder import PipelineDecoder

__all__ = ["PipelineEngine"]

FEW: Final = 64  # if no more tokens can be drawn, only so many logits are brought here


class PipelineEngine:
    """Runs requests on a `PipelineDecoder`; it has the methods of `aggml.models`' engine.

    Priorities are the order in which slots are given out, first come, first served; nobody is
    preempted.

    Args:
        decoder: computes.
        max_waiting: requests that wait for a slot; more are refused.
    """

    def __init__(self, decoder: PipelineDecoder, max_waiting: int = 256) -> None:
        self.decoder = decoder
        self.slots: int = decoder.sequences
        self.max_waiting = max_waiting
        self.counters: Counters = Counters()
        self._pool = SlotPool(decoder.sequences)
        self._requests: dict[TextRequest, None] = {}
        self._closing: str | None = None

    def submit(self, request: TextRequest) -> None:
        """Queue a request.

        Raises:
            FullError: the queue is full, or the engine has stopped.
            TooLongError: the request could never run.
        """
        self._check(request, 1)
        self._requests[request] = None
        if request.constraint is not None:
            before = request.tokens[request.prompt - request.drawn :]
            request.constraint.begin(lambda: None, before)

    def _check(self, request: TextRequest, more: int) -> None:
        if request.limit - 1 > self.decoder.ctx:
            raise TooLongError(
                f"{request.prompt} tokens of prompt and {request.max_tokens} more do not fit a "
                f"context of {self.decoder.ctx}"
            )
        if self._closing is not None:
            raise FullError(self._closing, 5)
        if self.queued + more - self._pool.free > self.max_waiting:
            raise FullError(f"the queue is full: {self.queued} requests wait already", 1)

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
                raise DeadlineError(f"the deadline has passed with {request.made} tokens made")
        if request.error is not None:
            raise request.error
        first = request.prompt + request.given
        tokens = request.tokens[first:]
        request.given += len(tokens)
        return tokens

    async def _step(self, request: TextRequest) -> None:
        if request.slot is None:
            request.slot = await self._pool.take()
        decoder, slot = self.decoder, request.slot
        if request.result != "tokens":
            compute = decoder.logits if request.result == "logits" else decoder.hidden
            request.arrays.append(await compute(request.tokens, slot))
            request.reason = "length"
        else:
            whole = request.needs_logits or request.adjuster is not None
            sampler = request.sampler
            assert sampler is not None
            need = sampler.looks_at(decoder.vocabulary)
            if request.computed == 0:
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
            request.computed = len(request.tokens)
            if not np.fmax.reduce(best.logits[0]) > -np.inf:
                request.error = NotFiniteError(
                    "no token can be chosen, because all logits are NaN or -inf: the model's "
                    "numbers overflow, or its file is damaged"
                )
            else:
                if request.constraint is not None:
                    await request.constraint.settled()
                    request.look_at_mask()
                if not request.over:
                    (token,) = choose_tokens([(request, 0)], best)
                    if token is None:
                        request.error = EngineError("no token that is allowed can be chosen")
                    else:
                        self.counters.tokens += request.take(token, best, 0)
        if request.over:
            self._leave(request)

    def cancel(self, request: TextRequest) -> None:
        """End a request: its slot is free for the next one. From any thread."""
        if not request.over:
            request.left = True
        self._leave(request)

    def _leave(self, request: TextRequest) -> None:
        self._requests.pop(request, None)
        slot, request.slot = request.slot, None
        if slot is not None:
            self._pool.give(slot)

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
        return self.slots - self._pool.free

    @property
    def queued(self) -> int:
        """Requests that have none yet."""
        return sum(x.slot is None for x in list(self._requests))

    def cut_off(self, error: BaseException | None = None) -> None:
        """Refuse new requests and end the present ones: they fail."""
        self.stop("the engine has stopped")
        for request in list(self._requests):
            if not request.over:
                request.error = error or EngineError("the engine was stopped")


def _best(row: F32, n: int) -> Best:
    """The ``n`` best logits of a row, and all of them."""
    ids = np.argpartition(-row, n - 1)[:n].astype(np.int32)
    if np.isnan(row).any():
        finite = np.where(np.isnan(row), np.float32(-np.inf), row)
        ids = np.argpartition(-finite, n - 1)[:n].astype(np.int32)
    return Best(ids[None], row[ids][None], row[None])
