"""Every encoder gives the vectors of llama.cpp, with whatever other texts a text is computed.

They were recorded (benchmarks/make_logits.py). Not here: all-MiniLM-L6-v2 from its package
(tests/examples).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pytest
from models import random_models

import aggml

if TYPE_CHECKING:
    from pathlib import Path

# llama.cpp computes gelu by tanh, from a table of f16; here it is exact.
MOST: Final = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


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
        short = await model.embed_ids(random_models.texts(), dimensions=16)
        wanted = whole[:, :16] / np.linalg.norm(whole[:, :16], axis=1, keepdims=True)
        np.testing.assert_allclose(short, wanted, rtol=1e-5, atol=1e-6)
        with pytest.raises(aggml.InvalidArgument, match="65, must be within 1 and 64"):
            await model.embed_ids([[5]], dimensions=65)
        with pytest.raises(aggml.InvalidArgument, match="a text has no tokens"):
            await model.embed_ids([[]])
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
