"""aggml.serve stores beginnings of prompts: the tokens stay the same, less is computed.

Here: pages that are stored, used, given up; cancelled and failed steps meanwhile. Not here:
continuous batching as such (test_engine.py), which replica gets a prompt (tests/ray).
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from aggml.models.engine.jobs import EngineError, Job
from aggml.models.engine.prefixes import Prefixes
from aggml.models.kv.copying import Run, joined
from models import random_models
from models.layout import VOCABULARY
from serve.support import GREEDY, engine_of, serving

import aggml
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine.engine import STAGED, Engine
from aggml.models.kv.paging import PAGE, PagedDecoder, Pages
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model
from examples import llama_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from aggml.devices.sim import SimDevice

CTX = 512
PATIENCE = 100


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_files.write(tmp_path_factory.mktemp("models") / "llama.gguf")


@asynccontextmanager
async def running(
    file: Path,
    *,
    stored: int = 32,
    slots: int = 4,
    budget: int = 64,
    cache: str = "f16",
    device: aggml.Device | None = None,
) -> AsyncIterator[Engine]:
    device = device or aggml.get_device("CPU")
    more = -(-stored * PAGE // CTX)
    with await open_model(file) as opened:
        async with device.backend() as backend:
            model = await load_decoder(
                backend, opened, kind=PagedDecoder, ctx=CTX, cache=cache,
                sequences=slots + STAGED + more,
            )  # fmt: skip
            async with Engine(model, slots=slots, budget=budget, stored=stored, chunk=32) as engine:
                with anyio.fail_after(PATIENCE):
                    yield engine


def job_of(prompt: Sequence[int], n: int) -> Job:
    return Job(prompt, n, Sampler(temperature=0))


def text(n: int, seed: int) -> list[int]:
    return [1, *np.random.default_rng(seed).integers(3, 290, n - 1).tolist()]


async def all_of(engine: Engine, job: Job) -> list[int]:
    async with aclosing(engine.stream(job)) as stream:
        return [token async for tokens in stream for token in tokens]


def watch(engine: Engine) -> None:
    """Check before each step that running and stored pages are within the budget."""
    take = engine._admit

    def admit() -> None:
        take()
        assert engine.pages.used + engine.pages.stored <= engine.pages.budget
        assert engine.pages.stored == len(engine.prefixes) <= engine.prefixes.most

    engine._admit = admit  # type: ignore[method-assign]


@pytest.mark.parametrize("cache", ["f16", "bf16", "f32", "q8_0", "q4_0"])
async def test_stored_pages_give_the_tokens_that_computing_gives(
    tmp_path: Path, cache: str
) -> None:
    file = random_models.write(tmp_path / "model.gguf", "llama-wide-heads")
    begins = [text(200, 1), text(130, 2)]
    asked = [begins[i % 2] + text(3 + 9 * i, 10 + i)[1:] for i in range(8)]
    found = {}
    for stored in (0, 32):
        async with running(file, stored=stored, cache=cache) as engine:
            watch(engine)
            jobs = [job_of(prompt, 12) for prompt in asked]
            found[stored] = [await all_of(engine, job) for job in jobs]
            cached = [job.cached for job in jobs]
        assert engine.counters.cached_tokens == sum(cached)
        wanted = [0, 0] + [192, 128] * 3 if stored else [0] * 8
        assert cached == wanted
    assert found[0] == found[32]


async def test_who_writes_behind_a_shared_page_does_not_change_it(file: Path) -> None:
    begin = text(150, 3)
    async with running(file) as engine:
        first = await all_of(engine, job_of(begin, 40))
        for seed in (4, 5):
            await all_of(engine, job_of(begin[:140] + text(60, seed), 40))
        again = job_of(begin, 40)
        assert await all_of(engine, again) == first
        assert again.cached == 128


async def test_the_next_turn_takes_the_answer_too(file: Path) -> None:
    prompt = text(100, 6)
    async with running(file) as engine:
        answer = await all_of(engine, job_of(prompt, 100))
        turn = [*prompt, *answer, *text(20, 7)]
        job = job_of(turn, 10)
        found = await all_of(engine, job)
    assert job.cached == 192  # whole pages of the 199 positions that were written
    async with running(file, stored=0) as engine:
        assert found == await all_of(engine, job_of(turn, 10))


async def test_requests_of_one_beginning_at_once_compute_it_once(file: Path) -> None:
    begin = text(300, 8)
    asked = [begin + text(5 + i, 20 + i)[1:] for i in range(6)]
    found: dict[tuple[int, int], list[int]] = {}
    computed = {}
    for stored in (0, 32):
        async with running(file, stored=stored, budget=64) as engine:
            watch(engine)

            async def one(engine: Engine, stored: int, i: int) -> None:
                found[stored, i] = await all_of(engine, job_of(asked[i], 9))

            async with anyio.create_task_group() as tasks:
                for i in range(len(asked)):
                    tasks.start_soon(one, engine, stored, i)
        computed[stored] = engine.counters.prompt_tokens
    assert all(found[0, i] == found[32, i] for i in range(len(asked)))
    whole = sum(map(len, asked))
    assert computed == {0: whole, 32: whole - 5 * 256}


@pytest.mark.parametrize("budget", [9, 12, 20])
async def test_pages_go_where_running_sequences_need_them(file: Path, budget: int) -> None:
    """Twelve beginnings of three pages each: more than there is room for at once."""
    random = np.random.default_rng(9)
    begins = [text(200, 30 + i) for i in range(12)]
    order = random.integers(0, 12, 40).tolist()
    asked = [begins[i] + text(10 + k, 100 + k)[1:] for k, i in enumerate(order)]
    found: dict[tuple[int, int], list[int]] = {}
    for stored in (0, 32):
        async with running(file, stored=stored, budget=budget) as engine:
            watch(engine)
            limit = anyio.CapacityLimiter(3)

            async def one(
                engine: Engine, limit: anyio.CapacityLimiter, stored: int, k: int
            ) -> None:
                async with limit:
                    found[stored, k] = await all_of(engine, job_of(asked[k], 7))

            async with anyio.create_task_group() as tasks:
                for k in range(len(asked)):
                    tasks.start_soon(one, engine, limit, stored, k)
            assert engine.pages.used == 0
    # With a budget of 12 three sequences of four pages leave no page for storing.
    assert (engine.counters.cached_tokens > 0) == (budget != 12)
    assert all(found[0, k] == found[32, k] for k in range(len(asked)))


async def test_a_prompt_that_is_cancelled_leaves_whole_pages(file: Path) -> None:
    begin = text(400, 11)
    async with running(file) as engine:
        runs = engine.stream(job_of(text(5, 12), 300))
        await anext(runs)  # beside this stream the prompt is computed 28 tokens a step
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(all_of, engine, job_of(begin, 20))
                while len(engine.prefixes) < 2:
                    await anext(runs)
                scope.cancel()
        await runs.aclose()
        job = job_of(begin, 20)
        found = await all_of(engine, job)
        assert 128 <= job.cached < 384
    async with running(file, stored=0) as engine:
        assert found == await all_of(engine, job_of(begin, 20))


async def test_cancelled_at_any_step_the_others_get_their_tokens(file: Path) -> None:
    begin = text(260, 13)
    async with running(file, stored=0) as engine:
        wanted = await all_of(engine, job_of(begin, 15))
    async with running(file, budget=16) as engine:
        watch(engine)
        for turns in range(0, 24, 3):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    for i in range(3):
                        tasks.start_soon(all_of, engine, job_of([*begin, 40 + turns, 50 + i], 30))
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
            assert await all_of(engine, job_of(begin, 15)) == wanted
        assert engine.pages.used == 0


async def test_a_device_with_its_own_memory_copies_by_a_graph(
    file: Path, sim_device: SimDevice
) -> None:
    begin = text(200, 14)
    async with running(file, device=sim_device) as engine:
        first = await all_of(engine, job_of(begin, 8))
        job = job_of(begin, 8)
        assert await all_of(engine, job) == first
        assert job.cached == 192


async def test_what_a_failed_copy_should_have_stored_is_not_there(
    file: Path, sim_device: SimDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = text(100, 15)
    copy = PagedDecoder.copy_rows

    async def fails(model: PagedDecoder, runs: Sequence[Run]) -> None:
        sim_device.fail_at(0, "compute")
        await copy(model, runs)

    async with running(file, device=sim_device) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(PagedDecoder, "copy_rows", fails)
            with pytest.raises(EngineError, match="injected fault"):
                await all_of(engine, job_of(begin, 4))
        assert (len(engine.prefixes), engine.pages.stored) == (0, 0)
        first, second = job_of(begin, 4), job_of(begin, 4)
        assert await all_of(engine, first) == await all_of(engine, second)
        assert (first.cached, second.cached) == (0, 64)


@pytest.mark.parametrize("layout", ["gemma3", "gpt-oss", "gemma2"])
async def test_layers_with_a_window_take_stored_pages_too(tmp_path: Path, layout: str) -> None:
    path = random_models.write(tmp_path / "model.gguf", layout)
    random = np.random.default_rng(16)
    begin = random.integers(3, VOCABULARY, 200).tolist()
    asked = [begin + random.integers(3, VOCABULARY, 5 + i).tolist() for i in range(3)]
    found = {}
    for stored in (0, 32):
        async with running(path, stored=stored, cache="f32") as engine:
            found[stored] = [await all_of(engine, job_of(prompt, 12)) for prompt in asked]
        assert engine.counters.cached_tokens == (384 if stored else 0)
    assert found[0] == found[32]


@pytest.mark.parametrize("layout", ["mamba2-groups", "rwkv7-two-heads", "qwen3next"])
async def test_models_with_states_store_nothing(tmp_path: Path, layout: str) -> None:
    path = random_models.write(tmp_path / "model.gguf", layout)
    prompt = np.random.default_rng(17).integers(3, VOCABULARY, 150).tolist()
    async with running(path, cache="f32") as engine:
        first = await all_of(engine, job_of(prompt, 5))
        job = job_of(prompt, 5)
        assert await all_of(engine, job) == first
        assert (job.cached, engine.prefixes.most, engine.pages.stored) == (0, 0, 0)


# -- which pages are stored, tested without a model


def stores(pages: Pages, most: int) -> Prefixes:
    return Prefixes(pages, most, ctx=CTX, first=10 * CTX, model="test")


def keep(prefixes: Prefixes, prompt: list[int]) -> tuple[Job, list[Run]]:
    job = job_of(prompt, 1)
    job.slot = 0
    prefixes.name(job)
    return job, [run for _, run in prefixes.keep(job, len(prompt))]


def begun(prefixes: Prefixes, prompt: list[int]) -> int:
    job = job_of(prompt, 1)
    job.slot = 1
    prefixes.name(job)
    prefixes.begin(job, 0)
    return job.cached


def test_a_page_stands_for_all_tokens_before_it_too() -> None:
    prefixes = stores(Pages(100, 4), 20)
    begin, other = text(PAGE, 1), text(PAGE, 2)
    _, runs = keep(prefixes, begin + other + [5])
    assert runs == [Run(0, 10 * CTX, PAGE), Run(PAGE, 10 * CTX + PAGE, PAGE)]
    assert begun(prefixes, begin + other) == PAGE  # at least the last token has to be computed
    assert begun(prefixes, begin + other + [9]) == 2 * PAGE
    assert begun(prefixes, other + other + [9]) == 0
    assert begun(prefixes, other + begin + [9]) == 0
    _, again = keep(prefixes, begin + begin)
    assert len(again) == 1  # the first page is stored already
    other_model = Prefixes(Pages(9, 1), 9, ctx=CTX, first=0, model="other")
    assert keep(other_model, begin)[0].keys != keep(prefixes, begin)[0].keys


def test_the_least_recently_used_page_goes_and_never_before_what_follows_it() -> None:
    pages = Pages(100, 4)
    prefixes = stores(pages, 4)
    one, two = text(2 * PAGE, 1), text(2 * PAGE, 2)
    keep(prefixes, one)
    keep(prefixes, two)
    assert pages.stored == 4
    assert begun(prefixes, [*one, 5]) == 2 * PAGE
    keep(prefixes, text(PAGE, 3))  # replaces the second prompt's last page
    assert begun(prefixes, [*two, 5]) == PAGE
    assert begun(prefixes, [*one, 5]) == 2 * PAGE
    long, runs = keep(prefixes, text(6 * PAGE, 4))
    assert len(runs) == 4  # as many as may be stored
    assert long.kept is None
    assert begun(prefixes, text(6 * PAGE, 4)) == 4 * PAGE


def test_stored_pages_make_room_for_sequences_only_where_that_helps() -> None:
    pages = Pages(6, 2)
    prefixes = stores(pages, 6)
    first = text(2 * PAGE, 1)
    for prompt in (first, text(2 * PAGE, 2), text(2 * PAGE, 3)):
        keep(prefixes, prompt)
    assert (pages.stored, pages.take(PAGE)) == (6, None)
    comes = job_of([*first, 7], PAGE - 1)  # it needs three pages
    prefixes.name(comes)
    prefixes.make_room(comes)
    assert pages.stored == 3
    assert pages.take(3 * PAGE) == 0
    assert begun(prefixes, [*first, 7]) == 2 * PAGE  # its own pages stay stored
    assert len(prefixes.surplus()) == 3
    assert prefixes.surplus() == []
    large = job_of([1], 4 * PAGE)
    prefixes.make_room(large)  # four pages do not fit beside the three in use, whatever is given up
    assert pages.stored == 3
    prefixes.make_room(job_of([1], PAGE + 5))
    assert pages.take(2 * PAGE) == 1
    prefixes.make_room(job_of([1], 5))  # no slot is free, so giving up pages would not help
    assert pages.stored == 1


def test_what_lies_behind_one_another_is_one_run() -> None:
    runs = [Run(0, 100, 10), Run(10, 110, 5), Run(20, 115, 5), Run(25, 130, 5)]
    assert joined(runs) == [Run(0, 100, 15), Run(20, 115, 5), Run(25, 130, 5)]


# -- over HTTP


async def test_usage_and_metrics_tell_of_cached_tokens(file: Path) -> None:
    asked = {"prompt": text(200, 18), "max_tokens": 4, **GREEDY}
    async with serving(models=[file]) as (app, client):
        answers = [
            (await client.post("/v1/completions", json=asked | more)).json()
            for more in ({}, {}, {"n": 2})
        ]
        told = [x["usage"]["prompt_tokens_details"]["cached_tokens"] for x in answers]
        assert told == [0, 192, 192]
        assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
        metrics = (await client.get("/metrics")).text
        name = next(iter(app.state.service.completers))
        assert f'aggml_cached_prompt_tokens{{model="{name}"}} {3 * 192.0}' in metrics
        assert f'aggml_pages_stored{{model="{name}"}} 3.0' in metrics
        assert engine_of(app).pages.used == 0


async def test_the_store_can_be_switched_off(file: Path) -> None:
    asked = {"prompt": text(200, 18), "max_tokens": 2, **GREEDY}
    async with serving(models=[file], prefix_cache=0) as (_, client):
        for _ in range(2):
            answer = await client.post("/v1/completions", json=asked)
            assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
