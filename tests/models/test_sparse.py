"""Weights of words: of heads that predict masked words (SPLADE), and of single tokens (bge-m3).

The heads are computed again here with numpy, from the vectors of all tokens. Not here: trained
weights against transformers (test_trained.py), those vectors (test_encoders.py), heads in files
of their own (test_checkpoint_files.py).
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from models import random_folders, random_models
from models.masked_words import EMBEDDINGS, HEADS, PREFIX, ROWS, head_of
from models.test_rank_heads import vocabulary

import aggml
from aggml.models import EncoderModel, ModelError
from aggml.models.encoder.sparse import weights_of_terms, weights_of_tokens

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]


def weights_by_hand(case: str, tensors: dict[str, F32], hidden: F32, *, eps: float) -> F32:
    """log(1 + relu(x)) of the head's numbers, (tokens, vocabulary)."""
    _, dense, norm, bias, matrix = HEADS[case]
    embeddings = EMBEDDINGS.get(case, "embeddings.word_embeddings.weight")
    words = tensors.get(matrix)
    if words is None:
        words = tensors[PREFIX.get(case, f"{case}.") + embeddings]
    x = hidden @ tensors[f"{dense}.weight"].T + tensors.get(f"{dense}.bias", np.float32(0))
    x = x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + eps)
    x = x * tensors[f"{norm}.weight"] + tensors.get(f"{norm}.bias", np.float32(0))
    found: F32 = np.log1p(np.maximum(x @ words.T + tensors[bias], 0)).astype(np.float32)
    return found


def dense_of(terms: dict[int, float], rows: int = ROWS) -> F32:
    found = np.zeros(rows, np.float32)
    found[[*terms]] = [*terms.values()]
    return found


def texts() -> list[list[int]]:
    random = np.random.default_rng(31)
    return [random.integers(3, 300, n).tolist() for n in (1, 7, 7, 60, 2, 33)]


async def hidden_of(model: EncoderModel, ids: list[list[int]]) -> list[F32]:
    return await model._results("test", ids, "tokens")


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own"])
@pytest.mark.parametrize("case", HEADS)
async def test_weights_are_the_largest_of_all_tokens(tmp_path: Path, case: str, tied: bool) -> None:
    config, tensors = head_of(case, tied=tied)
    folder = random_folders.save(tmp_path / case, config, tensors)
    made = tmp_path / "made.gguf"
    await aggml.models.convert(folder, made, "f32")
    for path in (folder, made):
        async with await aggml.models.load(path) as model:
            assert isinstance(model, EncoderModel)
            assert model.has_terms
            assert ("mlm.output.weight" in model._encoder.weights) == (not tied)
            got = await model.embed_sparse_ids(texts())
            eps = model._encoder.model.eps
            for one, hidden in zip(got, await hidden_of(model, texts()), strict=True):
                wanted = weights_by_hand(case, tensors, hidden, eps=eps).max(axis=0)
                np.testing.assert_allclose(dense_of(one), wanted, atol=3e-5)
                assert [*one] == sorted(one)
                assert min(one.values()) > 0
            for ids, together in zip(texts(), got, strict=True):
                (alone,) = await model.embed_sparse_ids([ids])
                np.testing.assert_allclose(dense_of(alone), dense_of(together), atol=3e-5)


def say(folder: Path, config: dict[str, Any]) -> None:
    """Write modules.json and the settings of SpladePooling."""
    at = "sentence_transformers.sparse_encoder.models"
    modules = [
        {"idx": 0, "path": "", "type": f"{at}.MLMTransformer"},
        {"idx": 1, "path": "1_SpladePooling", "type": f"{at}.SpladePooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_SpladePooling").mkdir()
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("logs", [1, 2])
@pytest.mark.parametrize("strategy", ["max", "sum"])
async def test_a_folder_says_how_words_are_pooled(tmp_path: Path, strategy: str, logs: int) -> None:
    config, tensors = head_of("bert", tied=True)
    folder = random_folders.save(tmp_path / "splade", config, tensors)
    activation = "relu" if logs == 1 else "log1p_relu"
    say(folder, {"pooling_strategy": strategy, "activation_function": activation})
    made = tmp_path / "made.gguf"
    await aggml.models.convert(folder, made, "f32")
    async with await aggml.models.load(made) as model:
        assert isinstance(model, EncoderModel)
        got = await model.embed_sparse_ids(texts())
        hidden = await hidden_of(model, texts())
        eps = model._encoder.model.eps
        # the folder makes no vectors of whole texts
        assert [len(x) for x in await model.embed_ids(texts())] == [*map(len, texts())]
    for one, vectors in zip(got, hidden, strict=True):
        each = weights_by_hand("bert", tensors, vectors, eps=eps)
        each = np.log1p(each) if logs == 2 else each
        wanted = each.max(axis=0) if strategy == "max" else each.sum(axis=0)
        np.testing.assert_allclose(dense_of(one), wanted, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"pooling_strategy": "mean"}, "pooling_strategy = 'mean', expected was max or sum"),
        ({"activation_function": 3}, "activation_function = 3"),
    ],
)
async def test_another_way_of_pooling_words_is_refused(
    tmp_path: Path, told: dict[str, Any], why: str
) -> None:
    config, tensors = head_of("bert", tied=True)
    folder = random_folders.save(tmp_path / "splade", config, tensors)
    say(folder, told)
    with pytest.raises(ModelError, match=why):
        await aggml.models.load(folder)


async def test_a_folder_that_lacks_the_head_it_asks_for_is_refused(tmp_path: Path) -> None:
    folder = random_folders.write(tmp_path / "bert", "bert")
    say(folder, {})
    with pytest.raises(ModelError, match="no head that predicts masked words"):
        await aggml.models.load(folder)


def test_marks_have_no_weight_and_the_largest_number_of_a_word_counts() -> None:
    numbers = np.array([3.0, 1.0, 2.0, 0.0, 5.0], np.float32)
    assert weights_of_tokens([0, 9, 9, 4, 2], numbers, {0, 2}) == {9: 2.0}
    assert weights_of_terms(np.array([0.0, -1.0, 3.0], np.float32), 1) == {
        2: pytest.approx(math.log(4.0))
    }
    damaged = weights_of_terms(np.array([np.nan, 0.0], np.float32), 0)
    assert math.isnan(damaged[0])


async def test_a_model_without_such_a_head_says_so(tmp_path: Path) -> None:
    encoder = random_models.write(tmp_path / "bert.gguf", "bert", vocabulary(ROWS))
    decoder = random_models.write(tmp_path / "llama.gguf", "llama")
    async with await aggml.models.load(encoder) as model:
        assert isinstance(model, EncoderModel)
        assert not model.has_terms
        with pytest.raises(aggml.Unsupported, match="'bert' has no head for weights of words"):
            await model.embed_sparse(["a"])
        with pytest.raises(aggml.Unsupported, match="no head for weights of words"):
            await model.embed_sparse_ids([[5]])
    async with await aggml.models.load(decoder, ctx=256) as text:
        with pytest.raises(aggml.Unsupported, match="'llama' has no head for weights of words"):
            await text.embed_sparse(["a"])


async def test_a_folder_with_a_pooling_of_vectors_drops_a_head_it_does_not_use(
    tmp_path: Path,
) -> None:
    config, tensors = head_of("bert", tied=True)
    folder = random_folders.save(tmp_path / "dense", config, tensors)
    modules = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    async with await aggml.models.load(folder) as model:
        assert isinstance(model, EncoderModel)
        assert not model.has_terms
        assert not [name for name in model._encoder.weights if name.startswith("mlm.")]
