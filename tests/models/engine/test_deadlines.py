"""Deadlines: refused at once or answered in time, never late; a full queue says when to come again.

Also here: how much a prompt of somebody else lengthens the pause between two tokens.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel
import pytest
from models import random_models
from models.engine.test_preemption import steps
from models.engine.tiny import answer, engines, prompt, request, rest, settle

import aggml
from aggml.models.engine import engine as engine_module
from aggml.models.engine.policy import Rates
from aggml.models.engine.staging import Piece
from aggml.models.errors import DeadlineError, FullError

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.engine.requests import TextRequest


class Clock:
    """A clock that stands still until the test sets it; only the engine sees it."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now

    perf_counter = staticmethod(time.perf_counter)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(engine_module, "time", made)
    return made


def due(clock: Clock, seconds: float, tokens: int = 20, n: int = 10, **more: Any) -> TextRequest:
    """A request with a deadline so many seconds from now."""
    one = request(prompt(tokens, 3), n, **more)
    one.arrived = one.queued = clock.now
    one.deadline = clock.now + seconds
    return one


async def test_a_request_that_would_be_late_is_refused_at_once(
    tmp_path: Path, clock: Clock
) -> None:
    async with engines(tmp_path, slots=1) as engine:
        engine._rates = Rates(prompt=0.1, step=1.0)  # 20 tokens and 10 more: 12 s
        with pytest.raises(DeadlineError, match=r"11\.90 s from now.*expected in 12\.00 s"):
            engine.submit(due(clock, 11.9))
        assert engine.counters.refused == 1
        engine.submit(one := due(clock, 12.1))
        # The next one waits for it: 12 s more. One of a higher priority does not.
        with pytest.raises(DeadlineError):
            engine.submit(due(clock, 23.9))
        engine.submit(two := due(clock, 24.1))
        engine.submit(urgent := due(clock, 12.1, priority=1))
        with pytest.raises(DeadlineError):
            engine.submit(due(clock, 0.0))
        for each in (one, two, urgent):
            assert len(await rest(engine, each)) == 10
        await settle(engine)


async def test_without_a_measurement_nobody_is_refused(tmp_path: Path, clock: Clock) -> None:
    async with engines(tmp_path, slots=1) as engine:
        engine.submit(one := due(clock, 1e-6))
        engine.cancel(one)
        assert len(await answer(engine, due(clock, 1000.0))) == 10
        engine.turn()
        with pytest.raises(DeadlineError, match="is expected in"):
            engine.submit(due(clock, 1e-6))  # now it is measured
        await settle(engine)


async def test_short_prompts_do_not_make_a_long_one_look_slow(tmp_path: Path) -> None:
    """A step of two tokens takes nearly as long as one of fifty."""
    async with engines(tmp_path, slots=1) as engine:
        one = request(prompt(2), 1)
        for n, seconds in [(2, 0.01), (2, 0.01), (400, 0.1), (2, 0.01), (2, 0.01)]:
            chunk = [(one, Piece(prompt(n), 0, 0, None))]
            plan = SimpleNamespace(chunk=chunk, running=[], chained=False, drafts={})
            engine._measure(cast("Any", plan), seconds)
        assert engine._rates.prompt is not None
        assert 0.1 / 400 < engine._rates.prompt < 2 * 0.1 / 400


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("when", ["queue", "prompt", "tokens", "last token"])
async def test_a_deadline_that_passes_ends_that_request_alone(
    tmp_path: Path, clock: Clock, when: str
) -> None:
    async with engines(tmp_path, slots=2, chunk=32) as engine:
        wanted = [await answer(engine, request(prompt(9, i), 30)) for i in range(2)]
        engine.submit(other := request(prompt(9, 0), 30))
        await steps(engine, 2)
        second = None
        if when == "queue":
            engine.submit(second := request(prompt(9, 1), 30))
            await steps(engine, 1)
        engine._rates = Rates()
        engine.submit(one := due(clock, 1000.0, tokens=300 if when == "prompt" else 20))
        await steps(engine, 3)
        if when == "tokens":
            while one.made < 2:
                await steps(engine, 1)
        elif when == "last token":
            while one.made < 8:  # two steps may end at a time, and it must not be over
                await steps(engine, 1)
        assert (one.slot is None) == (when == "queue")
        assert not one.over
        clock.now += 1001.0  # whatever comes from now on is late
        before = one.made
        await anyio.lowlevel.checkpoint()
        while not one.over:
            await steps(engine, 1)
        assert one.made == before
        one.given = one.made
        with pytest.raises(DeadlineError, match="the deadline has passed after"):
            await engine.next(one)
        assert engine.counters.late == 1
        assert await rest(engine, other) == wanted[0]
        if second is not None:
            assert await rest(engine, second) == wanted[1]
        await settle(engine)
        assert await answer(engine, request(prompt(9, 1), 30)) == wanted[1]


