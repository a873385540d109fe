"""The engine: continuous batching compared with single sequences, failures, requests that leave.

Not here: pages of its cache (test_pages.py), beginnings of prompts (../kv/test_prefixes.py).
"""

from __future__ import annotations

import functools
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from models.engine.running import (
    CTX,
    PATIENCE,
    all_of,
    alone,
    engine_of,
    prompts,
    running,
    text,
    until,
)

from aggml import InvalidState
from aggml.models.decoder import Batch, Group
from aggml.models.engine.requests import TextRequest
from aggml.models.engine.staging import Chunk, Piece, mask, place
from aggml.models.errors import EngineError, FullError, TooLongError
from aggml.models.kv.paging import PagedDecoder, count_fitting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aggml import Future
    from aggml.devices.sim import SimDevice
    from aggml.models.text_model import TextModel


def request(prompt: Sequence[int], n: int) -> TextRequest:
    return TextRequest(list(prompt), n)


def stream_of(model: TextModel, prompt: Sequence[int], n: int) -> Any:
    return aclosing(model.generate(prompt, max_tokens=n, stop_ids=()))


@pytest.mark.long(cases=1)
async def test_sequences_that_come_and_go_get_what_each_gets_alone(file: Path) -> None:
    given = [*prompts(12), [1, *range(5, 205)]]  # the prompt of the last one takes several chunks
    lengths = [3 + 5 * i % 17 for i in range(len(given))]
    found: list[list[int]] = [[] for _ in given]

    async def one(model: TextModel, i: int) -> None:
        found[i] = await all_of(model, given[i], lengths[i])

    async with running(file) as model:
        async with anyio.create_task_group() as tasks:
            for i in range(len(given)):
                tasks.start_soon(one, model, i)
                for _ in range(i % 5):
                    await anyio.lowlevel.checkpoint()
        engine = engine_of(model)
        engine.turn()
        assert (engine.pages.used, engine.pages.slots, engine.active, engine.queued) == (
            0, [], 0, 0
        )  # fmt: skip
    for prompt, n, got in zip(given, lengths, found, strict=True):
        assert got == await alone(file, prompt, n)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """For each step that is queued, the tokens of each of its parts."""
    found: list[tuple[int, ...]] = []
    run_step = PagedDecoder.run_step

    def watched(
        decoder: PagedDecoder, step: Any, inputs: Any, batch: Batch, *, chained: bool
    ) -> Future[Any]:
        found.append(tuple(group.ids.size for group in batch.groups))
        return run_step(decoder, step, inputs, batch, chained=chained)

    monkeypatch.setattr(PagedDecoder, "run_step", watched)
    return found


async def test_a_prompt_is_taken_in_beside_a_stream_that_keeps_its_pace(
    file: Path, steps: list[tuple[int, ...]]
) -> None:
    runs, comes = [1, 40, 50], prompts(1, longest=2, seed=1)[0] + list(range(5, 255))
    async with running(file) as model, stream_of(model, runs, 30) as stream:
        found = [(await anext(stream)).id]
        await until(lambda: all(x.future.done() for x in engine_of(model)._flights))
        del steps[:]
        later: list[int] = []

        async def come() -> None:
            later.extend(await all_of(model, comes, 4))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(come)
            await until(lambda: engine_of(model).queued or engine_of(model).active > 1)
            found += [token.id async for token in stream]
    chunks = [step for step in steps if len(step) == 2]
    # 32 rows: 1 of the stream, 3 of padding, 28 of the prompt
    assert [sum(step) for step in chunks] == [32] * 9
    assert len(steps) <= 30 + 3  # each step made a token of the stream
    assert found == await alone(file, runs, 30)
    assert later == await alone(file, comes, 4)


async def test_one_request_alone_keeps_two_steps_queued(file: Path) -> None:
    async with running(file) as model:
        wanted = await all_of(model, [1, 5, 9], 40)
        async with stream_of(model, [1, 5, 9], 40) as stream:
            found = [(await anext(stream)).id]
            most = 0
            async for token in stream:
                found.append(token.id)
                flights = engine_of(model)._flights
                most = max(most, len(flights))
                assert all(x.plan.chained for x in list(flights)[1:])
    assert most == 2
    assert found == wanted == await alone(file, [1, 5, 9], 40)


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

    async def one(model: TextModel, i: int) -> None:
        found[i] = await all_of(model, given[i], 5)

    async with running(file) as model:
        async with anyio.create_task_group() as tasks:
            for i in range(len(given)):
                tasks.start_soon(one, model, i)
        assert engine_of(model).counters.failed_steps == 0
    for prompt, got in zip(given, found, strict=True):
        assert got == await alone(file, prompt, 5)


