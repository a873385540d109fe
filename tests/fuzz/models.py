"""Random programs that use models from several threads, each with an event loop of its own.

A program is a model of a few slots and some threads. Each thread runs loops of asyncio or trio one
after another, in which tasks generate, embed and compute logits. They leave loops by break, cancel
each other, drop and close generators, pass them on to another loop. In the end, or in the middle,
the model is closed. Each answer is what it is alone, or "the model is closed" after that. Nobody
hangs, and no page is lost. Some prompts begin alike. Not here: requests over HTTP (requests.py).
"""

from __future__ import annotations

import random
import tempfile
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
from anyio.lowlevel import checkpoint
from fuzz.rounds import Failure, Report, draw
from models import random_models

import aggml
from aggml.models.engine.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aggml.models import Model

SHORT = 6
LOOPS = ("asyncio", "trio")
PATIENCE = 120  # seconds for one program: longer is a hang, even on a busy machine
CLOSED = "the model is closed"
BEGIN = random_models.prompt(70)  # more than a page, which is stored
PROMPTS = (*([1 + i, 5, 9 + i] for i in range(4)), *([*BEGIN, 9 + i] for i in range(3)))
TEXTS = ([[1, 2]], [[3, 4, 5], [6]], [[7]])
LENGTH = 6


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """As `fuzz.rounds.Fuzzer`; the model is loaded on ``loop``, and used on both."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            name: random_models.write(Path(folder) / f"{name}.gguf", name)
            for name in ("llama", "bert")
        }
        right = {name: _alone(path) for name, path in paths.items()}
        for k in range(first, first + programs):
            source = draw(seed, k)
            name = source.choice(("llama", "llama", "bert"))
            program = _Program(source, paths[name], right[name], loop)
            try:
                counts += program.run()
            except AssertionError as error:
                raise Failure(seed, k, loop, str(error)) from error
    return Report(programs, dict(sorted(counts.items())))


Answers = dict[tuple[str, int], Any]


def _alone(path: Path) -> Answers:
    """What each call gives if nobody else uses the model."""

    async def main() -> Answers:
        found: Answers = {}
        async with aggml.models.load(path, ctx=256) as model:
            for i, texts in enumerate(TEXTS):
                found["embed", i] = await model.embed_ids(texts)
            if isinstance(model, aggml.models.TextModel):
                for i, prompt in enumerate(PROMPTS):
                    found["logits", i] = await model.logits(prompt)
                    tokens = model.generate(prompt, max_tokens=LENGTH, stop_ids=[])
                    found["tokens", i] = [t.id async for t in tokens]
        return found

    return anyio.run(main)


async def _lost(model: aggml.models.TextModel) -> int:
    """Pages of slots that are not free although nobody uses the model."""
    engine = model.engine
    assert isinstance(engine, Engine)
    for _ in range(4):
        for flight in list(engine._flights):
            await flight.future.wait_until_done()
        engine.turn()
    return engine.pages.used


class _Program:
    """One program: threads, their loops and tasks, all drawn from one generator."""

    def __init__(self, source: random.Random, path: Path, right: Answers, loop: str) -> None:
        self.source = source
        self.right = right
        self.counts: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self.passed_on: list[Any] = []  # generations that another loop may go on with
        self.permits: list[None] = []  # how many more may be: one slot stays for the others
        self.closing = threading.Event()
        slots = source.choice((1, 1, 2, 3))
        load = partial(aggml.models.load, path, ctx=256, slots=slots)
        self.model: Model = anyio.run(load, backend=loop)
        if isinstance(self.model, aggml.models.TextModel):
            self.permits += [None] * (slots - 1)

    def run(self) -> Counter[str]:
        """Run it; AssertionError says what is wrong."""
        seeds = [self.source.random() for _ in range(self.source.randint(2, 4))]
        early = self.source.random() < 0.4
        threads = [
            threading.Thread(target=self._thread, args=(random.Random(seed),), daemon=True)
            for seed in seeds
        ]
        for thread in threads:
            thread.start()
        if early:
            threads[0].join(PATIENCE * self.source.random() / 1000)
            self._close()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"hangs: {self.model!r}, {dict(self.counts)}"
        if self.failures:
            raise AssertionError(repr(self.failures[0])) from self.failures[0]
        self.passed_on.clear()
        if isinstance(self.model, aggml.models.TextModel) and not early:
            lost = anyio.run(_lost, self.model)
            assert not lost, f"{lost} pages are lost: {self.model!r}"
        self._close()
        return self.counts

    def _close(self) -> None:
        self.closing.set()
        anyio.run(self.model.aclose, backend=self.source.choice(LOOPS))

    def _thread(self, source: random.Random) -> None:
        try:
            for _ in range(source.randint(1, 3)):
                anyio.run(self._loop, source, backend=source.choice(LOOPS))
        except BaseException as error:
            self.failures.append(error)

    async def _loop(self, source: random.Random) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(source.randint(1, 3)):
                tasks.start_soon(self._task, random.Random(source.random()))

    async def _task(self, source: random.Random) -> None:
        calls: list[Callable[[random.Random], Awaitable[None]]] = [self._embed]
        if isinstance(self.model, aggml.models.TextModel):
            calls += [self._logits, self._whole, self._left, self._dropped, self._goes_on]
        for _ in range(source.randint(1, 4)):
            call = source.choice(calls)
            cancelled = source.random() < 0.3
            try:
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as tasks:
                        if cancelled:
                            tasks.start_soon(self._cancel, scope, source.randint(0, 60))
                        await call(source)
                        tasks.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                closed, rest = group.split(lambda error: self._is_closing(error))
                if rest is not None:
                    raise
                assert closed is not None
                self.counts["closed"] += 1
                return
            self.counts["cancelled" if scope.cancelled_caught else call.__name__[1:]] += 1

    def _is_closing(self, error: BaseException) -> bool:
        return (
            isinstance(error, aggml.InvalidState) and CLOSED in str(error) and self.closing.is_set()
        )

    @staticmethod
    async def _cancel(scope: anyio.CancelScope, turns: int) -> None:
        for _ in range(turns):
            await checkpoint()
        scope.cancel()

    async def _embed(self, source: random.Random) -> None:
        i = source.randrange(len(TEXTS))
        found = await self.model.embed_ids(TEXTS[i])
        assert np.allclose(found, self.right["embed", i], atol=2e-5), f"embed_ids({TEXTS[i]})"

    async def _logits(self, source: random.Random) -> None:
        i = source.randrange(len(PROMPTS))
        found = await self.model.logits(PROMPTS[i])
        assert np.allclose(found, self.right["logits", i], atol=1e-4), f"logits({PROMPTS[i]})"

    def _begin(self, source: random.Random) -> tuple[int, Any]:
        i = source.randrange(len(PROMPTS))
        return i, self.model.generate(PROMPTS[i], max_tokens=LENGTH, stop_ids=[])

    def _check(self, i: int, found: list[int], *, whole: bool) -> None:
        wanted = self.right["tokens", i]
        assert found == (wanted if whole else wanted[: len(found)]), f"generate({PROMPTS[i]})"

    async def _whole(self, source: random.Random) -> None:
        i, tokens = self._begin(source)
        self._check(i, [t.id async for t in tokens], whole=True)
        assert tokens.finish_reason == "length"

    async def _left(self, source: random.Random) -> None:
        """Leave by break or an exception, and generate at once again."""
        i, tokens = self._begin(source)
        n, found = source.randrange(1, LENGTH), list[int]()
        try:
            async for token in tokens:
                found.append(token.id)
                if len(found) == n:
                    if source.random() < 0.5:
                        raise KeyError
                    break
        except KeyError:
            pass
        self._check(i, found, whole=False)
        del tokens
        await self._whole(source)

    async def _dropped(self, source: random.Random) -> None:
        """Take some tokens, then close the generation or drop it."""
        i, tokens = self._begin(source)
        found = [(await anext(tokens)).id for _ in range(source.randrange(1, LENGTH))]
        self._check(i, found, whole=False)
        if source.random() < 0.5:
            await tokens.aclose()
            assert [t async for t in tokens] == []

    async def _goes_on(self, source: random.Random) -> None:
        """Go on with a generation that another loop has begun, or begin one for another loop."""
        try:
            i, tokens, found = self.passed_on.pop()
        except IndexError:
            await self._pass_on(source)
            return
        try:
            found += [t.id async for t in tokens]
        finally:
            self.permits.append(None)
        self._check(i, found, whole=True)

    async def _pass_on(self, source: random.Random) -> None:
        try:
            self.permits.pop()
        except IndexError:
            return
        try:
            i, tokens = self._begin(source)
            found = [(await anext(tokens)).id]
        except BaseException:
            self.permits.append(None)
            raise
        self._check(i, found, whole=False)
        self.passed_on.append((i, tokens, found))
