"""Continues a prompt, with one continuation or several of them at once.

Here: the loop over steps. Not here: the model (decoder.py), text and tokens (../tokenizers/), the
choice of the next token (sampling.py).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio.lowlevel import checkpoint

from aggml.models.decoding.drawing import Draws
from aggml.models.decoding.sampling import Sampler, choose

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from aggml.models.decoding.decoder import F32
    from aggml.models.decoding.interface import Chosen, Decoding

__all__ = ["FEW", "Timing", "generate"]

FEW: Final = 64  # if samplers look at no more logits than this, only so many are brought here


@dataclass
class Timing:
    """The times of a generation, in seconds; `generate` updates them after each step."""

    prompt: float = 0.0
    steps: float = 0.0  # from the first token to the last, pauses between steps included
    tokens: int = 0  # tokens of all sequences in `steps`


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
    """Continue one prompt once for each sampler; each step computes all continuations.

    The device chooses the tokens if it can draw or if all samplers take the best token. It starts
    the next step while the tokens of this step are on their way to the host. So at the end one step
    may be computed in vain, and a sampler may have drawn one number too many.

    Args:
        model: has room for so many sequences.
        prompt: token ids, at least one.
        samplers: choose the tokens, one sampler for each sequence.
        n_predict: how many tokens at most.
        ends: tokens that end a sequence; they are not yielded.
        timing: is updated after each step.
        slot: the sequence of the first sampler; with several samplers it must be 0.

    Yields:
        The next token of each sequence, None for those that have ended.

    Cancellation, and closing the generator: aborts the running steps. The sequences are undefined;
    new ones may begin in their place.
    """
    timing = timing or Timing()
    begin = time.perf_counter()
    logits = await model.prefill(slot, prompt)
    if len(samplers) > 1:
        await model.share(len(prompt))
    timing.prompt = time.perf_counter() - begin
    if n_predict < 1:
        return
    chosen = await _each(samplers, np.broadcast_to(logits, (len(samplers), logits.size)))
    alive = [token not in ends for token in chosen]
    begin = time.perf_counter()
    first, last = len(prompt), len(prompt) + n_predict - 1
    async with contextlib.aclosing(
        _more(model, samplers, chosen, range(first, last), slot)
    ) as more:
        while any(alive):
            if all(alive):
                yield [*chosen]
            else:
                yield [token if is_ else None for token, is_ in zip(chosen, alive, strict=True)]
            try:
                chosen = await anext(more)
            except StopAsyncIteration:
                return
            timing.tokens += alive.count(True)
            timing.steps = time.perf_counter() - begin
            if not ends.isdisjoint(chosen):
                alive = [was and x not in ends for was, x in zip(alive, chosen, strict=True)]


def _more(
    model: Decoding, samplers: Sequence[Sampler], ids: list[int], places: range, slot: int
) -> AsyncGenerator[list[int]]:
    """Yields the tokens after ``ids``, which are put at the first of the positions ``places``."""
    if model.draws or all(sampler.temperature <= 0 for sampler in samplers):
        return _chained(model, samplers, ids, places, slot)
    return _drawn(model, samplers, ids, places, slot)


async def _chained(
    model: Decoding, samplers: Sequence[Sampler], ids: list[int], places: range, slot: int
) -> AsyncGenerator[list[int]]:
    """The device chooses; while one step is awaited, the next one is queued already."""
    under_way: deque[Chosen] = deque()
    among = max(sampler.looks_at(model.vocabulary) for sampler in samplers)

    try:
        for position in places:
            here = [position] * len(ids)
            if not under_way:
                draws = Draws.of(samplers, among) if among > 1 else None
                under_way.append(await model.follow(here, ids, slot, draws))
            if position + 1 < min(places.stop, model.ctx):
                after = [position + 1] * len(ids)
                draws = Draws.of(samplers, among) if among > 1 else None
                under_way.append(await model.follow(after, None, slot, draws))
            chosen = await under_way[0]
            under_way.popleft()
            yield chosen.tolist()
    finally:
        for step in under_way:
            step.abort()


async def _drawn(
    model: Decoding, samplers: Sequence[Sampler], ids: list[int], places: range, slot: int
) -> AsyncGenerator[list[int]]:
    """The samplers choose on the host; only the best logits come there if that is enough."""
    most = max(1 if sampler.temperature <= 0 else sampler.top_k for sampler in samplers)
    few = most <= min(FEW, model.vocabulary) and all(
        sampler.temperature <= 0 or sampler.top_k > 0 for sampler in samplers
    )
    for position in places:
        here = [position] * len(ids)
        if few:
            best = await model.decode_best(ids, here, most, slot)
            ids = choose(samplers, best.ids, best.logits)
        else:
            ids = await _each(samplers, await model.decode(ids, here, slot))
        yield ids


async def _each(samplers: Sequence[Sampler], logits: F32) -> list[int]:
    chosen = []
    for sampler, row in zip(samplers, logits, strict=True):
        chosen.append(sampler(row))
        await checkpoint()  # with a large vocabulary a draw takes a millisecond
    return chosen
