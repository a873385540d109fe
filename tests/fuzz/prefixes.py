"""Random requests with long shared beginnings to one engine, in rounds: each gets its own answer.

A program is an engine of random size (few slots, a short queue, memory for little more than one
sequence) and some twenty requests. Their prompts begin alike for random lengths. Some of them are
cancelled, some come late, some are turned away. Each answer equals the one that the request gets
alone. A turn of the engine that computes nothing waits. Sequences, stored pages and shared rows
are never more than the memory. In the end all of it is free. Not here: requests over HTTP
(requests.py).
"""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
from fuzz.rounds import Failure, Report, draw

import aggml
from aggml.models.decoder.adjusting import Adjuster, Rules
from aggml.models.decoder.generating import generate
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine.engine import STAGED, Engine
from aggml.models.engine.jobs import EngineError, FullError, Job, TooLongError
from aggml.models.kv.paging import PAGE, PagedDecoder
from aggml.models.loading import load_decoder
from aggml.models.small import write_small
from aggml.models.weights import open_model

if TYPE_CHECKING:
    import random

    from aggml import Backend

SHORT = 3
CTX: Final = 512
SLOTS: Final = 5
STORED: Final = 24  # pages
PATIENCE: Final = 120  # seconds for a program: longer is a hang, even on a slow machine
IDLE: Final = 1000  # turns of the loop in which the engine may do nothing at all
VOCABULARY: Final = 354
TIE: Final = 1e-3  # logits that differ by less are equal but for rounding


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """As `fuzz.rounds.Fuzzer`."""
    return anyio.run(_round, seed, programs, loop, first, backend=loop)


