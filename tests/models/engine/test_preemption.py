"""Requests of a higher priority take the slots of others, which go on later with the same tokens.

Not here: who is preempted (test_policy.py), random programs (test_random_requests.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.lowlevel
import pytest
from models.engine.tiny import (
    LAYOUTS,
    answer,
    engines,
    prompt,
    request,
    rest,
    settle,
    steps_to_first_token,
)  # fmt: skip

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.engine.engine import Engine
    from aggml.models.engine.requests import TextRequest

#: Preempted sequences are copied to host memory, or computed again.
WAYS = {"copied": {}, "again": {"swap": 0}}


async def steps(engine: Engine, n: int) -> None:
    """Drive the engine until ``n`` more steps have ended."""
    until, turns = engine.counters.steps + n, 0
    while engine.counters.steps < until:
        engine.turn()
        if not await engine._build() and engine._flights:
            await engine._flights[0].future.wait_until_done()
        await anyio.lowlevel.checkpoint()
        turns += 1
        assert turns < 100_000, engine


def streams(n: int, length: int, **options: Any) -> list[TextRequest]:
    """Long streams of priority 0: every other one is drawn with a seed."""
    return [
        request(prompt(9 + 5 * i, i), length, seed=i if i % 2 else None, **options)
        for i in range(n)
    ]


def urgent() -> list[TextRequest]:
    """Four short requests that everybody else has to make room for."""
    return [
        request(prompt(11, 50 + i), 6, seed=i if i % 2 else None, priority=10) for i in range(4)
    ]


class Undisturbed(NamedTuple):
    """What a layout does on a machine that is idle, or nearly so."""

    streams: list[list[int]]
    urgent: list[list[int]]
    steps: list[int]


_undisturbed: dict[str, Undisturbed] = {}


async def undisturbed(folder: Path, layout: str) -> Undisturbed:
    """The answers of the streams and of the urgent requests; computed once in a process."""
    if layout not in _undisturbed:
        async with engines(folder, layout, slots=8) as engine:
            alone = [await answer(engine, x) for x in streams(8, 40)]
            quick = [await answer(engine, x) for x in urgent()]
        async with engines(folder, layout, slots=8) as engine:
            idle = await steps_to_first_token(engine, urgent())
        _undisturbed[layout] = Undisturbed(alone, quick, idle)
    return _undisturbed[layout]


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_four_urgent_requests_on_a_full_machine(
    tmp_path: Path, layout: str, way: str
) -> None:
    """Their first tokens come within two steps of an idle machine; nobody's tokens change."""
    alone, quick, idle = await undisturbed(tmp_path, layout)
    async with engines(tmp_path, layout, slots=8, **WAYS[way]) as engine:
        long = streams(8, 40)
        found: dict[int, list[int]] = {}
        taken: list[int] = []

        async def read(i: int) -> None:
            found[i] = await rest(engine, long[i])

        for one in long:
            engine.submit(one)
        while not all(x.made for x in long):
            await steps(engine, 1)
        async with anyio.create_task_group() as tasks:
            for i in range(8):
                tasks.start_soon(read, i)
            await anyio.lowlevel.checkpoint()
            those = urgent()
            taken = await steps_to_first_token(engine, those)
            assert engine.counters.preemptions == 4
            for one, wanted in zip(those, quick, strict=True):
                await rest(engine, one)
                assert one.tokens[one.prompt :] == wanted
        assert all(a <= b + 2 for a, b in zip(taken, idle, strict=True)), (taken, idle)
        assert [found[i] for i in range(8)] == alone
        assert sum(x.preempted for x in long) == 4
        copied = engine._rates.copy
        assert (copied is not None) == (way == "copied")
        assert copied is None or 0 < copied < 1
        await settle(engine)


_in_chunks: dict[tuple[str, int, int | None], tuple[list[int], list[int]]] = {}


