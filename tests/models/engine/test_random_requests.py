"""Random requests to a tiny real model: each answer is that of the request alone.

Arrivals, cancellations, priorities, callers, little memory, steps that fail; on both event loops
and from several threads. At the end nothing is left in the engine. Not here: the policy with values
alone (test_policy.py).
"""

from __future__ import annotations

import random
import sys
import threading
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from models.engine.tiny import LAYOUTS, answer, engines, prompt, request, rest, settle
from support import in_a_thread

import aggml
from aggml.models.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.engine.engine import Engine
    from aggml.models.engine.requests import TextRequest

LENGTHS = (1, 5, 20, 70, 150)
KINDS = 10  # different requests
OPTIONS: dict[str, dict[str, Any]] = {
    "much memory": {"slots": 4},
    "little memory": {"slots": 4, "pages": 7},
    "no swapping": {"slots": 2, "swap": 0, "chunk": 32},
    "one slot": {"slots": 1, "pages": 6, "chunk": 64},
}


class InjectedError(aggml.AggmlError):
    """A step fails because the test says so."""


def kind(i: int, **options: Any) -> TextRequest:
    """One of `KINDS` different requests; half of them are drawn with a seed."""
    length, n = LENGTHS[i % len(LENGTHS)], 3 + 5 * (i % 4)
    return request(prompt(length, i), n, seed=i if i % 2 else None, **options)


#: What `expected` has found, by the file's bytes: a third of the time of the tests that ask.
_found: dict[bytes, list[list[int]]] = {}


async def expected(folder: Path, layout: str) -> list[list[int]]:
    """The answer of each kind alone; computed once in a process for each model."""
    async with engines(folder, layout, slots=1) as engine:
        model = sha256((folder / f"{layout}.gguf").read_bytes()).digest()
        if model not in _found:
            _found[model] = [await answer(engine, kind(i)) for i in range(KINDS)]
    return _found[model]


def spoil(engine: Engine, draws: random.Random, share: float) -> list[int]:
    """Have some steps fail, either when they are queued or when they have ended; counts them."""
    run, apply, failed = engine.decoder.run_step, engine._apply, [0]

    def run_step(*args: Any, **named: Any) -> Any:
        if draws.random() < share:
            failed[0] += 1
            raise InjectedError("a step cannot be queued")
        return run(*args, **named)

    def fail_later(*args: Any) -> None:
        if draws.random() < share:
            failed[0] += 1
            raise InjectedError("a step has failed")
        apply(*args)

    setattr(engine.decoder, "run_step", run_step)  # noqa: B010 a method of this object alone
    setattr(engine, "_apply", fail_later)  # noqa: B010
    return failed


async def use(
    engine: Engine, wanted: list[list[int]], seed: int, n: int, *, fails: bool
) -> dict[str, int]:
    """Send ``n`` requests one after the other, and read each; how many ended how."""
    draws = random.Random(seed)
    ends = {"answered": 0, "cancelled": 0, "failed": 0}
    for _ in range(n):
        i = draws.randrange(KINDS)
        one = kind(
            i, priority=draws.choice([0, 0, 0, 1, 5, -2]), caller=draws.choice("abc"),
        )  # fmt: skip
        engine.submit(one)
        patience = draws.choice([None, None, 0, 1, 4])
        found: list[int] = []
        try:
            while patience is None or len(found) < patience:
                tokens = await engine.next(one)
                if not tokens:
                    assert found == wanted[i], (i, one.preempted)
                    ends["answered"] += 1
                    break
                found += tokens
            else:
                if patience == 0:
                    with anyio.CancelScope() as scope:  # cancelled while it waits
                        scope.cancel()
                        await engine.next(one)
                ends["cancelled"] += 1
        except EngineError as error:
            if not fails or not isinstance(error.__cause__, InjectedError):
                raise
            ends["failed"] += 1
        finally:
            engine.cancel(one)
        assert found == wanted[i][: len(found)], (i, one.preempted)
        assert one.over
        for _ in range(draws.randrange(3)):
            await anyio.lowlevel.checkpoint()
    return ends


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fails", [False, True])
async def test_each_answer_is_that_of_the_request_alone(
    tmp_path: Path, layout: str, name: str, *, fails: bool
) -> None:
    wanted = await expected(tmp_path, layout)
    async with engines(tmp_path, layout, **OPTIONS[name]) as engine:
        failed = spoil(engine, random.Random(7), 0.02) if fails else [0]
        found: list[dict[str, int]] = []

        async def run(seed: int) -> None:
            found.append(await use(engine, wanted, seed, 6, fails=fails))

        async with anyio.create_task_group() as tasks:
            for seed in range(6):
                tasks.start_soon(run, seed)
        total = {x: sum(y[x] for y in found) for x in found[0]}
        assert sum(total.values()) == 36
        assert total["answered"]
        assert bool(total["failed"]) <= bool(failed[0])
        await settle(engine)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", ["llama", "qwen3next"])
def test_threads_with_loops_of_their_own(tmp_path: Path, layout: str) -> None:
    """Threads change over as often as possible, so that they meet in all places."""
    found: list[dict[str, int]] = []
    failures: list[BaseException] = []

    async def main() -> None:
        wanted = await expected(tmp_path, layout)
        async with engines(tmp_path, layout, slots=3, pages=12) as engine:

            def work(seed: int) -> None:
                try:
                    call = partial(use, engine, wanted, seed, 6, fails=False)
                    found.append(anyio.run(call, backend=("asyncio", "trio")[seed % 2]))
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await anyio.to_thread.run_sync(thread.join)
            await settle(engine)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_a_thread(lambda: anyio.run(main))
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]
    assert sum(sum(x.values()) for x in found) == 24


async def test_a_step_that_fails_ends_only_those_that_are_in_it(tmp_path: Path) -> None:
    wanted = await expected(tmp_path, "llama")
    async with engines(tmp_path, slots=2) as engine:
        those = [kind(1), kind(3), kind(7)]
        for one in those:
            engine.submit(one)
        apply = engine._apply
        times = [0]

        def fail(*args: Any) -> None:
            times[0] += 1
            if times[0] == 2:
                raise InjectedError("the second step has failed")
            apply(*args)

        setattr(engine, "_apply", fail)  # noqa: B010
        for one in those[:2]:
            with pytest.raises(EngineError, match="the second step has failed"):
                await rest(engine, one)
        assert await rest(engine, those[2]) == wanted[7]
        assert engine.counters.failed_steps == 1
        await settle(engine)