async def _round(seed: int, programs: int, loop: str, first: int) -> Report:
    counts: Counter[str] = Counter()
    failure: Failure | None = None
    with tempfile.TemporaryDirectory() as folder:
        path = write_small(Path(folder) / "small.gguf")
        async with AsyncExitStack() as stack:
            backend = await stack.enter_async_context(aggml.get_device("CPU").backend(n_threads=1))
            alone = await _opened(stack, backend, path, PagedDecoder, 1 + STAGED)
            more = -(-STORED * PAGE // CTX)
            model = await _opened(stack, backend, path, PagedDecoder, SLOTS + STAGED + more)
            for k in range(first, first + programs):
                try:
                    await _program(draw(seed, k), model, alone, counts)
                except Exception as error:
                    failure = Failure(seed, k, loop, f"{type(error).__name__}: {error}")
                    failure.__cause__ = error
                    break
    if failure is not None:
        raise failure
    return Report(programs, dict(sorted(counts.items())))


async def _opened(
    stack: AsyncExitStack, backend: Backend, path: Path, kind: Any, sequences: int
) -> PagedDecoder:
    file = stack.enter_context(await open_model(path))
    model: PagedDecoder = await load_decoder(backend, file, kind=kind, ctx=CTX, sequences=sequences)
    stack.callback(model.close)
    return model


# -- requests


def _tokens(source: random.Random, n: int) -> list[int]:
    return [source.randrange(3, VOCABULARY) for _ in range(n)]


def _prompts(source: random.Random, n: int) -> list[list[int]]:
    """Prompts in families: each begins like an earlier one, for whole pages or any length."""
    found = [[1, *_tokens(source, source.choice([2, 60, 250, 480]))]]
    while len(found) < n:
        begin = source.choice(found)
        most = len(begin)
        cut = source.choice(
            [most, source.randint(1, most), PAGE * source.randint(0, most // PAGE), 0]
        )
        rest = source.choice([0, 1, source.randint(1, 40), source.randint(1, 480)])
        prompt = begin[:cut] + _tokens(source, rest)
        found.append(prompt[: source.choice([480, 500])] or [1])
    source.shuffle(found)
    return found


def _job(source: random.Random, prompt: list[int]) -> Job:
    n = min(source.choice([1, 2, 5, 12, 30]), CTX - 1 - len(prompt))
    kind = source.randrange(4)
    sampler = Sampler(temperature=0)
    if kind == 1:
        # A draw among several depends on the last bit of their logits where these are nearly equal.
        sampler = Sampler(0.9, 1, 0.95, source.randrange(1 << 30))
    ends = frozenset(_tokens(source, 3)) if source.random() < 0.2 else frozenset[int]()
    rules = Rules(repetition=1.2, bias={source.randrange(VOCABULARY): 3.0}) if kind == 2 else None
    adjuster = None if rules is None else Adjuster(rules, prompt, ends)
    return Job(prompt, n, sampler, ends, adjuster=adjuster, told=2 if kind == 3 else None)


async def _wanted(job: Job, alone: PagedDecoder, sampler: Sampler) -> list[int]:
    """The answer of a request that has a model for itself, without adjusters.

    A draw among tokens of nearly equal logits depends on their order, and so on the last bit, which
    depends on how many tokens a step has. So the engine itself draws, with this request alone.
    """
    if sampler.temperature > 0:
        async with Engine(alone, slots=1, budget=64) as engine:
            one = Job(job.prompt, job.n_predict, sampler, job.ends)
            async with aclosing(engine.stream(one)) as stream:
                return [token async for tokens in stream for token in tokens]
    steps = generate(alone, job.prompt, [sampler], n_predict=job.n_predict, ends=job.ends)
    return [x for (x,) in [tokens async for tokens in steps] if x is not None]


# -- a program


class _Watch:
    """Checks an engine before each step, and counts the turns in which it does nothing."""

    def __init__(self, engine: Engine) -> None:
        self.idle = self.steps = 0
        self._engine = engine
        self._memory = engine._return_memory
        self._turn = engine._turn
        engine._return_memory = self._before_a_step  # type: ignore[method-assign]
        engine._turn = self._counted  # type: ignore[method-assign]

    async def _before_a_step(self) -> None:
        engine = self._engine
        await self._memory()
        self.steps += 1
        pages = engine.pages
        assert pages.free >= 0, "more pages than the budget"
        assert pages.stored == len(engine.prefixes) <= engine.prefixes.most
        assert pages.used == sum(map(engine._need, _going(engine))), "pages of nobody"
        held = sum(pages._touched.values()) + pages.stored + pages.shared
        assert engine._touched == pages.shared
        assert held <= pages.budget, f"{held} pages have memory, the budget is {pages.budget}"

    async def _counted(self) -> None:
        """A turn that makes no step must soon be followed by one that does, or waits."""
        before = self.steps
        await self._turn()
        if self.steps > before:
            self.idle = 0
            return
        self.idle += 1
        assert self.idle < IDLE, "the engine turns without doing anything"


def _going(engine: Engine) -> list[Job]:
    return [*engine._taking_in, *engine._running.values()]


async def _program(
    source: random.Random, model: PagedDecoder, alone: PagedDecoder, counts: Counter[str]
) -> None:
    prompts = _prompts(source, source.randint(2, 24))
    jobs = [_job(source, prompt) for prompt in prompts]
    samplers = [Sampler(**vars_of(job.sampler)) for job in jobs]
    engine = Engine(
        model, slots=source.randint(1, SLOTS), budget=source.choice([8, 9, 12, 20, 64]),
        stored=source.choice([0, 3, STORED]), chunk=source.choice([1, 16, 32, 128]),
        max_waiting=source.choice([1, 3, 64]),
    )  # fmt: skip
    watch = _Watch(engine)
    ends = [source.choice(["", "", "", "leave", "cancel"]) for _ in jobs]
    after = [source.randint(0, 4) for _ in jobs]  # lists of tokens until it leaves
    pauses = [source.choice([0, 0, 1, 5, 40]) for _ in jobs]
    results: list[list[int] | None] = [None] * len(jobs)
    with anyio.fail_after(PATIENCE):
        async with engine:
            for at in range(0, len(jobs), size := source.choice([3, 8, 24])):
                async with anyio.create_task_group() as tasks:
                    for i in range(at, min(at + size, len(jobs))):
                        tasks.start_soon(
                            functools.partial(
                                _ask, engine, jobs[i], results, i, ends[i], after[i], counts
                            )
                        )
                        for _ in range(pauses[i]):
                            await anyio.lowlevel.checkpoint()
            while engine.active or engine.queued:
                await anyio.lowlevel.checkpoint()
            assert (engine.pages.used, engine.pages.slots) == (0, [])
            assert engine.pages.stored == len(engine.prefixes)
    counts["steps"] += watch.steps
    counts["cached"] += engine.counters.cached_tokens
    for slot in range(model.sequences):
        await model.forget(slot)
    for job, sampler, found in zip(jobs, samplers, results, strict=True):
        if found is None:
            continue
        if job.adjuster is None:
            wanted = await _wanted(job, alone, sampler)
        else:
            wanted = await _adjusted(job, alone)
        name = f"{len(job.prompt)} tokens, {job.sampler}, {job.told}: "
        same = found == wanted[: len(found)] or await _ties(job, found, wanted, alone)
        assert same, f"{name} {found} instead of {wanted}"
        parted = found[: len(wanted)] != wanted[: len(found)]
        assert job.left or parted or len(found) == len(wanted), f"{name} {found}, not all {wanted}"


def vars_of(sampler: Sampler) -> dict[str, Any]:
    """The arguments of a sampler, without its generator."""
    return {x: getattr(sampler, x) for x in ("temperature", "top_k", "top_p", "seed", "min_p")}


async def _adjusted(job: Job, alone: PagedDecoder) -> list[int]:
    """The answer with the changes of an adjuster, computed token by token from all logits."""
    assert job.adjuster is not None
    adjuster = Adjuster(job.adjuster._rules, job.prompt, job.ends)
    made: list[int] = []
    row = await alone.prefill(0, job.prompt)
    while True:
        ids, logits = adjuster.changed(row)
        row = row.copy()
        row[ids] = logits
        token = int(row.argmax())
        if token in job.ends:
            return made
        made.append(token)
        adjuster.take(token)
        if len(made) == job.n_predict:
            return made
        (row,) = await alone.decode([token], [len(job.prompt) + len(made) - 1])


async def _ties(job: Job, found: list[int], wanted: list[int], alone: PagedDecoder) -> bool:
    """Whether two answers part where two tokens have nearly equal logits.

    A logit differs by up to 3e-4 with the number of tokens in a step, because keys and values are
    rounded to f16.
    """
    at = next(i for i, (x, y) in enumerate(zip(found, wanted, strict=False)) if x != y)
    row = (await alone.prefill(0, [*job.prompt, *wanted[:at]])).copy()
    if job.adjuster is not None:
        adjuster = Adjuster(job.adjuster._rules, job.prompt, job.ends)
        for token in wanted[:at]:
            adjuster.take(token)
        ids, logits = adjuster.changed(row)
        row[ids] = logits
    return abs(float(row[found[at]] - row[wanted[at]])) < TIE


async def _ask(
    engine: Engine, job: Job, results: list[list[int] | None], i: int, end: str, after: int,
    counts: Counter[str],
) -> None:  # fmt: skip
    """One client: it takes the whole answer, or leaves, or is cancelled."""
    found: list[int] = []
    with anyio.CancelScope() as scope:
        try:
            async with aclosing(engine.stream(job)) as stream:
                if end == "cancel" and after == 0:
                    scope.cancel()
                async for tokens in stream:
                    found += tokens
                    after -= 1
                    if end and after < 1:
                        counts[end] += 1
                        if end == "leave":
                            break
                        scope.cancel()
        except FullError:
            counts["full"] += 1
            return
        except TooLongError:
            counts["too long"] += 1
            need = engine.pages.need(len(job.prompt) + job.n_predict)
            assert need > engine.pages.budget, "could have run"
            return
        except EngineError as error:
            raise AssertionError(f"failed: {error}") from error
    results[i] = found
    counts["answers"] += 1