async def in_chunks_alone(
    folder: Path, layout: str, chunk: int, seed: int | None
) -> tuple[list[int], list[int]]:
    """The answers to a long and a short prompt, one after the other; once in a process."""
    key = layout, chunk, seed
    if key not in _in_chunks:
        async with engines(folder, layout, slots=1, chunk=chunk) as engine:
            long = await answer(engine, request(prompt(400, 3), 20, seed=seed))
            short = await answer(engine, request(prompt(7, 4), 3))
        _in_chunks[key] = long, short
    return _in_chunks[key]


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", [None, 5])
async def test_preempted_in_the_prompt_and_twice(
    tmp_path: Path, layout: str, way: str, seed: int | None
) -> None:
    """The tokens are those of the request alone, whenever it was preempted."""
    tokens = prompt(400, 3)
    for chunk in (32, 128):
        wanted, short = await in_chunks_alone(tmp_path, layout, chunk, seed)
        async with engines(tmp_path, layout, slots=1, chunk=chunk, **WAYS[way]) as engine:
            # While no sequence runs, a step takes 512 tokens; so a step is cut by hand.
            engine.submit(one := request(tokens, 20, seed=seed))
            for after in (1, 3, 2):
                await steps(engine, after)
                urgent = request(prompt(7, 4), 3, priority=5 + after)
                assert await answer(engine, urgent) == short
            assert await rest(engine, one) == wanted
            assert one.preempted == 3
            await settle(engine)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_prompt_of_a_higher_priority_comes_before_one_that_has_begun(
    tmp_path: Path, layout: str
) -> None:
    """Both are cut in chunks, and a sequence runs beside them."""
    long, urgent = prompt(400, 1), prompt(240, 2)
    async with engines(tmp_path, layout, slots=4) as engine:
        wanted = [await answer(engine, request(x, 30, seed=3)) for x in (long, urgent)]
    async with engines(tmp_path, layout, slots=4, chunk=32) as engine:
        engine.submit(beside := request(prompt(5), 200))
        await steps(engine, 2)
        engine.submit(one := request(long, 30, seed=3))
        await steps(engine, 14)
        assert 0 < one.computed < len(long)
        computed = one.computed
        engine.submit(other := request(urgent, 30, seed=3, priority=1))
        await engine.next(other)
        assert one.computed <= computed + 64  # two steps were queued
        other.given = one.given = 0
        assert await rest(engine, other) == wanted[1]
        assert await rest(engine, one) == wanted[0]
        engine.cancel(beside)
        await settle(engine)


async def test_a_prompt_that_goes_on_in_its_slot_does_not_hold_up_a_higher_priority(
    tmp_path: Path,
) -> None:
    """A prompt that was preempted, or of which a beginning was kept, is processed in its slot."""
    tokens, urgent = prompt(480, 1), prompt(20, 2)
    async with engines(tmp_path, slots=2) as engine:
        wanted = [await answer(engine, request(x, 4)) for x in (tokens, urgent)]
    async with engines(tmp_path, slots=3, chunk=32) as engine:
        await answer(engine, request(tokens[:60], 1))  # its keys stay in the slot
        engine.submit(beside := request(prompt(5), 200))
        await steps(engine, 2)
        engine.submit(one := request(tokens, 4))
        await steps(engine, 3)
        assert one.in_place
        assert one.cached
        begin = engine.counters.steps
        engine.submit(other := request(urgent, 4, priority=1))
        await engine.next(other)
        assert engine.counters.steps - begin <= 4
        other.given = 0
        assert await rest(engine, other) == wanted[1]
        assert await rest(engine, one) == wanted[0]
        engine.cancel(beside)
        await settle(engine)


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_cancelled_while_preempted(tmp_path: Path, layout: str, way: str) -> None:
    async with engines(tmp_path, layout, slots=1, **WAYS[way]) as engine:
        engine.submit(one := request(prompt(20), 50))
        await steps(engine, 4)
        engine.submit(urgent := request(prompt(5, 1), 10, priority=1))
        await steps(engine, 3)
        assert one.slot is None
        assert one.preempted == 1
        engine.cancel(one)
        assert len(await rest(engine, urgent)) == 10
        await settle(engine)


@pytest.mark.parametrize("layout", ["mamba2", "rwkv7", "llama"])
async def test_a_snapshot_takes_as_much_room_as_it_has_bytes(tmp_path: Path, layout: str) -> None:
    async with engines(tmp_path, layout, slots=1) as engine:
        form = engine.decoder.form
        for room, copied in ((0, True), (-1, False)):
            engine.submit(one := request(prompt(90), 50))
            while one.made < 10:
                await steps(engine, 1)
            # Two steps may have ended at once. When the urgent one is admitted, no more has
            # been computed but two steps.
            n = 90 + one.made - 1
            engine._swap = (n + 2) * form.position + form.state
            if room < 0:
                engine._swap = n * form.position + form.state - 1
            engine.submit(urgent := request(prompt(5), 5, priority=1))
            while not urgent.made:
                await steps(engine, 1)
            assert (one.snapshot is not None) == copied
            engine.cancel(one)
            engine.cancel(urgent)
            await settle(engine)


async def test_the_order_is_that_of_priorities_then_of_callers_then_of_arrival(
    tmp_path: Path,
) -> None:
    async with engines(tmp_path, slots=1) as engine:
        engine.submit(first := request(prompt(5), 8, caller="a", priority=9))
        await steps(engine, 2)
        given = [(0, "a"), (0, "a"), (0, "b"), (3, "a"), (0, "b"), (-1, "c"), (3, "b")]
        those = [request(prompt(5), 4, priority=p, caller=c) for p, c in given]
        order: list[int] = []

        async def read(i: int) -> None:
            await rest(engine, those[i])
            order.append(i)

        for one in those:
            engine.submit(one)
        async with anyio.create_task_group() as tasks:
            for i in range(len(those)):
                tasks.start_soon(read, i)
            await rest(engine, first)
        assert order[:2] == [6, 3]  # b has got fewer tokens than a
        assert order[-1] == 5
        assert order[2:6] in ([2, 4, 0, 1], [2, 0, 4, 1], [2, 0, 1, 4])
        await settle(engine)
