"""aggml.models.load: how it can be awaited, `~` in paths, a context that is rounded up, turns."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
from models import random_models

import aggml
from aggml.devices.sim import SimDevice
from aggml.models import Model, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.write(tmp_path_factory.mktemp("models") / "llama.gguf", "llama")


async def test_it_is_awaited_or_a_context_or_both(path: Path) -> None:
    async with aggml.models.load(path) as model:
        assert await model.embed_ids([[1]]) is not None
    with pytest.raises(aggml.InvalidState, match="closed"):
        await model.embed_ids([[1]])
    async with await aggml.models.load(path) as model:
        assert await model.embed_ids([[1]]) is not None
    model = await aggml.models.load(path)
    await model.aclose()


@pytest.mark.parametrize(
    "run",
    [
        lambda path: asyncio.run(aggml.models.load(path)),
        lambda path: trio.run(aggml.models.load, path),
        lambda path: anyio.run(aggml.models.load, path),
        lambda path: anyio.run(aggml.models.load, path, backend="trio"),
    ],
)
def test_a_loop_can_be_run_for_it(path: Path, run: Callable[[Path], Model]) -> None:
    model = run(path)
    assert isinstance(model, Model)
    anyio.run(model.aclose)


@pytest.mark.parametrize("device", ["CPU", "sim"])
async def test_progress_ends_with_all_bytes(path: Path, device: str) -> None:
    told: list[tuple[int, int]] = []
    found = aggml.get_device("CPU") if device == "CPU" else SimDevice("sim-progress")
    async with found.backend() as backend:
        model = aggml.models.load(path, backend, progress=lambda *x: told.append(x))
        async with model:
            pass
    with aggml.GGUFFile.open(path) as file:
        total = sum(x.nbytes for x in file.tensors.values())
    assert told
    assert told[-1] == (total, total)  # also where the file is mapped and nothing is copied
    assert told == sorted(told)


async def test_an_error_of_progress_ends_the_loading(path: Path) -> None:
    def fail(*_: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await aggml.models.load(path, progress=fail)


def test_it_can_be_a_task_of_asyncio(path: Path) -> None:
    async def main() -> None:
        one, two = await asyncio.gather(
            asyncio.create_task(aggml.models.load(path)), aggml.models.load(path)
        )
        await one.aclose()
        await two.aclose()
        task = asyncio.create_task(aggml.models.load(path))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


async def test_a_forgotten_await_is_named(path: Path) -> None:
    loading: Any = aggml.models.load(path)
    with pytest.raises(AttributeError, match=r"model = await aggml\.models\.load"):
        loading.generate("hello")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        loading.nonsense  # noqa: B018 it raises
    loading.close()


async def test_an_exception_in_the_block_closes_the_model(path: Path) -> None:
    with pytest.raises(KeyError):
        async with aggml.models.load(path) as model:
            raise KeyError
    with pytest.raises(aggml.InvalidState, match="closed"):
        model.generate([1])  # pyright: ignore[reportPossiblyUnboundVariable] - the block is entered


async def test_what_cannot_be_loaded_raises_when_it_is_awaited(tmp_path: Path) -> None:
    loading = aggml.models.load(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="cannot open"):
        async with loading:
            pass


async def test_a_context_that_is_rounded_up_says_so(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "aggml"):
        async with aggml.models.load(path, ctx=100) as model:
            assert model.ctx == 256
            assert "ctx 256 (100 rounded up)" in repr(model)
        assert "ctx=100 was rounded up to 256" in caplog.text
        caplog.clear()
        async with aggml.models.load(path, ctx=256) as model:
            assert "rounded" not in repr(model)
        async with aggml.models.load(path) as model:
            assert "rounded" not in repr(model)
        assert not caplog.records


async def test_the_home_directory_in_a_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(path.parent))
    async with aggml.models.load(f"~/{path.name}") as model:
        assert model.architecture == "llama"


async def test_a_prompt_that_begins_as_an_earlier_one_computes_its_new_tokens_only(
    path: Path,
) -> None:
    prompts = [random_models.prompt(n) for n in (20, 40, 40, 30)]
    prompts += [[*prompts[0], 9, 9], [7, *prompts[1]]]
    wanted = []
    for prompt in prompts:
        async with aggml.models.load(path, ctx=512, slots=2) as model:
            wanted.append([t.id async for t in model.generate(prompt, max_tokens=5)])
    async with aggml.models.load(path, ctx=512, slots=2) as model:
        found, computed = [], []
        for prompt in prompts:
            stream = model.generate(prompt, max_tokens=5)
            found.append([t.id async for t in stream])
            computed.append(len(prompt) - stream.cached_tokens)
        assert found == wanted
        # a new prompt; its continuation; the same; a shorter one; another end; another beginning
        assert computed == [20, 20, 1, 1, 2, 41]
        stream = model.generate(prompts[5], max_tokens=5)
        await anext(stream)
        await stream.aclose()
        stream = model.generate(prompts[5], max_tokens=5)
        assert [t.id async for t in stream] == wanted[5]
        assert stream.cached_tokens == 40


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("name", ["gemma2", "mamba2", "llama"])
async def test_a_conversation_is_continued_rightly_by_every_kind_of_cache(
    tmp_path: Path, name: str
) -> None:
    path = random_models.write(tmp_path / f"{name}.gguf", name)
    rng = random.Random(5)
    async with (
        aggml.models.load(path, ctx=512) as model,
        aggml.models.load(path, ctx=512, slots=1, prefix_cache=0) as other,
    ):
        prompt: list[int] = random_models.prompt(30)
        before = 0  # tokens of the prompt before
        for turn in range(8):
            # The only slot of the other model, which stores nothing, holds another beginning now.
            assert [t async for t in other.generate([3, 1 + turn], max_tokens=1)]
            wanted = [t.id async for t in other.generate(prompt, max_tokens=12)]
            got = model.generate(prompt, max_tokens=12)
            assert [t.id async for t in got] == wanted
            assert before <= got.cached_tokens < len(prompt)
            again = model.generate(prompt, max_tokens=12)
            assert [t.id async for t in again] == wanted
            # A state is stored at the end of a prompt, one token too late for the same prompt.
            least = len(prompt) - 1 if name != "mamba2" else before
            assert least <= again.cached_tokens < len(prompt)
            before = len(prompt)
            prompt += wanted[: rng.randrange(12)] + [rng.randrange(1, 200) for _ in range(5)]