async def test_the_task_that_waits_is_told_without_any_step(tmp_path: Path) -> None:
    """The deadline also passes if the engine cannot go on, here because its slot is held."""
    async with engines(tmp_path, slots=1) as engine:
        engine._turning.acquire()  # as a thread that is in a turn and does not go on
        try:
            one = request(prompt(5), 5, deadline=time.monotonic() + 0.05)
            engine.submit(one)
            with pytest.raises(DeadlineError):
                await engine.next(one)
        finally:
            engine._turning.release()
        await settle(engine)


async def test_a_full_queue_says_when_to_come_again(tmp_path: Path) -> None:
    async with engines(tmp_path, slots=1, max_waiting=2) as engine:
        those = [request(prompt(5, i), 5) for i in range(3)]
        for one in those:
            engine.submit(one)
        with pytest.raises(FullError, match="the queue is full: 2 requests wait") as caught:
            engine.submit(request(prompt(5), 5))
        assert 1 <= caught.value.seconds <= 60
        assert engine.counters.refused == 1
        for one in those:
            assert len(await rest(engine, one)) == 5
        engine.stop()
        with pytest.raises(FullError) as caught:
            engine.submit(request(prompt(5), 5))
        assert caught.value.seconds > 0
        await settle(engine)


# -- pauses


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("chunk", [32, 40, 100, 128])
@pytest.mark.parametrize("layout", ["llama", "mamba2"])
async def test_between_two_tokens_there_is_at_most_one_chunk_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, chunk: int
) -> None:
    """Prompts, and texts for vectors and logits, of all kinds at a time; tokens are counted."""
    async with engines(tmp_path, layout, slots=4, chunk=chunk) as engine:
        wanted = await answer(engine, request(prompt(9), 60))
        sizes: list[tuple[int, bool]] = []  # tokens of a step, and whether the sequence is in it
        one = request(prompt(9), 60)
        launch = engine._launch

        def count(plan: Any) -> bool:
            done = launch(plan)
            if done:
                n = sum(len(piece.ids) for _, piece in plan.chunk)
                sizes.append((n + len(plan.running), one in plan.running))
            return done

        monkeypatch.setattr(engine, "_launch", count)
        engine.submit(one)
        await steps(engine, 2)
        sizes.clear()
        others = [request(prompt(450, 1), 2), request(prompt(300, 2), 1, result="hidden"),
                  request(prompt(200, 3), 1, result="logits")]  # fmt: skip
        for other in others:
            engine.submit(other)
        found: list[int] = []

        async def read() -> None:
            found.extend(await rest(engine, one))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for other in others:
                tasks.start_soon(engine.next, other)
        assert found == wanted
        pause = worst = 0
        for n, own in sizes:
            pause += n
            worst = max(worst, pause)
            if own:
                pause = 0
            if one.over and not own:
                break
        assert sum(n for n, _ in sizes) > 900
        assert worst <= chunk + engine.slots, sizes


async def test_an_error_names_the_call_that_was_made(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "llama.gguf", "llama")
    async with aggml.models.load(path, ctx=256, slots=1) as model:
        assert isinstance(model, aggml.models.TextModel)
        with pytest.raises(DeadlineError, match=r"^\[embed_ids\] the deadline"):
            await model.embed_ids([[1, 2]], deadline=0)
        with pytest.raises(DeadlineError, match=r"^\[generate\] the deadline"):
            [x async for x in model.generate([1, 2], deadline=0)]


async def test_no_request_is_refused_only_if_the_engine_stops(tmp_path: Path) -> None:
    """A call that asks for no token has no request, and is answered."""
    async with engines(tmp_path, slots=1) as engine:
        engine.check([])
        engine.stop()
        with pytest.raises(FullError, match=r"^\[generate\] .*stopping"):
            engine.check([])
