"""Beginnings of prompts are stored: the tokens stay the same, less is computed.

Here: beginnings that are stored, used and given up by an engine; transfers that fail, requests that
leave meanwhile. Not here: which beginnings are found (../kv/test_prefixes.py), files
(../kv/test_prefix_files.py), what a free slot still holds (test_engine.py).
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from models import random_models
from models.engine.running import all_of, alone, engine_of, running, text
from models.engine.tiny import settle
from models.layout import VOCABULARY

import aggml
from aggml.models.engine.engine import Engine
from aggml.models.errors import EngineError
from aggml.models.kv.paging import PAGE, PagedDecoder
from aggml.models.kv.prefixes import Prefixes
from aggml.models.text_model import TextModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from aggml.devices.sim import SimDevice
    from aggml.models.kv.snapshots import Snapshot

STATES = ("mamba2-groups", "rwkv7-two-heads", "qwen3next")


@asynccontextmanager
async def storing(file: Path, pages: int = 32, **options: Any) -> AsyncIterator[TextModel]:
    """A model whose engine stores up to so many pages; 0: none."""
    async with running(file, **options) as model:
        engine = engine_of(model)
        if pages:
            page = engine.decoder.page_bytes() + PAGE * 4
            engine.prefixes = Prefixes(engine.decoder, pages * page)
        yield model


async def answer(model: TextModel, prompt: Sequence[int], n: int) -> tuple[list[int], int]:
    """The tokens of an answer, and how many of its prompt did not have to be computed."""
    stream = model.generate(prompt, max_tokens=n, stop_ids=())
    return [x.id async for x in stream], stream.cached_tokens


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check whenever a step was planned that all pages together are within the budget."""
    plan = Engine._next

    def planned(engine: Engine) -> Any:
        found = plan(engine)
        pages = engine.pages
        assert pages.used + pages.stored + pages.shared <= pages.budget
        if engine.prefixes is not None:
            assert engine.prefixes.nbytes <= engine.prefixes.budget
        return found

    monkeypatch.setattr(Engine, "_next", planned)


@pytest.mark.long(cases=1)
@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("cache", ["f16", "bf16", "f32", "q8_0", "q4_0"])
async def test_a_later_prompt_with_the_same_beginning_computes_its_new_tokens_only(
    tmp_path: Path, cache: str
) -> None:
    file = random_models.write(tmp_path / "model.gguf", "llama-wide-heads")
    begins = [text(200, 1), text(130, 2)]
    asked = [begins[i % 2] + text(3 + 9 * i, 10 + i)[1:] for i in range(8)]
    found = {}
    for stored in (0, 32):
        # one slot: what it still holds is of another beginning
        async with storing(file, stored, slots=1, cache=cache) as model:
            answers = [await answer(model, prompt, 12) for prompt in asked]
            counters = engine_of(model).counters
        found[stored] = [tokens for tokens, _ in answers]
        cached = [n for _, n in answers]
        assert cached == ([0, 0] + [192, 128] * 3 if stored else [0] * 8)
        assert counters.cached_tokens == sum(cached)
        assert counters.prompt_tokens == sum(map(len, asked)) - sum(cached)
    assert found[0] == found[32]


async def test_who_writes_behind_a_shared_page_does_not_change_it(file: Path) -> None:
    begin = text(150, 3)
    async with storing(file, slots=1) as model:
        first = await all_of(model, begin, 40)
        for seed in (4, 5):
            await all_of(model, begin[:140] + text(60, seed), 40)
            await all_of(model, [1, seed], 2)  # it has the slot meanwhile
        assert await answer(model, begin, 40) == (first, 128)
    assert first == await alone(file, begin, 40)


async def test_the_next_turn_takes_the_answer_too(file: Path) -> None:
    prompt = text(100, 6)
    async with storing(file, slots=1) as model:
        made = await all_of(model, prompt, 100)
        await all_of(model, text(20, 8), 3)  # it has the slot meanwhile
        turn = [*prompt, *made, *text(20, 7)]
        found, cached = await answer(model, turn, 10)
    assert cached == 192  # whole pages of the 199 positions that were written
    assert found == await alone(file, turn, 10)


@pytest.mark.long(cases=1)
@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("slots", [1, 3])
async def test_conversations_in_turns_compute_their_new_tokens_only(file: Path, slots: int) -> None:
    """Each gets the slot of the one before, whose tokens behind the last page are stored first."""
    prompts = [text(n, 60 + n) for n in (100, 23, 150)]
    async with storing(file, slots=slots, cache="f32") as model:
        fed = [0, 0, 0]
        for n in (10, 21, 30):
            for i, prompt in enumerate(prompts):
                found, cached = await answer(model, prompt, n)
                assert len(prompt) - 1 >= cached >= fed[i] - PAGE // 4
                assert found == await alone(file, prompt, n, cache="f32")
                fed[i] = len(prompt) + n - 1
                prompts[i] = [*prompt, *found, *text(9, n + i)]


