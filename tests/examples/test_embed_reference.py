"""The example's embeddings compared with those of transformers, for sentences of all sorts.

The reference is reference_embeddings.npz (normalised mean-pooled float32, one row per string of
reference_sentences.json, truncated at 256 tokens), made by ``python -m benchmarks.make_reference``;
its entry ``made_with`` names the versions. So neither torch nor transformers is needed here.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from embed import embed_all
from minilm import Embedder

FOLDER = Path(__file__).parent
SENTENCES: list[str] = json.loads((FOLDER / "reference_sentences.json").read_text("ascii"))
EXPECTED: np.ndarray = np.load(FOLDER / "reference_embeddings.npz")["embeddings"]


async def test_f32_is_within_1e_4_of_transformers_when_batched() -> None:
    async with Embedder(dtype="f32") as embedder:
        found = await embed_all(embedder, SENTENCES)
    assert found.dtype == np.float32
    assert found.shape == EXPECTED.shape
    worst = np.abs(found - EXPECTED).max(axis=1)
    assert worst.max() <= 1e-4, SENTENCES[int(worst.argmax())][:80]


async def test_f32_is_within_1e_4_of_transformers_one_at_a_time() -> None:
    async with Embedder(dtype="f32") as embedder:
        for sentence, expected in zip(SENTENCES, EXPECTED, strict=True):
            found = await embedder.embed(sentence)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4, err_msg=sentence[:80])


@pytest.mark.parametrize("dtype", ["bf16", "q8_0"])
async def test_reduced_precision_points_the_same_way(dtype: str) -> None:
    async with Embedder(dtype=dtype) as embedder:
        found = await embed_all(embedder, SENTENCES)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=0, atol=1e-5)
    cosine = (found * EXPECTED).sum(axis=1)
    assert cosine.min() >= 0.999, SENTENCES[int(cosine.argmin())][:80]


async def test_q8_0_throughout_costs_little_more() -> None:
    async with Embedder(dtype="q8_0", throughout=True) as embedder:
        found = await embed_all(embedder, SENTENCES)
    cosine = (found * EXPECTED).sum(axis=1)
    assert cosine.min() >= 0.997, SENTENCES[int(cosine.argmin())][:80]


async def test_row_scales_cost_little_more() -> None:
    async with Embedder(dtype="q8_0", throughout=True, row_scales=True) as embedder:
        found = await embed_all(embedder, SENTENCES)
    cosine = (found * EXPECTED).sum(axis=1)
    assert cosine.min() >= 0.993, SENTENCES[int(cosine.argmin())][:80]
    assert cosine.mean() >= 0.998


async def test_small_batches_give_the_same() -> None:
    async with Embedder(batch_tokens=64, max_waiting=8) as embedder:
        found = await embed_all(embedder, SENTENCES[:40], clients=40)
    np.testing.assert_allclose(found, EXPECTED[:40], rtol=0, atol=1e-4)


async def test_half_a_surrogate_pair_counts_as_a_replacement_character() -> None:
    async with Embedder() as embedder:
        broken = await embedder.embed("half \ud83d a pair")
        whole = await embedder.embed("half \ufffd a pair")
        # two surrogates, which json.loads would have joined
        pair = await embedder.embed("\ud83d\ude00")
        joined = await embedder.embed("\U0001f600")
    assert np.array_equal(broken, whole)
    assert np.array_equal(pair, joined)
