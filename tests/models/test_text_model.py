"""aggml.models.load and `TextModel`: slots, cancellation, misuse, a program's own architecture.

Not here: whether the numbers are right (test_architectures.py).
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from models import random_models

import aggml
from aggml.models import (
    Architecture,
    Description,
    Hyperparameters,
    ModelError,
    TextModel,
    known_architectures,
    register_architecture,
)  # fmt: skip
from examples import llama_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_files.write(tmp_path_factory.mktemp("models") / "llama.gguf")


async def test_more_generations_than_slots_wait_for_each_other(path: Path) -> None:
    prompts = [[1, 40, 270], [1, 281, 265, 277], [1, 290], [1, *range(60, 80)]]
    async with await aggml.models.load(path, ctx=256) as model:
        alone = [[t.id async for t in model.generate(ids, max_tokens=8)] for ids in prompts]
    together: dict[int, list[int]] = {}
    async with (
        await aggml.models.load(path, ctx=256, slots=2) as model,
        anyio.create_task_group() as tasks,
    ):

        async def run(i: int) -> None:
            together[i] = [t.id async for t in model.generate(prompts[i], max_tokens=8)]

        for i in range(len(prompts)):
            tasks.start_soon(run, i)
    assert [together[i] for i in range(len(prompts))] == alone


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("n", [1, 4, 8])
async def test_tasks_that_generate_at_a_time_share_steps(path: Path, n: int) -> None:
    """As many steps as one task has, but for the prompts, which come in chunks."""
    prompts = [[1, 40 + i, 270, *range(60, 62 + i)] for i in range(n)]
    async with await aggml.models.load(path, ctx=256, slots=8) as model:
        alone = [[t.id async for t in model.generate(x, max_tokens=40)] for x in prompts]
        assert isinstance(model, TextModel)
        together: dict[int, list[int]] = {}

        async def run(i: int) -> None:
            together[i] = [t.id async for t in model.generate(prompts[i], max_tokens=40)]

        steps = model.engine.counters.steps
        async with anyio.create_task_group() as tasks:
            for i in range(n):
                tasks.start_soon(run, i)
        assert model.engine.counters.steps - steps <= 40 + n
    assert [together[i] for i in range(n)] == alone


async def test_a_generation_that_is_left_frees_its_slot(path: Path) -> None:
    async with await aggml.models.load(path, ctx=256) as model:
        wanted = [t.id async for t in model.generate("hello", max_tokens=6)]
        tokens = model.generate("hello", max_tokens=100)
        assert (await anext(tokens)).id == wanted[0]
        await tokens.aclose()
        with anyio.CancelScope() as scope:
            async for _ in model.generate("hello", max_tokens=200):
                scope.cancel()
        assert [t.id async for t in model.generate("hello", max_tokens=6)] == wanted


async def test_a_task_may_hold_all_slots_and_ask_for_more(path: Path) -> None:
    async with await aggml.models.load(path, ctx=256, slots=2) as model:
        wanted = await model.logits([5, 6])
        rest = [t.id async for t in model.generate([6], max_tokens=3)]
        one, two = model.generate([5], max_tokens=3), model.generate([6], max_tokens=3)
        async with aclosing(one), aclosing(two):
            await anext(one)
            assert np.array_equal(await model.logits([5, 6]), wanted)
            await anext(two)
            # Nobody reads the other answers, so their rest is computed first.
            assert np.array_equal(await model.logits([5, 6]), wanted)
            assert [t.id async for t in two] == rest[1:]
        assert np.array_equal(await model.logits([5, 6]), wanted)


async def test_a_generation_belongs_to_the_task_that_takes_its_tokens(path: Path) -> None:
    async with await aggml.models.load(path, ctx=256, slots=1) as model:
        steps, rest = model.generate([5], max_tokens=8), []
        await anext(steps)
        took = anyio.Event()

        async def take() -> None:
            async with aclosing(steps):
                async for token in steps:
                    rest.append(token)
                    took.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await took.wait()
            assert (await model.logits([5, 6])).shape[0] == 2
        assert len(rest) == 7


async def test_text_is_that_of_the_ids(path: Path) -> None:
    async with await aggml.models.load(path, ctx=256) as model:
        made = [t async for t in model.generate("hello world", max_tokens=20)]
        text = "".join(token.text for token in made)
        assert text == "".join(model.tokenizer.stream(token.id for token in made))
        assert model.tokenizer.decode(model.tokenizer.encode("hello world")) == "hello world"
        assert model.architecture == "llama"


async def test_drawn_tokens_are_the_same_with_the_same_seed(path: Path) -> None:
    async with await aggml.models.load(path, ctx=256) as model:
        runs = [
            [t.id async for t in model.generate("he", max_tokens=8, temperature=1.0, seed=seed)]
            for seed in (5, 5, 6)
        ]
    assert runs[0] == runs[1] != runs[2]


async def test_vectors_do_not_depend_on_who_else_is_embedded(path: Path) -> None:
    async with await aggml.models.load(path, ctx=256) as model:
        one, two = await model.embed(["hello"]), await model.embed(["world", "hello"])
        assert one.shape == (1, llama_files.WIDTH)
        np.testing.assert_allclose(np.linalg.norm(two, axis=1), 1.0, rtol=1e-5)
        np.testing.assert_allclose(one[0], two[1], rtol=1e-5, atol=1e-6)


async def test_a_prompt_that_fills_the_context_gives_one_token(path: Path) -> None:
    async with await aggml.models.load(path, ctx=256) as model:
        ids = [1, *np.random.default_rng(2).integers(259, 290, model.ctx - 1).tolist()]
        assert len([t async for t in model.generate(ids, max_tokens=9, stop_ids=())]) == 1
        with pytest.raises(ModelError, match="do not fit"):
            await anext(model.generate([*ids, 1]))


async def test_misuse_names_what_is_wrong(path: Path, tmp_path: Path) -> None:
    async with await aggml.models.load(path, ctx=256) as model:
        with pytest.raises(aggml.InvalidArgument, match="at least one token"):
            await model.logits([])
        with pytest.raises(aggml.InvalidArgument, match="given were 1 to 99999"):
            await model.logits([1, 99999])
        with pytest.raises(aggml.InvalidArgument, match="max_tokens is -1"):
            await anext(model.generate("he", max_tokens=-1))
    with pytest.raises(aggml.InvalidState, match="closed"):
        await model.logits([1])
    with pytest.raises(aggml.InvalidArgument, match="cache is 'q4_k'"):
        await aggml.models.load(path, cache="q4_K")
    with pytest.raises(aggml.InvalidArgument, match="slots is 0"):
        await aggml.models.load(path, slots=0)
    with pytest.raises(ModelError, match="cannot open"):
        await aggml.models.load(tmp_path / "none.gguf")
    with aggml.GGUFWriter(tmp_path / "other.gguf") as writer:
        writer.add("general.architecture", "nonesuch")
    with pytest.raises(ModelError, match="'nonesuch', not one of "):
        await aggml.models.load(tmp_path / "other.gguf")


async def test_a_file_without_a_tensor_is_refused(tmp_path: Path) -> None:
    made = llama_files.weights("llama")
    del made["blk.1.ffn_up.weight"]
    path = llama_files.write(tmp_path / "short.gguf", tensors=made)
    with pytest.raises(ModelError, match=r"no tensor 'blk.1.ffn_up.weight'"):
        await aggml.models.load(path)


async def test_a_model_without_vocabulary_takes_ids(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "llama.gguf", "llama")
    async with await aggml.models.load(path, ctx=256) as model:
        assert [t.text async for t in model.generate([1, 2], max_tokens=3)] == ["", "", ""]
        with pytest.raises(ModelError, match="has no vocabulary"):
            await model.embed(["text"])


async def test_a_program_adds_an_architecture_of_its_own(tmp_path: Path) -> None:
    """The whole architecture is one changed value: a llama whose logits are half as large."""
    of_llama = known_architectures()["llama"]

    def describe(hp: Hyperparameters) -> Description:
        found = of_llama.describe(hp)
        assert isinstance(found, Description)
        return replace(found, logit_scale=0.5)

    register_architecture(Architecture(("half",), describe))
    paths = [llama_files.write(tmp_path / f"{name}.gguf", name) for name in ("llama", "half")]
    ids, found = [1, 40, 270], []
    for path in paths:
        async with await aggml.models.load(path, ctx=256) as model:
            found.append(await model.logits(ids))
    # Other files of llama_files have no output matrix of their own; this one has the tensors of
    # "half", so that both models differ only in the scale.
    made = llama_files.weights("half")
    half = llama_files.write(tmp_path / "tied.gguf", "llama", tensors=dict(made))
    async with await aggml.models.load(half, ctx=256) as model:
        whole = await model.logits(ids)
    np.testing.assert_allclose(found[1], whole / 2, rtol=1e-5, atol=1e-6)
    with pytest.raises(aggml.InvalidArgument, match="expected an Architecture"):
        register_architecture("llama")  # type: ignore[arg-type]


async def test_progress_tells_what_of_a_prompt_is_computed(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "model.gguf", "llama")
    ids = (random_models.prompt() * 40)[:1500]
    async with aggml.models.load(path, ctx=2048, slots=2) as model:
        wanted = [x.id async for x in model.generate(ids, max_tokens=5, stop_ids=())]
    async with aggml.models.load(path, ctx=2048, slots=2) as model:
        told: list[tuple[int, int]] = []
        stream = model.generate(ids, max_tokens=5, stop_ids=(), progress=lambda *x: told.append(x))
        first = await anext(stream)
        before = list(told)
        assert [first.id, *[x.id async for x in stream]] == wanted
        assert told == before  # all of it was told before the first token
        done = [x for x, _ in told]
        assert {total for _, total in told} == {1500}
        assert (done[0], done[-1]) == (0, 1500)
        assert done == sorted(set(done))
        assert len(done) > 3  # it took several steps
        told.clear()
        again = model.generate(ids, max_tokens=1, stop_ids=(), progress=lambda *x: told.append(x))
        assert [x.id async for x in again] == wanted[:1]
        assert told[0] == (again.cached_tokens, 1500)
        assert again.cached_tokens > 1000

        def fail(_done: int, _total: int) -> None:
            raise KeyError("mine")

        bad = model.generate(ids[::-1], max_tokens=5, stop_ids=(), progress=fail)
        with pytest.raises(aggml.models.EngineError, match="mine") as caught:
            await anext(bad)
        assert isinstance(caught.value.__cause__, KeyError)
        good = model.generate(ids, max_tokens=5, stop_ids=())
        assert [x.id async for x in good] == wanted  # the engine goes on
        with pytest.raises(aggml.InvalidArgument, match="expected a function"):
            model.generate(ids, progress=cast("Any", 5))