async def test_requests_that_follow_each_other_have_the_graphs_of_the_first_one(
    file: Path,
) -> None:
    async with storing(file, slots=4) as model:
        decoder = engine_of(model).decoder
        prepare, built, first = decoder.prepare_step, 0, 0

        async def count(shape: Any) -> Any:
            nonlocal built
            built += 1
            return await prepare(shape)

        decoder.prepare_step = count  # type: ignore[method-assign]
        for seed in range(8):
            await all_of(model, text(30, seed), 5)
            if seed == 0:
                first, built = built, 0
        assert first > 0
        assert not built


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", STATES)
async def test_the_next_turn_of_a_model_with_states_computes_the_new_tokens_only(
    tmp_path: Path, layout: str
) -> None:
    file = random_models.write(tmp_path / "model.gguf", layout)
    random = np.random.default_rng(17)
    prompt: list[int] = random.integers(3, VOCABULARY, 150).tolist()
    async with storing(file, slots=1, cache="f32") as model:
        for n in (5, 70, 1):
            made = await all_of(model, prompt, n)
            await all_of(model, [9, 8, n], 2)  # it has the slot meanwhile
            fed = len(prompt) + n - 1
            prompt = [*prompt, *made, *random.integers(3, VOCABULARY, 10).tolist()]
            found, cached = await answer(model, prompt, 4)
            assert cached == fed
            assert found == await alone(file, prompt, 4, cache="f32")


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", STATES)
async def test_ten_turns_of_conversations_compute_their_new_tokens_only(
    tmp_path: Path, layout: str
) -> None:
    """What `load` gives by default: two conversations by turns, for which there is one slot."""
    file = random_models.write(tmp_path / "model.gguf", layout)
    random = np.random.default_rng(23)
    prompts: list[list[int]] = [random.integers(3, VOCABULARY, n).tolist() for n in (30, 41)]
    fed = [0, 0]
    async with await aggml.models.load(file, ctx=512, slots=1, cache="f32") as model:
        assert isinstance(model, TextModel)
        for turn in range(10):
            for i, prompt in enumerate(prompts):
                computed = model.engine.counters.prompt_tokens
                found, cached = await answer(model, prompt, 5 + turn)
                assert cached == fed[i]
                assert model.engine.counters.prompt_tokens - computed == len(prompt) - fed[i]
                assert found == await alone(file, prompt, 5 + turn, cache="f32")
                fed[i] = len(prompt) + len(found) - 1
                more = random.integers(3, VOCABULARY, 9 + i).tolist()
                prompts[i] = [*prompt, *found, *more]


@pytest.mark.long
@pytest.mark.usefixtures("checked")
async def test_prompts_that_come_together_have_their_beginning_computed_once(file: Path) -> None:
    begin = text(300, 8)
    asked = [begin + text(5 + i, 20 + i)[1:] for i in range(6)]
    computed = {}
    for stored in (0, 32):
        found: dict[int, list[int]] = {}
        async with storing(file, stored, slots=6) as model:

            async def one(i: int, model: TextModel, found: dict[int, list[int]]) -> None:
                found[i] = await all_of(model, asked[i], 9)

            async with anyio.create_task_group() as tasks:
                for i in range(len(asked)):
                    tasks.start_soon(one, i, model, found)
            computed[stored] = engine_of(model).counters.prompt_tokens
            await settle(engine_of(model))
        for i, prompt in enumerate(asked):
            assert found[i] == await alone(file, prompt, 9)
    whole = sum(map(len, asked))
    assert computed == {0: whole, 32: whole - 5 * 256}


@pytest.mark.long(cases=1)
@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("budget", [9, 12, 20])
async def test_stored_beginnings_give_way_when_sequences_need_their_pages(
    file: Path, budget: int
) -> None:
    """Twelve beginnings of three pages each: more than there is room for at once."""
    random = np.random.default_rng(9)
    begins = [text(200, 30 + i) for i in range(12)]
    order = random.integers(0, 12, 40).tolist()
    asked = [begins[i] + text(10 + k, 100 + k)[1:] for k, i in enumerate(order)]
    found: dict[tuple[int, int], list[int]] = {}
    for stored in (0, 32):
        async with storing(file, stored, budget=budget) as model:
            limit = anyio.CapacityLimiter(3)

            async def one(
                k: int, model: TextModel, limit: anyio.CapacityLimiter, stored: int
            ) -> None:
                async with limit:
                    found[stored, k] = await all_of(model, asked[k], 7)

            async with anyio.create_task_group() as tasks:
                for k in range(len(asked)):
                    tasks.start_soon(one, k, model, limit, stored)
            engine = engine_of(model)
            await settle(engine)
            assert engine.counters.cached_tokens > 0 or not (stored and budget == 20)
            # A request that needs the stored pages, too, gets them.
            whole = text(min(budget * PAGE, 512) - 40, 500)
            tokens = await all_of(model, whole, 40)
            assert tokens == await alone(file, whole, 40)
            await settle(engine)
    assert all(found[0, k] == found[32, k] for k in range(len(asked)))


