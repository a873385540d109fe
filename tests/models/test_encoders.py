"""Every encoder gives the vectors of llama.cpp, with whatever other texts a text is computed.

They were recorded (benchmarks/make_logits.py). Here, too: tasks that share batches, arguments of
`embed` and its kin. Not here: all-MiniLM-L6-v2 from its package (test_minilm.py), the batches
themselves (test_batches.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
import pytest
from models import random_folders, random_models

import aggml

if TYPE_CHECKING:
    from pathlib import Path

# llama.cpp computes gelu by tanh, from a table of f16; here it is exact.
MOST: Final = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.long(cases=4)
@pytest.mark.parametrize("name", random_models.ENCODERS)
async def test_vectors_are_those_of_llama_cpp(folder: Path, name: str) -> None:
    path = random_models.write(folder / f"{name}.gguf", name)
    async with await aggml.models.load(path) as model:
        texts, wanted = random_models.texts(), random_models.recorded(name)["vectors"]
        assert isinstance(model, aggml.models.EncoderModel)
        got = await model.embed_ids(texts, normalize=False)
        assert got.shape == wanted.shape == (len(texts), model.width)
        error = np.square(got - wanted).sum(axis=1) / np.square(wanted).sum(axis=1)
        assert error.max() < MOST
        alone = np.concatenate([await model.embed_ids([ids], normalize=False) for ids in texts])
        np.testing.assert_allclose(got, alone, atol=2e-5)


async def test_vectors_are_cut_and_of_length_one(folder: Path) -> None:
    path = random_models.write(folder / "bert.gguf", "bert")
    async with await aggml.models.load(path) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        whole = await model.embed_ids(random_models.texts(), normalize=False)
        unit = await model.embed_ids(random_models.texts())
        wanted = whole / np.linalg.norm(whole, axis=1, keepdims=True)
        np.testing.assert_allclose(unit, wanted, rtol=1e-5, atol=1e-6)
        short = await model.embed_ids(random_models.texts(), dimensions=16)
        wanted = whole[:, :16] / np.linalg.norm(whole[:, :16], axis=1, keepdims=True)
        np.testing.assert_allclose(short, wanted, rtol=1e-5, atol=1e-6)
        with pytest.raises(aggml.InvalidArgument, match="65, must be within 1 and 64"):
            await model.embed_ids([[5]], dimensions=65)
        with pytest.raises(
            aggml.InvalidArgument, match=r"^\[embed_ids\] sequences\[1\] has no tok"
        ):
            await model.embed_ids([[5], []])
        with pytest.raises(aggml.Unsupported, match="'bert' does not continue text"):
            await model.logits([1])


async def test_texts_of_more_than_a_batch(folder: Path) -> None:
    path = random_models.write(folder / "bert.gguf", "bert")
    random = np.random.default_rng(13)
    texts = [random.integers(3, 300, n).tolist() for n in random.integers(1, 200, 90)]
    async with await aggml.models.load(path) as model:
        got = await model.embed_ids(texts)
        some = await model.embed_ids(texts[40:45])
    np.testing.assert_allclose(got[40:45], some, atol=2e-5)


async def opened(folder: Path, name: str = "bert") -> aggml.models.EncoderModel:
    model = await aggml.models.load(random_models.write(folder / f"{name}.gguf", name))
    assert isinstance(model, aggml.models.EncoderModel)
    return model


@pytest.mark.long(cases=4)
@pytest.mark.parametrize("name", random_models.ENCODERS)
async def test_long_and_short_texts_together_give_what_each_gives_alone(
    folder: Path, name: str
) -> None:
    random = np.random.default_rng(3)
    async with await opened(folder, name) as model:
        longest = min(model.ctx, 200)
        lengths = [1, longest, 2, *random.integers(1, 20, 40), longest - 1, 64, 65]
        texts = [random.integers(3, 300, n).tolist() for n in lengths]
        got = await model.embed_ids(texts, normalize=False)
        for i in (0, 1, 2, 20, 43, 44):
            (alone,) = await model.embed_ids([texts[i]], normalize=False)
            np.testing.assert_allclose(got[i], alone, atol=3e-5, rtol=1e-4)


async def test_tasks_with_one_text_each_are_one_batch(folder: Path) -> None:
    texts = random_models.texts()
    async with await opened(folder) as model:
        wanted = await model.embed_ids(texts)
        batches: list[int] = []
        compute = model._encoder.compute

        async def counted(items: Any, kind: Any) -> Any:
            batches.append(len(items))
            return await compute(items, kind)

        model._encoder.compute = counted  # type: ignore[method-assign,assignment]
        found: list[Any] = [None] * len(texts)

        async def one(i: int) -> None:
            found[i] = await model.embed_ids([texts[i]])

        async with anyio.create_task_group() as tasks:
            for i in range(len(texts)):
                tasks.start_soon(one, i)
        assert batches == [len(texts)]
        np.testing.assert_allclose(np.concatenate(found), wanted, atol=2e-5)
        assert all(x.base is None for x in found)  # a view would keep the vectors of all tasks


async def test_vectors_ranks_and_tokens_share_a_batch(folder: Path) -> None:
    async with await opened(folder, "bert-rank") as model:
        ids = random_models.texts()[:4]
        alone = await model.embed_ids(ids), await model.rerank_ids(ids)
        found: dict[str, Any] = {}

        async def put(name: str, what: Any) -> None:
            found[name] = await what

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put, "vectors", model.embed_ids(ids))
            tasks.start_soon(put, "ranks", model.rerank_ids(ids))
        np.testing.assert_allclose(found["vectors"], alone[0], atol=2e-5)
        np.testing.assert_allclose(found["ranks"], alone[1], atol=2e-5)


def vocabulary() -> Any:
    return random_models.words("▁a", "▁b", "▁query", "▁passage")


async def test_the_mean_of_all_tokens_is_the_vector_of_the_text(folder: Path) -> None:
    path = random_models.write(folder / "words.gguf", "bert", vocabulary())
    async with await aggml.models.load(path) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        texts = ["a b a", "b", "a a a a a a b"]
        every = await model.embed_multi(texts)
        assert [x.shape[1] for x in every] == [model.width] * 3
        assert [len(x) for x in every] == [len(model.tokenizer.encode(x)) for x in texts]
        mean = np.stack([x.mean(axis=0) for x in every])
        np.testing.assert_allclose(await model.embed(texts, normalize=False), mean, atol=2e-5)
        unit = await model.embed_multi(texts, normalize=True)
        np.testing.assert_allclose(np.linalg.norm(unit[2], axis=1), 1, atol=1e-5)


async def test_dense_layers_with_biases_follow_the_mean(folder: Path) -> None:
    name = "gemma-embedding-dense"
    bare, path = random_models.write(folder / f"{name}.gguf", name), folder / "biased.gguf"
    first, second = (random_models.weights(name)[f"dense_{i}.weight"] for i in (2, 3))
    random = np.random.default_rng(4)
    biases = [random.normal(size=len(x)).astype(np.float32) for x in (first, second)]
    with aggml.GGUFFile.open(bare) as file, aggml.GGUFWriter(path) as writer:
        for key, value in file.metadata.items():
            writer.add(key, value, file.types[key])
        for tensor, x in file.tensors.items():
            writer.add_tensor(tensor, file.data(tensor), x.dtype, ne=x.ne[: x.ndim])
        for i, bias in zip((2, 3), biases, strict=True):
            writer.add_tensor(f"dense_{i}.bias", bias)
    async with await aggml.models.load(path) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        texts = random_models.texts()
        found = await model.embed_ids(texts, normalize=False)
        alone = np.concatenate([await model.embed_ids([x], normalize=False) for x in texts])
        ids = [np.array(x, np.int32) for x in texts]
        every = await model._encoder.compute(ids, "tokens")
    means = np.stack([x.mean(axis=0) for x in every])
    wanted = (means @ first.T + biases[0]) @ second.T + biases[1]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=3e-5)
    np.testing.assert_allclose(alone, wanted, rtol=1e-4, atol=3e-5)


async def test_a_file_without_pooling_gives_the_vectors_of_all_tokens(folder: Path) -> None:
    whole, path = folder / "whole.gguf", folder / "none.gguf"
    random_models.write(whole, "bert", vocabulary())
    with aggml.GGUFFile.open(whole) as file, aggml.GGUFWriter(path) as writer:
        for key, value in file.metadata.items():
            writer.add(key, 0 if key.endswith("pooling_type") else value, file.types[key])
        for name, x in file.tensors.items():
            writer.add_tensor(name, file.data(name), x.dtype, ne=x.ne[: x.ndim])
    async with await aggml.models.load(path) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        found: Any = await model.embed(["a b", "b"])
        for got, wanted in zip(found, await model.embed_multi(["a b", "b"]), strict=True):
            np.testing.assert_array_equal(got, wanted)


async def test_prompts_that_a_folder_names_come_before_texts(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "words.gguf", "bert", vocabulary())
    async with await aggml.models.load(path) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        assert model.prompts == {}
        with pytest.raises(aggml.InvalidArgument, match=r"prompt is 'query', but .* names none"):
            await model.embed(["a"], prompt="query")
        model.prompts = {"query": "query ", "document": "passage "}
        plain = await model.embed(["a", "query a", "passage a"])
        np.testing.assert_allclose(await model.embed(["a"], prompt="query"), plain[1:2], atol=2e-5)
        model.prompt = "document"
        np.testing.assert_allclose(await model.embed(["a"]), plain[2:], atol=2e-5)
        np.testing.assert_allclose(await model.embed(["a"], prompt="query"), plain[1:2], atol=2e-5)


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({}, ({}, None)),
        ({"prompts": {"query": "q: "}}, ({"query": "q: "}, None)),
        ({"prompts": {"q": "q: "}, "default_prompt_name": "q"}, ({"q": "q: "}, "q")),
        ({"prompts": None, "default_prompt_name": None}, ({}, None)),
        ({"prompts": ["q"]}, "expected were texts by their names"),
        ({"prompts": {"q": 1}}, "expected were texts by their names"),
        ({"prompts": {"q": ""}, "default_prompt_name": "x"}, "default_prompt_name = 'x'"),
    ],
)
async def test_prompts_of_a_folder_are_read(
    tmp_path: Path, told: dict[str, Any], wanted: Any
) -> None:
    case = random_folders.write(tmp_path / "bert", "bert")
    (case / "config_sentence_transformers.json").write_text(json.dumps(told), encoding="utf-8")
    if isinstance(wanted, str):
        with pytest.raises(aggml.models.ModelError, match=wanted):
            await aggml.models.load(case)
        return
    async with await aggml.models.load(case) as model:
        assert isinstance(model, aggml.models.EncoderModel)
        assert (model.prompts, model.prompt) == wanted


@pytest.mark.parametrize("call", ["embed", "embed_ids", "embed_multi", "rerank", "rerank_ids"])
async def test_priorities_and_deadlines_are_checked_by_name(folder: Path, call: str) -> None:
    given: dict[str, tuple[Any, ...]] = {
        "embed": (["a"],), "embed_ids": ([[1]],), "embed_multi": (["a"],),
        "rerank": ("a", ["b"]), "rerank_ids": ([[1]],),
    }  # fmt: skip
    path = random_models.write(folder / "rank.gguf", "bert-rank", vocabulary())
    async with await aggml.models.load(path) as model:
        method = getattr(model, call)
        assert len(await method(*given[call], priority=-3, deadline=1e6)) == 1
        wrong: Any
        for wrong in ("high", 1.5, True, None):
            with pytest.raises(aggml.InvalidArgument, match=rf"\[{call}\] priority is"):
                await method(*given[call], priority=wrong)
        for wrong in ("soon", float("nan"), -1, True):
            with pytest.raises(aggml.InvalidArgument, match=rf"\[{call}\] deadline is"):
                await method(*given[call], deadline=wrong)
        with pytest.raises(
            aggml.models.DeadlineError, match=rf"^\[{call}\] the deadline .* cannot be met"
        ):
            await method(*given[call], deadline=0)


async def test_another_type_of_weights_is_for_encoders_alone(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "llama.gguf", "llama")
    with pytest.raises(aggml.InvalidArgument, match="dtype is 'bf16', but llama is no encoder"):
        await aggml.models.load(path, dtype="bf16")
    for wrong in ("q4_K", "f64", 8):
        with pytest.raises(aggml.InvalidArgument, match=r"\[load\] dtype is .* 'q8_0 throughout'"):
            aggml.models.load(path, dtype=wrong)  # type: ignore[arg-type]


@pytest.mark.long(cases=14)
@pytest.mark.parametrize("name", random_models.ENCODERS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0", "q8_0 throughout", "q8_0 row scales"])
async def test_other_types_of_weights_give_similar_vectors(
    folder: Path, name: str, dtype: str
) -> None:
    path = random_models.write(folder / f"{name}.gguf", name)
    async with (
        await aggml.models.load(path) as exact,
        await aggml.models.load(path, dtype=dtype) as model,
    ):
        wanted = await exact.embed_ids(random_models.texts())
        found = await model.embed_ids(random_models.texts())
        assert isinstance(model, aggml.models.EncoderModel)
        kinds = {x.dtype.type_name for x in model._encoder.weights.values()}
    assert dtype.split()[0] in kinds
    assert (found * wanted).sum(axis=1).min() > 0.98


async def test_the_streams_of_a_model_are_closed_with_it(folder: Path) -> None:
    path = random_models.write(folder / "bert.gguf", "bert")
    async with aggml.get_device("CPU").backend(n_threads=3) as backend:
        async with await aggml.models.load(path, backend) as model:
            assert isinstance(model, aggml.models.EncoderModel)
            further = [worker.site.host for worker in model._encoder._workers]
            assert further[0] is backend
            assert len({x.pool for x in further}) == 1  # type: ignore[attr-defined]
            await model.embed_ids([[1] * 60] * 30)
        assert [x.closed for x in further] == [False, True, True]
        async with await aggml.models.load(path, backend) as model:
            await model.embed_ids([[1]])
