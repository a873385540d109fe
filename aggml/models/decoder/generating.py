"""Continues a prompt, with one continuation or several of them at once.

Here: the loop over steps. Not here: the model (decoder.py), text and tokens (../tokenizers/), the
choice of the next token (sampling.py).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio.lowlevel import checkpoint

from aggml.models.decoder.drawing import Draws
from aggml.models.decoder.sampling import Sampler, check_drawable, choose

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from aggml.models.decoder.decoder import F32
    from aggml.models.decoder.interface import Chosen, Decoding

__all__ = ["Continuation", "Timing", "generate"]

#: If samplers look at no more logits than this, only the best ones come from the device.
_MOST_BEST: Final = 64


@dataclass
class Timing:
    """The times of a generation, in seconds; `generate` updates them after each step."""

    prompt: float = 0.0
    steps: float = 0.0  # from the first token to the last, pauses between steps included
    tokens: int = 0  # tokens of all sequences in `steps`


class Continuation:
    """Continues one prompt once for each sampler; each step computes all continuations.

    The device chooses the tokens if it can draw or if all samplers take the best token. It starts
    the next step while the tokens of this step are on their way to the host. So at the end one step
    may be computed in vain, and a sampler may have drawn one number too many.

    It is no asynchronous generator: these end in their event loop, some time after they were
    dropped, whereas `close` ends this object at once, in any thread.

    Args:
        model: has room for so many sequences.
        prompt: token ids, at least one.
        samplers: choose the tokens, one sampler for each sequence.
        n_predict: how many tokens at most.
        ends: tokens that end a sequence; they are not returned.
        timing: is updated after each step.
        slot: the sequence of the first sampler; with several samplers it must be 0.
        start: how many first tokens of the prompt the sequence holds already.

    Attributes:
        stopped: whether every sequence ended with one of the tokens ``ends``.
        fed: the tokens that the first sequence holds: the prompt, and tokens of computed steps.
    """

    def __init__(
        self,
        model: Decoding,
        prompt: Sequence[int],
        samplers: Sequence[Sampler],
        *,
        n_predict: int,
        ends: frozenset[int] = frozenset(),
        timing: Timing | None = None,
        slot: int = 0,
        start: int = 0,
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._samplers = samplers
        self._left = n_predict
        self._ends = ends
        self._timing = timing or Timing()
        self._slot = slot
        self._start = start
        self._chosen: list[int] | None = None  # the tokens that were returned last
        self._alive = [True] * len(samplers)
        self._more: _Chained | _Drawn | None = None
        self._begin = 0.0
        self.stopped: bool = False
        self.fed: list[int] = []

    async def next(self) -> list[int | None] | None:
        """The next token of each sequence, None for those that have ended; None: all have ended.

        Cancellation: aborts the running steps. The sequences are undefined; new ones may begin in
        their place.
        """
        try:
            if self._chosen is None:
                chosen = await self._first()
            elif self._left < 1:
                return None
            else:
                chosen = await self._following()
        except BaseException:
            self.close()
            raise
        if chosen is None:
            return None
        self._chosen = chosen
        self._left -= 1
        self._alive = [
            alive and x not in self._ends for alive, x in zip(self._alive, chosen, strict=True)
        ]
        if not any(self._alive):
            self.stopped = True
            self._left = 0
            self.close()
            return None
        if all(self._alive):
            return [*chosen]
        return [x if alive else None for x, alive in zip(chosen, self._alive, strict=True)]

    async def _first(self) -> list[int] | None:
        """Process the prompt, and choose the first tokens."""
        model, prompt, samplers = self._model, self._prompt, self._samplers
        begin = time.perf_counter()
        start = self._start
        logits = await model.prefill(self._slot, prompt[start:] if start else prompt, start)
        self.fed = list(prompt)
        if len(samplers) > 1:
            await model.share(len(prompt))
        self._timing.prompt = time.perf_counter() - begin
        if self._left < 1:
            return None
        chosen = await _each(samplers, np.broadcast_to(logits, (len(samplers), logits.size)))
        self._begin = time.perf_counter()
        places = range(len(prompt), len(prompt) + self._left - 1)
        if model.draws or all(sampler.temperature <= 0 for sampler in samplers):
            self._more = _Chained(model, samplers, places, self._slot)
        else:
            self._more = _Drawn(model, samplers, places, self._slot)
        return chosen

    async def _following(self) -> list[int]:
        """Compute one more step."""
        before, more = self._chosen, self._more
        assert before is not None
        assert more is not None
        chosen = await more.step(before)
        self.fed.append(before[0])
        self._timing.tokens += self._alive.count(True)
        self._timing.steps = time.perf_counter() - self._begin
        return chosen

    def close(self) -> None:
        """Abort the running steps: nobody needs their tokens. From any thread, any number of times.

        The sequences are undefined; new ones may begin in their place.
        """
        if self._more is not None:
            self._more.close()


async def generate(
    model: Decoding,
    prompt: Sequence[int],
    samplers: Sequence[Sampler],
    *,
    n_predict: int,
    ends: frozenset[int] = frozenset(),
    timing: Timing | None = None,
    slot: int = 0,
) -> AsyncGenerator[list[int | None]]:
    """A `Continuation` as an asynchronous generator; the arguments are the same.

    Yields:
        The next token of each sequence, None for those that have ended.

    Cancellation, and closing the generator: aborts the running steps. The sequences are undefined;
    new ones may begin in their place.
    """
    steps = Continuation(
        model, prompt, samplers, n_predict=n_predict, ends=ends, timing=timing, slot=slot
    )
    try:
        while (chosen := await steps.next()) is not None:
            yield chosen
    finally:
        steps.close()


class _Chained:
    """The device chooses; while one step is awaited, the next one is queued already.

    Args:
        model: computes.
        samplers: of the sequences.
        places: the positions of the tokens that follow.
        slot: the first sequence.
    """

    def __init__(
        self, model: Decoding, samplers: Sequence[Sampler], places: range, slot: int
    ) -> None:
        self._model = model
        self._samplers = samplers
        self._position = places.start
        self._stop = min(places.stop, model.ctx)
        self._slot = slot
        self._n_logits = max(sampler.looks_at(model.vocabulary) for sampler in samplers)
        self._under_way: deque[Chosen] = deque()

    async def step(self, ids: list[int]) -> list[int]:
        """The tokens after ``ids``, which must be those that the last step returned."""
        position, under_way = self._position, self._under_way
        if not under_way:
            here = [position] * len(ids)
            under_way.append(await self._model.follow(here, ids, self._slot, self._draws()))
        if position + 1 < self._stop:
            after = [position + 1] * len(ids)
            under_way.append(await self._model.follow(after, None, self._slot, self._draws()))
        chosen = await under_way[0]
        under_way.popleft()
        self._position = position + 1
        found: list[int] = chosen.tolist()
        return found

    def _draws(self) -> Draws | None:
        return Draws.of(self._samplers, self._n_logits) if self._n_logits > 1 else None

    def close(self) -> None:
        """Abort the steps that are queued."""
        for step in list(self._under_way):
            step.abort()


class _Drawn:
    """The samplers choose on the host; only the best logits come there if that is enough.

    The arguments are those of `_Chained`.
    """

    def __init__(
        self, model: Decoding, samplers: Sequence[Sampler], places: range, slot: int
    ) -> None:
        self._model = model
        self._samplers = samplers
        self._position = places.start
        self._slot = slot
        most = max(1 if sampler.temperature <= 0 else sampler.top_k for sampler in samplers)
        is_bounded = all(sampler.temperature <= 0 or sampler.top_k > 0 for sampler in samplers)
        is_enough = is_bounded and most <= min(_MOST_BEST, model.vocabulary)
        self._most = most if is_enough else None  # None: all logits are needed

    async def step(self, ids: list[int]) -> list[int]:
        """The tokens after ``ids``."""
        here = [self._position] * len(ids)
        self._position += 1
        if self._most is not None:
            best = await self._model.decode_best(ids, here, self._most, self._slot)
            check_drawable(np.fmax.reduce(best.logits, axis=1))  # fmax ignores NaN
            return choose(self._samplers, best.ids, best.logits)
        return await _each(self._samplers, await self._model.decode(ids, here, self._slot))

    def close(self) -> None:
        """Do nothing: between two calls of `step` nothing is queued."""


async def _each(samplers: Sequence[Sampler], logits: F32) -> list[int]:
    chosen = []
    for sampler, row in zip(samplers, logits, strict=True):
        chosen.append(sampler(row))
        await checkpoint()  # with a large vocabulary a draw takes a millisecond
    return chosen
