"""The engine: continuous batching compared with single sequences, failures, hang-ups, draws.

Not here: pages of its cache (test_pages.py), prompts kept (test_prefixes.py), HTTP (test_http.py).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from aggml.models.engine.jobs import EngineError, FullError, Job, TooLongError
from serve.running import CTX, PATIENCE, all_of, greedy, prompts, running

import aggml
from aggml.models.decoder.adjusting import Adjuster, Rules
from aggml.models.decoder.generating import generate
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine.staging import Chunk, Piece, mask, place
from aggml.models.kv.paging import PagedDecoder, fitting
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aggml import Future
    from aggml.devices.sim import SimDevice
    from aggml.models.decoder import Batch
    from aggml.models.engine.engine import Engine


async def alone(file: Path, prompt: Sequence[int], n: int) -> list[int]:
    with await open_model(file) as opened:
        async with aggml.get_device("CPU").backend() as backend:
            model = await load_decoder(backend, opened, ctx=CTX)
            steps = generate(model, prompt, [Sampler(temperature=0)], n_predict=n)
            return [x for (x,) in [tokens async for tokens in steps] if x is not None]


async def test_sequences_that_come_and_go_get_what_each_gets_alone(file: Path) -> None:
    given = [*prompts(12), [1, *range(5, 205)]]  # the prompt of the last one takes several chunks
    lengths = [3 + 5 * i % 17 for i in range(len(given))]
    found: list[list[int]] = [[] for _ in given]

    async def one(engine: Engine, i: int) -> None:
        found[i] = await all_of(engine, greedy(given[i], lengths[i]))

    async with running(file) as engine, anyio.create_task_group() as tasks:
        for i in range(len(given)):
            tasks.start_soon(one, engine, i)
            for _ in range(i % 5):
                await anyio.lowlevel.checkpoint()
    for prompt, n, got in zip(given, lengths, found, strict=True):
        assert got == await alone(file, prompt, n)
    assert (engine.pages.used, engine.pages.slots, engine.active, engine.queued) == (0, [], 0, 0)


async def test_a_prompt_is_taken_in_beside_a_stream_that_keeps_its_pace(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, comes = [1, 40, 50], prompts(1, longest=2, seed=1)[0] + list(range(5, 255))
    steps: list[tuple[int, ...]] = []  # for each step, the tokens of each of its parts
    queue = PagedDecoder.queue

    async def watched(
        model: PagedDecoder, batch: Batch, *rest: Any, **more: Any
    ) -> Future[list[Any]]:
        steps.append(tuple(group.ids.size for group in batch.groups))
        return await queue(model, batch, *rest, **more)

    monkeypatch.setattr(PagedDecoder, "queue", watched)
    async with running(file) as engine, aclosing(engine.stream(greedy(runs, 30))) as stream:
        found = await anext(stream)
        del steps[:]
        later: list[int] = []

        async def come() -> None:
            later.extend(await all_of(engine, greedy(comes, 4)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(come)
            async for tokens in stream:
                found += tokens
    chunks = [step for step in steps if len(step) == 2]
    # 32 rows: 1 of the stream, 3 of padding, 28 of the prompt
    assert [sum(step) for step in chunks] == [32] * 9
    assert steps[-1] == (1,) or len(steps[-1]) == 1
    assert len(steps) <= 30  # each step made a token of the stream
    assert found == await alone(file, runs, 30)
    assert later == await alone(file, comes, 4)


@pytest.mark.parametrize(
    ("length", "held", "wanted"),
    [
        (100, [], 0),
        (100, [(0, 100)], 128),
        (60, [(100, 200)], 0),  # before the rows that are held
        (60, [(300, 340), (0, 30)], 32),
        (200, [(0, 100)], 256),  # 128 would cross the end of a block
        (300, [(0, 100)], 256),
        (300, [(0, 300)], None),
    ],
)
def test_where_a_prompt_is_staged(
    length: int, held: list[tuple[int, int]], wanted: int | None
) -> None:
    assert place(length, held, rows=600) == wanted


def test_each_staged_prompt_sees_itself_alone() -> None:
    pieces = [Piece([7, 8, 9], first=2, slot=1, at=64), Piece([4, 5], first=0, slot=0, at=0)]
    found = mask(pieces, 6, 128)[0, 0]
    wanted = np.full((6, 128), -np.inf)
    for row, (first, end) in enumerate([(64, 67), (64, 68), (64, 69), (0, 1), (0, 2), (0, 1)]):
        wanted[row, first:end] = 0
    assert np.array_equal(found, wanted)
    laid = Chunk.of(pieces, 6, ctx=256, staging=512, rows=256)
    assert laid.ids.tolist() == [[7, 8, 9, 4, 5, 0]]
    assert laid.positions[0, :5].tolist() == [2, 3, 4, 0, 1]
    assert laid.rows.tolist() == [[258, 259, 260, 0, 1, 767]]
    assert laid.staged.tolist() == [[578, 579, 580, 512, 513, 767]]


async def test_prompts_side_by_side_are_longer_than_a_context(file: Path) -> None:
    given = [[1, *range(5 + i, 235 + i)] for i in range(3)]  # staged from rows 0, 256 and 512 on
    found: list[list[int]] = [[] for _ in given]

    async def one(engine: Engine, i: int) -> None:
        found[i] = await all_of(engine, greedy(given[i], 5))

    async with running(file) as engine, anyio.create_task_group() as tasks:
        for i in range(len(given)):
            tasks.start_soon(one, engine, i)
    assert engine.counters.failed_steps == 0
    for prompt, got in zip(given, found, strict=True):
        assert got == await alone(file, prompt, 5)


async def test_who_hangs_up_leaves_the_others_alone(file: Path) -> None:
    stays, goes = [1, 40, 50], [1, 60, 70, 80]
    async with running(file, slots=2) as engine:
        kept: list[int] = []

        async def stay() -> None:
            kept.extend(await all_of(engine, greedy(stays, 40)))

        async with anyio.create_task_group() as tasks:
            async with aclosing(engine.stream(greedy(goes, 300))) as stream:
                await anext(stream)  # the sequence that will leave has the lower slot
                tasks.start_soon(stay)
                while engine.active < 2:
                    await anext(stream)
                assert len(engine.pages.slots) == 2
            steps = engine.counters.steps
            while len(engine.pages.slots) > 1:
                await anyio.lowlevel.checkpoint()
            assert engine.counters.steps - steps <= 2  # the step under way, and one of the prompt
    assert kept == await alone(file, stays, 40)


async def test_cancelled_while_it_waits(file: Path) -> None:
    async with running(file, slots=1) as engine:
        async with aclosing(engine.stream(greedy([1, 5], 400))) as first:
            await anext(first)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(all_of, engine, greedy([1, 6], 5))
                    while engine.queued < 1:
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
            await anext(first)
            await anext(first)
            assert engine.queued == 0
        assert await all_of(engine, greedy([1, 7], 3)) == await alone(file, [1, 7], 3)


async def test_a_full_queue_refuses_and_says_when_to_come_back(file: Path) -> None:
    async with running(file, slots=1, max_waiting=1) as engine:
        async with aclosing(engine.stream(greedy([1, 5], 400))) as first:
            await anext(first)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(all_of, engine, greedy([1, 6], 2))
                while not engine.queued:
                    await anyio.lowlevel.checkpoint()
                with pytest.raises(FullError, match="1 requests wait already") as caught:
                    await all_of(engine, greedy([1, 7], 2))
                assert caught.value.seconds >= 1
                await first.aclose()
        assert len(await all_of(engine, greedy([1, 7], 2))) == 2


@pytest.mark.parametrize(
    ("prompt", "n", "budget", "message"),
    [
        ([], 4, 64, "at least one token"),
        ([1], 0, 64, "at least one token"),
        ([1] * 500, 12, 64, "500 tokens of prompt and 12 more do not fit a context of 511"),
        ([1] * 100, 60, 2, "160 tokens need 3 pages, the server has 2"),
    ],
)
async def test_what_can_never_run_is_refused(
    file: Path, prompt: list[int], n: int, budget: int, message: str
) -> None:
    async with running(file, budget=budget) as engine:
        with pytest.raises(TooLongError, match=message):
            await all_of(engine, greedy(prompt, n))


async def test_a_step_that_fails_fails_its_sequences_and_no_others(
    file: Path, sim_device: SimDevice
) -> None:
    async with running(file, device=sim_device) as engine:
        wanted = await all_of(engine, greedy([1, 5, 6], 6))
        async with aclosing(engine.stream(greedy([1, 5, 6], 400))) as stream:
            await anext(stream)
            sim_device.fail_at(0, "compute")
            with pytest.raises(EngineError, match="injected fault"):
                [tokens async for tokens in stream]
        assert engine.counters.failed_steps == 1
        assert await all_of(engine, greedy([1, 5, 6], 6)) == wanted
        assert engine.pages.used == 0


async def test_drained_in_time_or_not(file: Path) -> None:
    async with running(file) as engine, aclosing(engine.stream(greedy([1, 5], 3))) as stream:
        await anext(stream)
        assert await engine.drain(PATIENCE)
        with pytest.raises(FullError, match="stopping"):
            engine.check([greedy([1], 1)])
        assert len([x async for x in stream]) >= 1
    async with running(file) as engine, aclosing(engine.stream(greedy([1, 5], 400))) as stream:
        await anext(stream)
        assert not await engine.drain(0)


async def test_who_waits_when_the_engine_stops_hears_of_it(file: Path) -> None:
    async with running(file) as engine:
        stream = engine.stream(greedy([1, 5], 400))
        await anext(stream)
    with pytest.raises(EngineError, match="has stopped"):
        async for _ in stream:
            pass


@pytest.mark.parametrize(
    "sampler", [(0.0, 40, 0.95, 1), (0.9, 20, 0.9, 2, 0.01), (1.3, 0, 1.0, 3)], ids=str
)
async def test_the_device_draws_and_penalizes_as_the_host_does(
    file: Path, sampler: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with reports is drawn on the host from all logits, one without on the device."""
    prompt = prompts(1, seed=5)[0]
    rules = Rules(0.4, 0.3, 1.2, {9: 1.5, 11: -4.0}, 4)
    brought: list[list[tuple[Any, int]]] = []
    queue = PagedDecoder.queue

    async def watched(
        model: PagedDecoder, batch: Batch, *rest: Any, **more: Any
    ) -> Future[list[Any]]:
        future = await queue(model, batch, *rest, **more)
        brought.append([(x.dtype, x.size) for x in await future])
        return future

    monkeypatch.setattr(PagedDecoder, "queue", watched)

    def job(told: int | None) -> Job:
        ends = frozenset([2])
        adjuster = Adjuster(rules, prompt, ends)
        return Job(prompt, 30, Sampler(*sampler), ends, adjuster=adjuster, told=told)

    async with running(file) as engine:
        here = await all_of(engine, job(2))
        del brought[:]
        assert await all_of(engine, job(None)) == here
    assert brought
    # only tokens and their logits are brought from the device
    assert all(x == [(np.int32, x[0][1]), (np.float32, x[0][1])] for x in brought)
    assert all(x[0][1] <= 8 for x in brought)


