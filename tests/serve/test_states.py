"""aggml.serve runs models with recurrent states: each sequence gets the tokens it gets alone.

Here: joining, leaving, moving to other slots, steps that fail, memory. Not here: states themselves
(tests/models/test_states.py), continuous batching as such (test_engine.py).
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from aggml.models.engine.jobs import EngineError, Job, TooLongError
from models import random_models
from models.layout import VOCABULARY
from serve.support import GREEDY, serving

import aggml
from aggml.models import ModelError
from aggml.models.decoder.sampling import Sampler
from aggml.models.engine.engine import STAGED, Engine
from aggml.models.kv.paging import PAGE, PagedDecoder, budget_of
from aggml.models.loading import load_decoder
from aggml.models.small import tokens
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from aggml import Future
    from aggml.models.decoder import Batch

LAYOUTS = ["mamba2-groups", "rwkv7-two-heads", "qwen3next", "granitehybrid"]
CTX = 512
PATIENCE = 110


@asynccontextmanager
async def loaded(folder: Path, layout: str, slots: int) -> AsyncIterator[PagedDecoder]:
    path = random_models.write(folder / f"{layout}.gguf", layout)
    async with aggml.get_device("CPU").backend(n_threads=2) as backend:
        with await open_model(path) as file:
            yield await load_decoder(
                backend, file, kind=PagedDecoder, ctx=CTX, sequences=slots + STAGED, cache="f32"
            )


@asynccontextmanager
async def running(
    folder: Path, layout: str, *, slots: int = 4, budget: int = 64
) -> AsyncIterator[Engine]:
    async with (
        loaded(folder, layout, slots) as model,
        Engine(model, slots=slots, budget=budget, chunk=32) as engine,
    ):
        with anyio.fail_after(PATIENCE):
            yield engine


def greedy(prompt: Sequence[int], n: int) -> Job:
    return Job(prompt, n, Sampler(temperature=0))


def prompts(lengths: Sequence[int]) -> list[list[int]]:
    random = np.random.default_rng(11)
    return [random.integers(3, VOCABULARY, n).tolist() for n in lengths]


async def all_of(engine: Engine, job: Job) -> list[int]:
    async with aclosing(engine.stream(job)) as stream:
        return [token async for tokens in stream for token in tokens]


async def alone(
    folder: Path, layout: str, asked: Sequence[tuple[list[int], int]]
) -> list[list[int]]:
    path = random_models.write(folder / f"{layout}.gguf", layout)
    async with (
        aggml.get_device("CPU").backend(n_threads=2) as backend,
        await aggml.models.load(path, backend, ctx=CTX, cache="f32") as model,
    ):
        return [
            [x.id async for x in model.generate(ids, max_tokens=n, stop_ids=())] for ids, n in asked
        ]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_sequences_that_come_and_go_get_what_each_gets_alone(
    tmp_path: Path, layout: str
) -> None:
    given = prompts([1, 37, 5, 64, 20, 3, 150, 9])
    asked = [(ids, 4 + 7 * i % 19) for i, ids in enumerate(given)]
    found: list[list[int]] = [[] for _ in asked]

    async def one(engine: Engine, i: int) -> None:
        found[i] = await all_of(engine, greedy(*asked[i]))

    async with running(tmp_path, layout, slots=3) as engine, anyio.create_task_group() as tasks:
        for i in range(len(asked)):
            tasks.start_soon(one, engine, i)
            for _ in range(i % 5):
                await anyio.lowlevel.checkpoint()
    assert found == await alone(tmp_path, layout, asked)
    assert (engine.pages.used, engine.active, engine.queued) == (0, 0, 0)


@pytest.mark.parametrize("layout", ["mamba2-groups", "granitehybrid"])
async def test_who_leaves_changes_nobody_s_answer(tmp_path: Path, layout: str) -> None:
    """Freed slots are given to new sequences, and the sequence in the highest slot moves down."""
    asked = [(ids, 40) for ids in prompts([30, 12, 45, 7])]
    wanted = await alone(tmp_path, layout, asked)
    found: dict[int, list[int]] = {}

    async with running(tmp_path, layout) as engine:

        async def leaves(i: int, after: int) -> None:
            async with aclosing(engine.stream(greedy(*asked[i]))) as stream:
                got = 0
                async for tokens in stream:
                    got += len(tokens)
                    if got >= after:
                        return

        async def stays(i: int) -> None:
            found[i] = await all_of(engine, greedy(*asked[i]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leaves, 0, 2)
            tasks.start_soon(leaves, 1, 5)
            tasks.start_soon(leaves, 2, 1)
            tasks.start_soon(stays, 3)  # it begins in the highest slot
        async with anyio.create_task_group() as tasks:
            for i in range(3):
                tasks.start_soon(stays, i)
    assert [found[i] for i in range(4)] == wanted


async def test_a_step_that_fails_fails_its_sequences_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [(ids, 12) for ids in prompts([20, 9])]
    (wanted,) = await alone(tmp_path, "rwkv7-two-heads", asked[1:])
    async with running(tmp_path, "rwkv7-two-heads") as engine:
        compute, left = PagedDecoder.queue, [5]

        async def queue(
            model: PagedDecoder, batch: Batch, *rest: Any, **more: Any
        ) -> Future[list[Any]]:
            left[0] -= 1
            if left[0] == 0:
                raise aggml.DeviceError("this step fails")
            return await compute(model, batch, *rest, **more)

        monkeypatch.setattr(PagedDecoder, "queue", queue)
        with pytest.raises(EngineError, match="this step fails"):
            await all_of(engine, greedy(*asked[0]))
        assert await all_of(engine, greedy(*asked[1])) == wanted


async def test_a_step_that_is_aborted_leaves_no_state_behind(tmp_path: Path) -> None:
    """The state is lost with the step; the next sequence in that slot begins with a new one."""
    asked = [(ids, 12) for ids in prompts([20, 9])]
    (wanted,) = await alone(tmp_path, "mamba2-groups", asked[1:])
    async with running(tmp_path, "mamba2-groups", slots=1) as engine:
        stream = engine.model.site.host.stream
        with stream.hold():
            with anyio.move_on_after(0.05):
                await all_of(engine, greedy(*asked[0]))
        assert await all_of(engine, greedy(*asked[1])) == wanted


async def test_states_count_as_memory(tmp_path: Path) -> None:
    async with loaded(tmp_path, "mamba2-groups", 4) as model:
        state = model.page_bytes()
        assert budget_of(3 * state, model) == 3
        pages = model.pages(3, 4)
        assert [pages.take(400) for _ in range(4)] == [0, 1, 2, None]
        assert (pages.need(1), pages.need(CTX)) == (1, 1)
        with pytest.raises(ModelError, match=f"less than one page needs: {state} bytes"):
            budget_of(state - 1, model)
    async with loaded(tmp_path, "granitehybrid", 4) as model:
        fixed = model.pages(0, 1).need(1) - 1
        assert fixed > 0
        with pytest.raises(
            ModelError, match="less than the state of a sequence and one page needs"
        ):
            budget_of(fixed * model.page_bytes(), model)
        assert model.pages(0, 1).need(3 * PAGE) == fixed + 3
        async with Engine(model, slots=4, budget=fixed + 2) as engine:
            engine.check([greedy([1] * PAGE, PAGE)])
            with pytest.raises(
                TooLongError, match=f"need {fixed + 3} pages, the server has {fixed + 2}"
            ):
                engine.check([greedy([1] * PAGE, PAGE + 1)])


async def test_over_http(tmp_path: Path) -> None:
    names, kinds = tokens()
    names, kinds = [*names, *(f"w{i}" for i in range(VOCABULARY))], [*kinds, *[1] * VOCABULARY]
    vocabulary = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": names[:VOCABULARY],
        "tokenizer.ggml.scores": [0.0] * VOCABULARY,
        "tokenizer.ggml.token_type": kinds[:VOCABULARY],
    }
    path = random_models.write(tmp_path / "states.gguf", "mamba2", vocabulary)
    async with await aggml.models.load(path, ctx=512) as model:
        prompt = list(range(270, 290))
        wanted = [x.text async for x in model.generate(prompt, max_tokens=8, stop_ids=())]
    async with serving(models=[path]) as (_, client):
        given = {"prompt": [prompt, prompt], "max_tokens": 8, **GREEDY}
        answer = await client.post("/v1/completions", json=given)
    assert answer.status_code == 200, answer.text
    assert [x["text"] for x in answer.json()["choices"]] == ["".join(wanted)] * 2