async def test_whoever_leaves_frees_its_slot_and_changes_no_other_answer(file: Path) -> None:
    stays, goes = [1, 40, 50], [1, 60, 70, 80]
    async with running(file, slots=2) as model:
        engine = engine_of(model)
        kept: list[int] = []

        async def stay() -> None:
            kept.extend(await all_of(model, stays, 40))

        async with anyio.create_task_group() as tasks:
            async with stream_of(model, goes, 300) as stream:
                await anext(stream)  # the sequence that will leave has the lower slot
                tasks.start_soon(stay)
                while engine.active < 2:
                    await anext(stream)
                assert len(engine.pages.slots) == 2
            steps = engine.counters.steps
            assert engine.active == 1
            await until(lambda: len(engine.pages.slots) == 1)
            # two steps were under way, and there may be one of the prompt
            assert engine.counters.steps - steps <= 3
    assert kept == await alone(file, stays, 40)


async def test_a_request_that_is_cancelled_while_it_waits_leaves_the_queue(file: Path) -> None:
    async with running(file, slots=1) as model:
        engine = engine_of(model)
        async with stream_of(model, [1, 5], 400) as first:
            await anext(first)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(all_of, model, [1, 6], 5)
                    await until(lambda: engine.queued)
                    scope.cancel()
            assert engine.queued == 0
            await anext(first)
            await anext(first)
            await anext(first)
            assert not engine._waiting
        assert await all_of(model, [1, 7], 3) == await alone(file, [1, 7], 3)


async def test_a_full_queue_refuses_and_says_when_to_come_back(file: Path) -> None:
    async with running(file, slots=1, max_waiting=1) as model:
        engine = engine_of(model)
        async with stream_of(model, [1, 5], 400) as first:
            await anext(first)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(all_of, model, [1, 6], 2)
                await until(lambda: engine.queued)
                with pytest.raises(FullError, match="1 requests wait already") as caught:
                    await all_of(model, [1, 7], 2)
                assert caught.value.seconds >= 1
                await first.aclose()
        assert len(await all_of(model, [1, 7], 2)) == 2


@pytest.mark.parametrize(
    ("prompt", "n", "budget", "message"),
    [
        ([1] * 513, 12, 64, "513 tokens do not fit into a context of 512"),
        ([1] * 100, 60, 2, "160 tokens need 3 pages of 64 positions, there are 2"),
    ],
)
async def test_requests_that_can_never_run_are_refused(
    file: Path, prompt: list[int], n: int, budget: int, message: str
) -> None:
    async with running(file, budget=budget) as model:
        with pytest.raises(TooLongError, match=message):
            await all_of(model, prompt, n)
        with pytest.raises(TooLongError, match="500 tokens of prompt and 14 more do not fit"):
            engine_of(model).check([request([1] * 500, 14)])


async def test_an_answer_ends_where_the_context_is_full(file: Path) -> None:
    async with running(file) as model:
        stream = model.generate(text(500, 3), max_tokens=100, stop_ids=())
        found = [x.id async for x in stream]
    assert stream.finish_reason == "length"
    assert len(found) == 13
    assert found == await alone(file, text(500, 3), 13)


async def test_a_step_that_fails_fails_its_sequences_and_no_others(
    file: Path, sim_device: SimDevice
) -> None:
    async with running(file, device=sim_device) as model:
        engine = engine_of(model)
        wanted = await all_of(model, [1, 5, 6], 6)
        async with stream_of(model, [1, 5, 6], 400) as stream:
            await anext(stream)
            sim_device.fail_at(0, "compute")
            with pytest.raises(EngineError, match="injected fault"):
                [x async for x in stream]
        assert engine.counters.failed_steps >= 1
        assert await all_of(model, [1, 5, 6], 6) == wanted
        engine.turn()
        assert engine.pages.used == 0


async def test_drained_in_time_or_not(file: Path) -> None:
    async with running(file) as model, stream_of(model, [1, 5], 3) as stream:
        await anext(stream)
        drained: list[bool] = []

        async def drain() -> None:
            drained.append(await engine_of(model).drain(PATIENCE))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            await until(lambda: engine_of(model)._idlers)
            with pytest.raises(FullError, match="stopping"):
                await all_of(model, [1], 1)
            assert not drained
            assert len([x async for x in stream]) >= 1
        assert drained == [True]
    async with running(file) as model, stream_of(model, [1, 5], 400) as stream:
        await anext(stream)
        assert not await engine_of(model).drain(0)