async def together(engine: Engine, jobs: Sequence[Job]) -> list[list[int] | str]:
    """All jobs at once: the tokens of each, or the reason why it was refused."""
    found: list[list[int] | str] = [""] * len(jobs)

    async def one(i: int) -> None:
        try:
            found[i] = await all_of(engine, jobs[i])
        except FullError as error:
            found[i] = str(error)

    async with anyio.create_task_group() as tasks:
        for i in range(len(jobs)):
            tasks.start_soon(one, i)
    return found


@pytest.mark.parametrize(
    ("slots", "budget", "max_waiting", "given", "taken"),
    [
        (8, 64, 1, 8, 8),
        (8, 64, 1, 9, 9),
        (8, 64, 1, 12, 9),
        (2, 64, 3, 12, 5),
        (8, 3, 1, 8, 4),  # each takes a page of the three
        (1, 64, 1, 4, 2),
    ],
)
async def test_only_requests_that_have_to_wait_are_in_the_queue(
    file: Path, slots: int, budget: int, max_waiting: int, given: int, taken: int
) -> None:
    asked = [[1, 5 + i, 9] for i in range(given)]
    found: list[list[int] | str] = []
    async with running(file, slots=slots, budget=budget, max_waiting=max_waiting) as engine:
        for _ in range(2):  # an engine that is new, and one that has worked
            found = await together(engine, [greedy(prompt, 3) for prompt in asked])
            refused = [x for x in found if isinstance(x, str)]
            assert len(refused) == given - taken
            assert all("the queue is full" in x for x in refused)
    for prompt, tokens in zip(asked, found, strict=True):
        if not isinstance(tokens, str):
            assert tokens == await alone(file, prompt, 3)


async def test_slots_of_requests_that_have_left_count_as_free(file: Path) -> None:
    async with running(file, slots=2, max_waiting=1) as engine:
        for _ in range(3):
            streams = [engine.stream(greedy([1, 5, i], 400)) for i in range(2)]
            for stream in streams:
                await anext(stream)
            for stream in streams:
                await stream.aclose()
            engine.check([greedy([1, 6], 3)] * 3)
            with pytest.raises(TooLongError, match="takes 3 of them: 2 that run and 1 that wait"):
                engine.check([greedy([1, 6], 3)] * 4)
            assert all(len(x) == 3 for x in await together(engine, [greedy([1, 6], 3)] * 1))


@pytest.mark.parametrize(
    ("needs", "slots", "pages", "n"),
    [
        ([], 3, 9, 0),
        ([3, 3, 3, 1], 9, 9, 3),
        ([3, 9, 1], 9, 9, 1),  # the last one does not pass the one before it
        ([1, 1, 1], 2, 9, 2),
        ([1, 1], 0, 9, 0),
        ([1, 1], 2, -1, 0),
    ],
)
def test_how_many_sequences_get_a_slot(needs: list[int], slots: int, pages: int, n: int) -> None:
    assert fitting(needs, slots, pages) == n
