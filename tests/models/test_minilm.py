"""all-MiniLM-L6-v2 compared with transformers, for sentences of all sorts, alone and together.

The reference is reference_embeddings.npz (normalised mean-pooled float32, one row per string of
reference_sentences.json, truncated at 256 tokens), made by ``python -m benchmarks.make_reference``;
its entry ``made_with`` names the versions. So neither torch nor transformers is needed here.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import numpy as np
import pytest
from models import minilm_file

import aggml
from aggml.models import EncoderModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

FOLDER = Path(__file__).parent
WHOLE: list[str] = json.loads((FOLDER / "reference_sentences.json").read_text("ascii"))
# In a text the names of special tokens are text; for transformers they are these tokens.
KEPT = ["[CLS]" not in sentence for sentence in WHOLE]
SENTENCES = [sentence for sentence, kept in zip(WHOLE, KEPT, strict=True) if kept]
EXPECTED: np.ndarray = np.load(FOLDER / "reference_embeddings.npz")["embeddings"][KEPT]
LONGEST = 256  # tokens, as the reference was made


@contextlib.asynccontextmanager
async def loaded(dtype: str | None = None, backend: Any = None) -> AsyncGenerator[EncoderModel]:
    folder = minilm_file.folder()
    if folder is None:
        pytest.skip(f"the package {minilm_file.PACKAGE} is not installed (make .venv/has-model)")
    async with aggml.models.load(folder, backend, dtype=dtype) as model:
        assert isinstance(model, EncoderModel)
        model.ctx = LONGEST
        yield model


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("given", [None, "f32"])
async def test_f32_is_within_1e_4_of_transformers_when_batched(given: str | None) -> None:
    async with loaded(given) as model:
        found = await model.embed(clean(SENTENCES))
    assert found.dtype == np.float32
    assert found.shape == EXPECTED.shape
    worst = np.abs(found - EXPECTED).max(axis=1)
    assert worst.max() <= 1e-4, SENTENCES[int(worst.argmax())][:80]


def clean(sentences: list[str]) -> list[str]:
    """Half a surrogate pair counts as a replacement character, as for transformers."""
    return [x.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for x in sentences]


@pytest.mark.long
async def test_f32_is_within_1e_4_of_transformers_one_at_a_time() -> None:
    async with loaded() as model:
        for sentence, expected in zip(clean(SENTENCES), EXPECTED, strict=True):
            (found,) = await model.embed([sentence])
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4, err_msg=sentence[:80])


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("threads", [1, 3])
async def test_the_number_of_threads_changes_nothing(threads: int) -> None:
    async with (
        aggml.get_device("CPU").backend(n_threads=threads) as backend,
        loaded(backend=backend) as model,
    ):
        assert len(model._encoder._workers) == threads
        found = await model.embed(clean(SENTENCES[:60]))
    np.testing.assert_allclose(found, EXPECTED[:60], rtol=0, atol=1e-4)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    ("dtype", "worst", "mean"),
    [
        ("f16", 0.9999, 0.9999),
        ("bf16", 0.999, 0.9995),
        ("q8_0", 0.999, 0.9995),
        ("q8_0 throughout", 0.997, 0.999),
        ("q8_0 row scales", 0.993, 0.998),
    ],
)
async def test_reduced_precision_points_the_same_way(dtype: str, worst: float, mean: float) -> None:
    async with loaded(dtype) as model:
        found = await model.embed(clean(SENTENCES))
        inner = {x.dtype.type_name for n, x in model._encoder.weights.items() if "ffn_up.w" in n}
        assert dtype.split()[0] in inner
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=0, atol=1e-5)
    cosine = (found * EXPECTED).sum(axis=1)
    assert cosine.min() >= worst, SENTENCES[int(cosine.argmin())][:80]
    assert cosine.mean() >= mean


@pytest.mark.long
async def test_a_gguf_file_becomes_another_type_as_a_folder_does(tmp_path: Path) -> None:
    folder = minilm_file.folder()
    if folder is None:
        pytest.skip(f"the package {minilm_file.PACKAGE} is not installed (make .venv/has-model)")
    file = minilm_file.write(tmp_path / "minilm.gguf", folder)
    for dtype in (None, "bf16", "q8_0 row scales"):
        async with loaded(dtype) as model:
            ids = [model.tokenizer.encode_prompt(x) for x in clean(SENTENCES[:12])]
            ids = [x[:LONGEST] for x in ids]
            wanted = await model.embed_ids(ids)
        async with aggml.models.load(file, dtype=dtype) as model:
            np.testing.assert_array_equal(await model.embed_ids(ids), wanted)


@pytest.mark.long
async def test_200_tasks_each_get_their_own_answer() -> None:
    few = clean(SENTENCES[:20])
    async with loaded() as model:

        async def ask(seed: int) -> None:
            i = random.Random(seed).randrange(len(few))
            (found,) = await model.embed([few[i]])
            np.testing.assert_allclose(found, EXPECTED[i], rtol=0, atol=1e-4)

        async with anyio.create_task_group() as tasks:
            for seed in range(200):
                tasks.start_soon(ask, seed)


def test_tasks_of_several_threads_and_loops_share_one_model() -> None:
    few = clean(SENTENCES[:20])
    failed: list[Exception] = []

    async def all_of_it() -> None:
        async with loaded() as model:

            def work(seed: int) -> None:
                async def several() -> None:
                    async with anyio.create_task_group() as tasks:
                        for i in range(20):
                            tasks.start_soon(ask, i)

                async def ask(i: int) -> None:
                    (found,) = await model.embed([few[i]])
                    np.testing.assert_allclose(found, EXPECTED[i], rtol=0, atol=1e-4)

                try:
                    anyio.run(several, backend=("asyncio", "trio")[seed % 2])
                except Exception as error:
                    failed.append(error)

            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await anyio.to_thread.run_sync(thread.join)

    anyio.run(all_of_it)
    assert not failed


async def test_cancelling_at_random_points_leaves_the_model_healthy() -> None:
    choose = random.Random(1)
    finished = 0
    few = clean(SENTENCES[:20])
    async with loaded() as model:

        async def ask(seconds: float) -> None:
            nonlocal finished
            with anyio.move_on_after(seconds):
                (found,) = await model.embed(few[:1])
                np.testing.assert_allclose(found, EXPECTED[0], rtol=0, atol=1e-4)
                finished += 1

        for _ in range(10):
            async with anyio.create_task_group() as tasks:
                # one task has no time limit, so that one succeeds on a slow machine, too
                for i in range(20):
                    tasks.start_soon(ask, choose.expovariate(1 / 0.02) if i else math.inf)
        with anyio.move_on_after(0.001):
            await model.embed(few)
        np.testing.assert_allclose(await model.embed(few), EXPECTED[:20], rtol=0, atol=1e-4)
    assert finished >= 10