@pytest.mark.parametrize("way", ["leave", "cut off"])
async def test_who_waits_until_the_engine_is_idle_hears_of_requests_that_nobody_awaits(
    file: Path, way: str
) -> None:
    async with running(file) as model, stream_of(model, [1, 5], 400) as stream:
        await anext(stream)
        engine = engine_of(model)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.drain, PATIENCE * 10)
            await until(lambda: engine._idlers)
            if way == "leave":
                await stream.aclose()
            else:
                engine.cut_off()


async def test_a_stream_of_a_model_that_was_closed_meanwhile_says_so(file: Path) -> None:
    async with running(file) as model:
        stream = model.generate([1, 5], max_tokens=400, stop_ids=())
        await anext(stream)
    with pytest.raises(InvalidState, match="closed"):
        async for _ in stream:
            pass


@pytest.mark.long(cases=2)
@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 2, "min_p": 0.01},
        {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "seed": 3},
    ],
    ids=str,
)
async def test_the_device_draws_and_penalizes_as_the_host_does(
    file: Path, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With reports tokens are drawn on the host from all logits, without on the device."""
    prompt = prompts(1, seed=5)[0]
    options = {
        "presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.2,
        "logit_bias": {9: 1.5, 11: -4.0}, "min_tokens": 4, "stop_ids": [2], **sampling,
    }  # fmt: skip
    brought: list[Future[Any]] = []
    run_step = PagedDecoder.run_step

    def watched(decoder: PagedDecoder, *given: Any, **more: Any) -> Future[Any]:
        brought.append(run_step(decoder, *given, **more))
        return brought[-1]

    monkeypatch.setattr(PagedDecoder, "run_step", watched)
    async with running(file) as model:
        here = await all_of(model, prompt, 30, logprobs=2, **options)
        del brought[:]
        assert await all_of(model, prompt, 30, **options) == here
        found = [[(x.dtype, x.size) for x in await future] for future in brought]
    assert found
    # only tokens and their logits are brought from the device
    assert all(x == [(np.int32, x[0][1]), (np.float32, x[0][1])] for x in found)
    assert all(x[0][1] <= 8 for x in found)


async def together(
    model: TextModel, given: Sequence[Sequence[int]], n: int
) -> list[list[int] | str]:
    """All requests at once: the tokens of each, or the reason why it was refused."""
    found: list[list[int] | str] = [""] * len(given)

    async def one(i: int) -> None:
        try:
            found[i] = await all_of(model, given[i], n)
        except FullError as error:
            found[i] = str(error)

    async with anyio.create_task_group() as tasks:
        for i in range(len(given)):
            tasks.start_soon(one, i)
    return found


@pytest.mark.long(cases=3)
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
    async with running(file, slots=slots, budget=budget, max_waiting=max_waiting) as model:
        for _ in range(2):  # an engine that is new, and one that has worked
            found = await together(model, asked, 3)
            refused = [x for x in found if isinstance(x, str)]
            assert len(refused) == given - taken
            assert all("the queue is full" in x for x in refused)
    for prompt, tokens in zip(asked, found, strict=True):
        if not isinstance(tokens, str):
            assert tokens == await alone(file, prompt, 3)


async def test_slots_of_requests_that_have_left_count_as_free(file: Path) -> None:
    async with running(file, slots=2, max_waiting=1) as model:
        engine = engine_of(model)
        for _ in range(3):
            streams = [model.generate([1, 5, i], max_tokens=400, stop_ids=()) for i in range(2)]
            for stream in streams:
                await anext(stream)
            for stream in streams:
                await stream.aclose()
            engine.check([request([1, 6], 3)] * 3)
            with pytest.raises(TooLongError, match="3 are taken: 2 that run and 1 that wait"):
                engine.check([request([1, 6], 3)] * 4)
            assert all(len(x) == 3 for x in await together(model, [[1, 6]], 3))


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
    assert count_fitting(needs, slots, pages) == n


async def test_unread_answers_are_computed_and_free_their_slots_for_who_waits(file: Path) -> None:
    async with running(file, slots=2) as model:
        unread = [model.generate([1, 5, i], max_tokens=20, stop_ids=()) for i in range(2)]
        for stream in unread:
            await anext(stream)
        assert await all_of(model, [1, 7], 5) == await alone(file, [1, 7], 5)
        for i, stream in enumerate(unread):
            rest = [x.id async for x in stream]
            assert rest == (await alone(file, [1, 5, i], 20))[1:]
    assert CTX == 512


async def test_a_failed_step_of_several_prompts_leaves_nothing_behind_in_any_of_their_slots(
    file: Path, sim_device: SimDevice
) -> None:
    given = [text(60, 1), text(70, 2), text(80, 3)]
    async with running(file, device=sim_device) as model:

        async def fails(prompt: list[int]) -> None:
            with pytest.raises(EngineError, match="injected fault"):
                await all_of(model, prompt, 6)

        await all_of(model, [1, 5], 1)
        sim_device.fail_at(0, "compute")
        async with anyio.create_task_group() as tasks:
            for prompt in given:
                tasks.start_soon(fails, prompt)
        found = [await all_of(model, [*prompt, 9], 6) for prompt in given]
    assert found == [await alone(file, [*prompt, 9], 6) for prompt in given]


def test_a_chunk_of_several_prompts_writes_rows_of_several_slots() -> None:
    pieces = [Piece([7, 8, 9], first=2, slot=1, at=64), Piece([4, 5], first=0, slot=0, at=0)]
    laid = Chunk.of(pieces, 6, ctx=256, staging=512, rows=256)
    group = Group(laid.ids, laid.positions, laid.rows, 2, 256)
    assert Batch((group,), None, laid.staged[0]).written_rows(256) == [
        (1, 2, 3), (0, 0, 2), (2, 255, 1), (2, 66, 3), (2, 0, 2), (2, 255, 1)
    ]  # fmt: skip


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("kind", ["logits", "vectors"])
async def test_prompts_for_arrays_and_for_tokens_do_not_write_each_other_s_rows(
    file: Path, kind: str
) -> None:
    """Both take several steps, in turns, and lie in the rows that prompts share."""
    prompts_of = {x: [text(300 + i, 10 * k + i) for i in range(2)] for k, x in enumerate("ta")}
    tokens: dict[int, list[int]] = {}
    arrays: dict[int, np.ndarray] = {}

    async def generate(model: TextModel, i: int) -> None:
        tokens[i] = await all_of(model, prompts_of["t"][i], 5)

    async def compute(model: TextModel, i: int) -> None:
        ids = prompts_of["a"][i] + text(180, 77)
        if kind == "logits":
            arrays[i] = await model.logits(ids)
        else:
            arrays[i] = await model.embed_ids([ids, ids[:400]])

    async with running(file, slots=8, budget=128) as model, stream_of(model, [1, 5], 400) as runs:
        await anext(runs)  # beside it prompts for tokens are computed 28 tokens a step
        async with anyio.create_task_group() as tasks:
            for i in range(2):
                tasks.start_soon(generate, model, i)
                tasks.start_soon(compute, model, i)
    async with running(file, slots=1) as model:
        together = dict(arrays)
        for i in range(2):
            await compute(model, i)
            assert np.abs(arrays[i] - together[i]).max() < 2e-2
    for i in range(2):
        assert tokens[i] == await alone(file, prompts_of["t"][i], 5)


async def test_draws_do_not_depend_on_the_options_of_others(file: Path) -> None:
    drawn = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "seed": 5}
    async with running(file) as model:
        wanted = await all_of(model, [1, 5, 9], 40, **drawn)
        found: list[int] = []

        async def draw() -> None:
            found.extend(await all_of(model, [1, 5, 9], 40, **drawn))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(draw)
            tasks.start_soon(functools.partial(all_of, model, [1, 7], 40, logprobs=3))
    assert found == wanted


async def test_the_next_turn_of_a_conversation_computes_its_new_tokens_alone(file: Path) -> None:
    """However the answer before ended: all tokens, a token that ends it, or a reader that left."""
    prompt = text(100, 6)
    async with running(file) as model:
        answer = await all_of(model, prompt, 60)
        end = next(i for i in range(20, 60) if answer[i] not in answer[:i])
        for kind in ("length", "stop", "left"):
            begin = prompt if kind == "stop" else prompt + text(30, 7 + len(kind))[1:]
            stops = [answer[end]] if kind == "stop" else []
            made: list[int] = []
            stream = model.generate(begin, max_tokens=40, stop_ids=stops)
            async for token in stream:
                made.append(token.id)
                if kind == "left" and len(made) == 20:
                    break
            await stream.aclose()
            assert stream.finish_reason == (None if kind == "left" else kind)
            turn = [*begin, *made, *text(20, 8)[1:]]
            later = model.generate(turn, max_tokens=10, stop_ids=())
            found = [x.id async for x in later]
            assert len(begin) + len(made) - 1 <= later.cached_tokens <= len(turn) - 1, kind
            assert found == await alone(file, turn, 10)
