"""Who gets a slot of a pipeline: priorities, callers, preemption, with an imitated decoder.

Each answer must be what the request gets alone. Not here: stages (test_pipeline.py), which slots go
into one step (test_dispatch.py).
"""

from __future__ import annotations

import random
import zlib
from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
import ray_cluster  # noqa: F401 skips all of it where Ray is missing

from aggml.models import EngineError
from aggml.models.decoder.sampling import Sampler
from aggml.models.stages import Best, TextRequest
from aggml.ray.engine import PipelineEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCABULARY = 64


def token_after(ids: Sequence[int]) -> int:
    """The best token: it depends on all tokens before."""
    return zlib.crc32(array("i", ids).tobytes()) % VOCABULARY


class Slots:
    """A decoder that knows which tokens each slot has. A step takes some turns of the loop."""

    model = SimpleNamespace(architecture="imitated")
    vocabulary = VOCABULARY
    ctx = 256

    def __init__(self, sequences: int, seed: int = 0) -> None:
        self.sequences = sequences
        self.slots: dict[int, list[int]] = {}
        self.busy: set[int] = set()
        self.steps = 0
        self._random = random.Random(seed)

    async def _step(self, slot: int) -> np.ndarray:
        assert slot not in self.busy, "two requests use a slot"
        self.busy.add(slot)
        try:
            self.steps += 1
            for _ in range(self._random.randrange(3)):
                await anyio.lowlevel.checkpoint()
        finally:
            self.busy.discard(slot)
        row = np.zeros(VOCABULARY, np.float32)
        row[token_after(self.slots[slot])] = 1
        return row

    async def prefill(self, slot: int, ids: Sequence[int]) -> np.ndarray:
        self.slots[slot] = list(ids)
        return await self._step(slot)

    async def decode_best(
        self, ids: Sequence[int], positions: Sequence[int], best: int, slot: int
    ) -> Best:
        assert len(self.slots[slot]) == positions[0], "the slot has tokens of another request"
        self.slots[slot] += ids
        row = await self._step(slot)
        order = np.argsort(-row, kind="stable")[:best].astype(np.int32)
        return Best(order[None], row[order][None])


def engine_of(sequences: int, seed: int = 0) -> PipelineEngine:
    decoder: Any = Slots(sequences, seed)
    return PipelineEngine(decoder)


def request(prompt: list[int], n: int, **options: Any) -> TextRequest:
    return TextRequest(list(prompt), n, Sampler(temperature=0), **options)


def right(prompt: list[int], n: int) -> list[int]:
    ids = list(prompt)
    for _ in range(n):
        ids.append(token_after(ids))
    return ids[len(prompt) :]


async def all_of(engine: PipelineEngine, one: TextRequest) -> list[int]:
    """Submit a request and take its tokens."""
    engine.submit(one)
    return await rest_of(engine, one)


async def rest_of(engine: PipelineEngine, one: TextRequest) -> list[int]:
    """The tokens of a request that was submitted."""
    found: list[int] = []
    try:
        while tokens := await engine.next(one):
            found += tokens
    finally:
        engine.cancel(one)
    return found


async def test_a_higher_priority_comes_first_and_takes_a_slot() -> None:
    engine = engine_of(1)
    order: list[str] = []

    async def take(name: str, one: TextRequest) -> None:
        assert await rest_of(engine, one) == right([1, 4], 4)
        order.append(name)

    first = request([5, 6], 30)
    engine.submit(first)
    found = await engine.next(first)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            priorities = {"low": -1, "same": 0, "high": 9, "higher": 12}
            queued = {name: request([1, 4], 4, priority=x) for name, x in priorities.items()}
            for one in queued.values():
                engine.submit(one)
            # Trio begins tasks in any order, and "high" may not preempt before "higher".
            tasks.start_soon(take, "higher", queued.pop("higher"))
            await anyio.lowlevel.checkpoint()
            for name, one in queued.items():
                tasks.start_soon(take, name, one)
            while tokens := await engine.next(first):
                found += tokens
            order.append("first")
            engine.cancel(first)
    assert order == ["higher", "high", "first", "same", "low"]
    assert found == right([5, 6], 30)
    assert engine.counters.preemptions == 1
    assert (engine.active, engine.queued, engine.owed) == (0, 0, 0)


async def test_a_request_whose_tokens_nobody_takes_is_preempted_at_once() -> None:
    engine = engine_of(1)
    first = request([5, 6], 9)
    engine.submit(first)
    found = await engine.next(first)
    with anyio.fail_after(60):
        assert await all_of(engine, request([7], 3, priority=1)) == right([7], 3)
        while tokens := await engine.next(first):
            found += tokens
    assert found == right([5, 6], 9)
    engine.cancel(first)


async def test_callers_of_one_priority_take_turns() -> None:
    """One with many requests does not keep another one waiting until all of them are done."""
    engine = engine_of(1)
    order: list[str] = []

    async def ask(who: str, i: int) -> None:
        await all_of(engine, request([2, i], 5, caller=who))
        order.append(who)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for i in range(6):
                tasks.start_soon(ask, "many", i)
            while engine.active == 0:
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(ask, "few", 9)
    assert order.index("few") <= 2


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("seed", range(6))
async def test_requests_that_come_leave_and_preempt_get_what_each_gets_alone(seed: int) -> None:
    draws = random.Random(seed)
    engine = engine_of(3, seed)
    wrong: list[Any] = []

    async def one(i: int) -> None:
        prompt = [draws.randrange(VOCABULARY) for _ in range(draws.randint(1, 9))]
        n = draws.randint(1, 25)
        patience = draws.choice([None, None, 0, 3])
        asked = request(prompt, n, priority=draws.choice([0, 0, 1, 7]), caller=i % 3)
        for _ in range(draws.randrange(40)):
            await anyio.lowlevel.checkpoint()
        engine.submit(asked)
        found: list[int] = []
        try:
            with anyio.CancelScope() as scope:
                if patience == 0:
                    scope.cancel()
                while tokens := await engine.next(asked):
                    found += tokens
                    if patience is not None and len(found) >= patience:
                        return
        finally:
            engine.cancel(asked)
        if not scope.cancelled_caught and found != right(prompt, n):
            wrong.append((prompt, n, found))

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for i in range(60):
                tasks.start_soon(one, i)
    assert not wrong
    assert (engine.active, engine.queued, engine.owed) == (0, 0, 0)
    assert sorted(engine._free) == [0, 1, 2]
    left = [*engine._waiting, *engine._in_step, *engine._yielding, *engine._requests]
    assert not left
    assert engine.counters.preemptions


async def test_an_engine_that_is_cut_off_ends_those_that_wait() -> None:
    engine = engine_of(1)
    ended: list[str] = []

    async def ask(i: int) -> None:
        with pytest.raises(EngineError, match="stopped"):
            await all_of(engine, request([i], 200))
        ended.append("it")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for i in range(3):
                tasks.start_soon(ask, i)
            while engine.active + engine.queued < 3 or engine.counters.tokens < 5:
                await anyio.lowlevel.checkpoint()
            engine.cut_off()
    assert len(ended) == 3
