"""The steps of a llama compared with numpy; tokens of `generate` with draws on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest

import aggml
from aggml.models import ModelError
from aggml.models.decoder.sampling import Sampler
from aggml.models.kv.rows import mask_of
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model
from examples import llama_files

if TYPE_CHECKING:
    from pathlib import Path

    from aggml.models.decoder import Decoder

ARCHITECTURES = ("llama", "qwen2", "qwen3")
PROMPT = [1, 40, 270, 281, 265, 277]
TOLERANCE = 1e-3  # relative to the largest logit: keys and values are kept in f16


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: llama_files.write(folder / f"{name}.gguf", name) for name in ARCHITECTURES}


def assert_near(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, atol=TOLERANCE * np.abs(wanted).max())


async def load(backend: aggml.Backend, path: Path, sequences: int = 1) -> Decoder:
    with await open_model(path) as file:
        return await load_decoder(backend, file, ctx=300, sequences=sequences)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_logits_are_those_of_numpy(files: dict[str, Path], architecture: str) -> None:
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files[architecture])
        wanted = llama_files.logits([*PROMPT, 275, 262], architecture)
        got = await model.prefill(0, PROMPT)
        assert_near(got, wanted[len(PROMPT) - 1])
        for i, token in enumerate((275, 262)):
            got = await model.decode([token], [len(PROMPT) + i])
            assert_near(got[0], wanted[len(PROMPT) + i])


async def test_logits_of_300_positions_are_those_of_the_reference(files: dict[str, Path]) -> None:
    """Fused, packed, in vectors, on many threads: within 1e-3 of one plain node at a time."""
    ids = np.random.default_rng(3).integers(0, 290, 300).tolist()
    logits = {}
    for reference in (True, False):
        async with aggml.get_device("CPU").backend(use_ref=reference) as backend:
            model = await load(backend, files["llama"])
            steps = [await model.decode([token], [i]) for i, token in enumerate(ids)]
            logits[reference] = np.concatenate([*steps, [await model.prefill(0, ids)]])
    assert np.abs(logits[True]).max() > 1.0
    np.testing.assert_allclose(logits[False], logits[True], rtol=0, atol=1e-3)


async def test_a_prompt_in_pieces_gives_the_same(files: dict[str, Path]) -> None:
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"])
        whole = await model.prefill(0, PROMPT)
        await model.prefill(0, PROMPT[:4])
        pieces = await model.prefill(0, PROMPT[4:], start=4)
        assert_near(pieces, whole)


async def test_sequences_together_give_what_each_gives_alone(files: dict[str, Path]) -> None:
    prompts = [PROMPT, [1, 290, 291], [1, 290, 263, 264, 280, 281, 282, 283]]
    next_ = [262, 270, 280]
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"], sequences=3)
        for slot, prompt in enumerate(prompts):
            await model.prefill(slot, prompt)
        together = await model.decode(next_, [len(p) for p in prompts])
        for got, prompt, token in zip(together, prompts, next_, strict=True):
            wanted = llama_files.logits([*prompt, token], "llama")[-1]
            assert_near(got, wanted)


async def test_a_prompt_longer_than_a_step_of_the_cache(files: dict[str, Path]) -> None:
    ids = [1, *np.random.default_rng(3).integers(3, 290, 270).tolist()]
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"])
        got = await model.prefill(0, ids)
        assert_near(got, llama_files.logits(ids, "llama")[-1])
        with pytest.raises(ModelError, match="do not fit into a context of 512"):
            await model.prefill(0, ids, start=300)


@pytest.mark.parametrize(
    "positions",
    [[[0, 1, 2]], [[5, 6, 7, 8]], [[251, 252, 253, 254, 255]], [[3], [9], [0]], [[4, 2]]],
)
def test_mask_shows_what_came_before(positions: list[list[int]]) -> None:
    at = np.array(positions, np.int32)
    wanted = np.where(np.arange(256) <= at[:, None, :, None], 0, -np.inf)
    assert np.array_equal(mask_of(at, 256), wanted)


async def generated(path: Path, n: int, **options: Any) -> list[int]:
    async with await aggml.models.load(path, ctx=300, slots=2) as model:
        steps = model.generate(PROMPT, max_tokens=n, stop_ids=(), **options)
        return [token.id async for token in steps]


async def test_greedy_takes_the_best_of_numpy(files: dict[str, Path]) -> None:
    ids = await generated(files["llama"], 12)
    wanted = list(PROMPT)
    for token in ids:
        rows = llama_files.logits(wanted, "llama")[-1]
        assert rows[token] > rows.max() - 2 * TOLERANCE * np.abs(rows).max()
        wanted.append(token)


@pytest.mark.parametrize("top_k", [0, 8, 200])
async def test_draws_are_those_of_all_logits(files: dict[str, Path], top_k: int) -> None:
    """The device draws as a sampler does that sees all logits on the host."""
    got = await generated(files["llama"], 10, temperature=0.9, top_k=top_k, seed=7)
    sampler = Sampler(0.9, top_k, seed=7)
    wanted: list[int] = []
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"])
        row = await model.prefill(0, PROMPT)
        for i in range(10):
            wanted.append(sampler(row))
            (row,) = await model.decode(wanted[-1:], [len(PROMPT) + i])
    assert got == wanted


async def test_cancelling_leaves_the_model_usable(files: dict[str, Path]) -> None:
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"])
        wanted = await model.prefill(0, PROMPT)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await model.prefill(0, PROMPT)
        assert scope.cancelled_caught
        assert np.array_equal(await model.prefill(0, PROMPT), wanted)