async def test_a_prompt_that_is_cancelled_leaves_what_it_has_computed(file: Path) -> None:
    begin = text(400, 11)
    async with storing(file, slots=2) as model:
        engine = engine_of(model)
        stream = model.generate(text(5, 12), max_tokens=300, stop_ids=())
        async with aclosing(stream):
            await anext(stream)  # beside this stream the prompt is computed 28 tokens a step
            before = engine.counters.prompt_tokens
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(all_of, model, begin, 20)
                while engine.counters.prompt_tokens < before + 150:
                    await anext(stream)
                tasks.cancel_scope.cancel()
            for seed in (13, 14):  # they get the slot
                await all_of(model, text(5, seed), 2)
            found, cached = await answer(model, begin, 20)
        assert 128 <= cached < 384
    assert found == await alone(file, begin, 20)


@pytest.mark.usefixtures("checked")
async def test_requests_that_are_cancelled_at_any_step_spoil_nothing_stored(file: Path) -> None:
    begin = text(260, 13)
    wanted = await alone(file, begin, 15)
    async with storing(file, budget=24) as model:
        for turns in range(0, 24, 3):
            async with anyio.create_task_group() as tasks:
                for i in range(3):
                    tasks.start_soon(all_of, model, [*begin, 40 + turns, 50 + i], 30)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert await all_of(model, begin, 15) == wanted
        await settle(engine_of(model))


async def test_a_device_with_its_own_memory_stores_them_too(
    file: Path, sim_device: SimDevice
) -> None:
    begin = text(200, 14)
    async with storing(file, slots=1, device=sim_device) as model:
        first = await all_of(model, begin, 8)
        await all_of(model, [1, 9], 2)
        assert await answer(model, begin, 8) == (first, 192)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", ["gemma3", "gpt-oss", "gemma2"])
async def test_layers_with_a_window_take_stored_pages_too(tmp_path: Path, layout: str) -> None:
    file = random_models.write(tmp_path / "model.gguf", layout)
    random = np.random.default_rng(16)
    begin = random.integers(3, VOCABULARY, 200).tolist()
    asked = [begin + random.integers(3, VOCABULARY, 5 + i).tolist() for i in range(3)]
    async with storing(file, slots=1, cache="f32") as model:
        for i, prompt in enumerate(asked):
            found, cached = await answer(model, prompt, 12)
            assert cached == (192 if i else 0)
            assert found == await alone(file, prompt, 12, cache="f32")
            await all_of(model, [9, 8, 7], 2)  # it has the slot meanwhile


class Lost:
    """A transfer that failed."""

    def done(self) -> bool:
        return True

    def exception(self) -> Exception:
        return OSError("lost")

    async def wait_until_done(self) -> None:
        await anyio.lowlevel.checkpoint()


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", ["llama", *STATES])
async def test_a_read_that_fails_loses_the_stored_beginning_alone(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = random_models.write(tmp_path / "model.gguf", layout)
    begin = np.random.default_rng(15).integers(3, VOCABULARY, 140).tolist()
    save = PagedDecoder.save

    def fails(decoder: PagedDecoder, *given: Any, **more: Any) -> Snapshot:
        found = save(decoder, *given, **more)
        lost: Any = Lost()
        found._waits += (lost,)
        return found

    turn = [*begin, 5]  # a state is stored shortly before the end of a prompt
    async with storing(file, slots=1, cache="f32") as model:
        with monkeypatch.context() as patch:
            patch.setattr(PagedDecoder, "save", fails)
            first = await all_of(model, begin, 4)
            await all_of(model, [9, 8, 7], 2)
        wanted = await alone(file, turn, 4, cache="f32")
        assert await answer(model, turn, 4) == (wanted, 0)
        await all_of(model, [9, 8, 6], 2)
        turn.append(6)
        found, cached = await answer(model, turn, 4)
        assert found == await alone(file, turn, 4, cache="f32")
        assert cached == 128
    assert first == await alone(file, begin, 4, cache="f32")


async def test_a_write_that_fails_ends_one_request_and_later_ones_go_on(
    file: Path, sim_device: SimDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = text(200, 19)
    load = PagedDecoder.load

    def fails(*given: Any, **more: Any) -> Any:
        sim_device.fail_at(0, "transfer")
        return load(*given, **more)

    async with storing(file, slots=1, device=sim_device) as model:
        first = await all_of(model, begin, 5)
        await all_of(model, text(9, 20), 2)  # it has the slot meanwhile
        with monkeypatch.context() as patch:
            patch.setattr(PagedDecoder, "load", fails)
            with pytest.raises(EngineError, match="injected fault"):
                await all_of(model, begin, 5)
        assert await all_of(model, [1, 9], 5) == await alone(file, [1, 9], 5)
        assert await all_of(model, begin, 5) == first
        await settle(engine_of(model))
