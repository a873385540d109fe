"""Random requests with long shared beginnings to one engine, in rounds: each gets its own answer.

A program is an engine of random size (few slots, a short queue, memory for little more than one
sequence) and some twenty requests, from one thread or from two. Their prompts begin alike for
random lengths. They have random options, priorities and deadlines; some ask for logits or vectors
instead. Some are cancelled, some come late, some are turned away. Each answer equals the one that
the request gets alone. No request waits for ever. Sequences, stored pages, shared rows and what
free slots keep are never more than the memory. In the end all of it is free. Not here: requests
over HTTP (requests.py).
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
from fuzz.rounds import Failure, Report, draw

import aggml
from aggml.models.decoder.adjusting import Adjuster, Rules
from aggml.models.engine.engine import STAGED, Engine
from aggml.models.errors import DeadlineError, EngineError, FullError, TooLongError
from aggml.models.kv.paging import PAGE, PagedDecoder
from aggml.models.loading import load_decoder
from aggml.models.small import write_small
from aggml.models.text_model import TextModel
from aggml.models.weights import open_model

if TYPE_CHECKING:
    import random

    from aggml import Backend

SHORT = 3
CTX: Final = 512
SLOTS: Final = 5
PATIENCE: Final = 120  # seconds for a program: longer is a hang, even on a slow machine
VOCABULARY: Final = 354
TIE: Final = 1e-3  # logits that differ by less are equal but for rounding
NEAR: Final = 2e-2  # elements of logits and vectors differ by less, for the same reason


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
            alone = await _opened(stack, backend, path, 1 + STAGED)
            decoder = await _opened(stack, backend, path, SLOTS + STAGED)
            for k in range(first, first + programs):
                try:
                    await _program(draw(seed, k), decoder, alone, counts, loop)
                except Exception as error:
                    failure = Failure(seed, k, loop, f"{type(error).__name__}: {error}")
                    failure.__cause__ = error
                    break
    if failure is not None:
        raise failure
    return Report(programs, dict(sorted(counts.items())))


async def _opened(
    stack: AsyncExitStack, backend: Backend, path: Path, sequences: int
) -> PagedDecoder:
    file = stack.enter_context(await open_model(path))
    decoder = await load_decoder(backend, file, kind=PagedDecoder, ctx=CTX, sequences=sequences)
    stack.callback(decoder.close)
    return decoder


# -- requests


class _Call:
    """One call of a model, drawn at random, and what came of it."""

    def __init__(self, source: random.Random, prompt: list[int]) -> None:
        self.prompt = prompt
        self.kind = source.choice(["text"] * 10 + ["logits", "hidden"])
        self.n = min(source.choice([1, 2, 5, 12, 30]), CTX + 1 - len(prompt))
        self.ends = frozenset(_tokens(source, 3)) if source.random() < 0.2 else frozenset[int]()
        self.sampler: dict[str, Any] = {"temperature": 0.0}
        self.rules = Rules()
        self.logprobs: int | None = None
        kind = source.randrange(5)
        if kind == 1:
            # A draw among several depends on the last bit of their logits where these are nearly
            # equal. So it is drawn among one.
            self.sampler = {"temperature": 0.9, "top_k": 1, "seed": source.randrange(1 << 30)}
        elif kind == 2:
            self.rules = Rules(repetition=1.2, bias={source.randrange(VOCABULARY): 3.0})
        elif kind == 3:
            self.logprobs = 2
        elif kind == 4:
            self.rules = Rules(least=source.randrange(4))
        self.priority = source.choice([0, 0, 0, 1, 2, -1])
        self.deadline = source.choice([None, None, None, None, 1000.0, 0.0, 0.05])
        self.end = source.choice(["", "", "", "leave", "cancel"])
        self.after = source.randint(0, 4)  # tokens until it leaves
        self.pause = source.choice([0, 0, 1, 5, 40])
        self.here = source.random() < 0.6  # else in the second thread, if there is one
        self.found: list[int] | None = None
        self.left = False
        self.array: np.ndarray | None = None

    def options(self) -> dict[str, Any]:
        rules = self.rules
        return {
            "max_tokens": self.n, "stop_ids": sorted(self.ends), **self.sampler,
            "repetition_penalty": rules.repetition, "logit_bias": dict(rules.bias),
            "min_tokens": rules.least, "logprobs": self.logprobs, "priority": self.priority,
            "deadline": self.deadline,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<{self.kind} of {len(self.prompt)} tokens, {self.options()}>"


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
        found.append(prompt[: source.choice([480, 500, 512])] or [1])
    source.shuffle(found)
    return found


# -- a program


class _Watch:
    """Checks an engine whenever it queues a step."""

    def __init__(self, engine: Engine) -> None:
        self.steps = 0
        self.wrong: list[str] = []
        self._engine = engine
        self._launch = engine._launch
        engine._launch = self._checked  # type: ignore[method-assign]

    def _checked(self, plan: Any) -> bool:
        done = self._launch(plan)
        if done:
            self.steps += 1
            self._check(plan)
        return done

    def _check(self, plan: Any) -> None:
        engine, pages = self._engine, self._engine.pages
        going = [*engine._active.values()]
        held = sum(pages._touched.values()) + pages.stored + max(pages.shared, engine._touched)
        rows = sorted((x.staged, x.staged + len(x.tokens)) for x in going if x.staged is not None)
        for wrong, what in (
            (pages.free < 0, "more pages than the budget"),
            (pages.used != sum(map(engine._need, going)), "pages of nobody"),
            (held > pages.budget, f"{held} pages have memory, the budget is {pages.budget}"),
            (bool(engine._give_backs), "a step runs while memory is to be given back"),
            (any(a[1] > b[0] for a, b in itertools.pairwise(rows)), f"rows {rows}"),
            (len({x.slot for x in going}) != len(going), "two requests in a slot"),
        ):
            if wrong:
                self.wrong.append(f"step {self.steps}: {what}: {plan}"[:2000])


async def _program(
    source: random.Random, decoder: PagedDecoder, alone: PagedDecoder, counts: Counter[str],
    loop: str,
) -> None:  # fmt: skip
    calls = [_Call(source, prompt) for prompt in _prompts(source, source.randint(2, 24))]
    engine = Engine(
        decoder, slots=source.randint(1, SLOTS), budget=source.choice([8, 9, 12, 20, 64]),
        chunk=source.choice([1, 16, 32, 128]), max_waiting=source.choice([1, 3, 64]),
        swap=source.choice([0, 1 << 20, 1 << 30]),
    )  # fmt: skip
    watch = _Watch(engine)
    model = TextModel(engine, None)
    size = source.choice([3, 8, 24])
    two = source.random() < 0.4
    with anyio.fail_after(PATIENCE):
        if two:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_clients, model, [x for x in calls if x.here], size, counts)
                rest = [x for x in calls if not x.here]
                others = functools.partial(_clients, model, rest, size, counts)
                tasks.start_soon(
                    functools.partial(anyio.to_thread.run_sync, abandon_on_cancel=True),
                    functools.partial(anyio.run, others, backend=loop),
                )
        else:
            await _clients(model, calls, size, counts)
        # The last one to leave may have left its slot; the next turn frees it.
        for _ in range(2):
            engine.turn()
            for flight in list(engine._flights):
                await flight.future.wait_until_done()
        engine.turn()
    assert not watch.wrong, watch.wrong[0]
    assert (engine.pages.used, engine.pages.slots) == (0, []), repr(engine)
    assert (engine.active, engine.queued, len(engine._shares)) == (0, 0, 0), repr(engine)
    assert (engine._swapped, engine._loops, engine._parked) == (0, {}, {})
    counts["steps"] += watch.steps
    counts["cached"] += engine.counters.cached_tokens
    counts["preempted"] += engine.counters.preemptions
    counts["in two threads"] += two
    for slot in range(decoder.sequences):
        for give_back in decoder.forget_parts(slot):
            give_back()
    for call in calls:
        await _compare(call, alone, counts)


async def _clients(model: TextModel, calls: list[_Call], size: int, counts: Counter[str]) -> None:
    for at in range(0, len(calls), size):
        async with anyio.create_task_group() as tasks:
            for call in calls[at : at + size]:
                tasks.start_soon(_ask, model, call, counts)
                for _ in range(call.pause):
                    await anyio.lowlevel.checkpoint()


async def _ask(model: TextModel, call: _Call, counts: Counter[str]) -> None:
    """One client: it takes the whole answer, or leaves, or is cancelled."""
    try:
        with anyio.CancelScope() as scope:
            if call.end == "cancel" and call.after == 0:
                scope.cancel()
            if call.kind == "text":
                await _read(model, call, scope)
            elif call.kind == "logits":
                call.array = await model.logits(call.prompt)
            else:
                call.array = await model.embed_ids([call.prompt], normalize=False)
            counts[call.end or call.kind] += 1
    except FullError:
        counts["full"] += 1
        call.found = None
    except TooLongError:
        counts["too long"] += 1
        assert isinstance(model.engine, Engine)
        pages = model.engine.pages
        assert pages.need(min(len(call.prompt) + call.n, CTX)) > pages.budget, "could have run"
    except DeadlineError:
        counts["late"] += 1
        assert call.deadline is not None, "has no deadline"
        assert call.deadline < 1000, "was refused although there is time"
        call.left = True
    except EngineError as error:
        raise AssertionError(f"{call} failed: {error!r}, {error.__cause__!r}") from error


async def _read(model: TextModel, call: _Call, scope: anyio.CancelScope) -> None:
    found = call.found = list[int]()
    call.left = True
    async with aclosing(model.generate(call.prompt, **call.options())) as stream:
        async for token in stream:
            found.append(token.id)
            if call.logprobs is not None:
                assert token.logprob is not None
                assert token.top is not None
                assert len(token.top) == call.logprobs
            if call.end and len(found) >= call.after:
                if call.end == "leave":
                    return
                scope.cancel()
        assert stream.finish_reason == ("length" if len(found) == call.n else "stop")
    call.left = False


# -- what each gets alone


async def _compare(call: _Call, alone: PagedDecoder, counts: Counter[str]) -> None:
    if call.kind != "text":
        if call.array is not None:
            if call.kind == "logits":
                array = await alone.logits(call.prompt)
            else:
                array = (await alone.hidden(call.prompt)).mean(axis=0, keepdims=True)
            worst = float(np.abs(call.array - array).max())
            assert worst < NEAR, f"{call}: differs by {worst}"
        return
    found = call.found
    if found is None:
        return
    counts["answers"] += 1
    wanted = await _wanted(call, alone)
    same = found == wanted[: len(found)] or await _ties(call, found, wanted, alone)
    assert same, f"{call}: {found} instead of {wanted}"
    parted = found[: len(wanted)] != wanted[: len(found)]
    assert call.left or parted or len(found) == len(wanted), f"{call}: {found}, not all {wanted}"


async def _wanted(call: _Call, alone: PagedDecoder) -> list[int]:
    """The answer of a request that has a decoder for itself; no engine."""
    # Every draw is one of the best token: see `_Call`.
    adjuster = Adjuster(call.rules, call.prompt, call.ends)
    made: list[int] = []
    row = await alone.prefill(0, call.prompt)
    while True:
        token = int(_changed(adjuster, row).argmax())
        if token in call.ends:
            return made
        made.append(token)
        adjuster.take(token)
        if len(made) == call.n:
            return made
        (row,) = await alone.decode([token], [len(call.prompt) + len(made) - 1])


def _changed(adjuster: Adjuster, row: np.ndarray) -> np.ndarray:
    ids, logits = adjuster.adjust(row)
    row = row.copy()
    row[ids] = logits
    return row


async def _ties(call: _Call, found: list[int], wanted: list[int], alone: PagedDecoder) -> bool:
    """Whether two answers part where two tokens have nearly equal logits.

    A logit differs by up to 3e-4 with the number of tokens in a step, because keys and values are
    rounded to f16.
    """
    pairs = enumerate(zip(found, wanted, strict=False))
    at = next((i for i, (x, y) in pairs if x != y), None)
    if at is None:
        return False
    row = await alone.prefill(0, [*call.prompt, *wanted[:at]])
    adjuster = Adjuster(call.rules, call.prompt, call.ends)
    for token in wanted[:at]:
        adjuster.take(token)
    row = _changed(adjuster, row)
    return abs(float(row[found[at]] - row[wanted[at]])) < TIE
