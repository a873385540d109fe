"""models/decoder/generating.py and models/llama: compared with numpy, several sequences."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest

import aggml
from aggml.models import ModelError
from aggml.models.decoder import Decoder, generating
from aggml.models.decoder.sampling import Sampler
from aggml.models.kv.rows import mask_of
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model
from examples import llama_files

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

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


async def collect(model: Decoder, samplers: Sequence[Sampler], n: int) -> list[list[int | None]]:
    return [x async for x in generating.generate(model, PROMPT, samplers, n_predict=n)]


async def test_greedy_takes_the_best_of_numpy(files: dict[str, Path]) -> None:
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"])
        ids = [x[0] for x in await collect(model, [Sampler(temperature=0)], 12)]
    wanted = list(PROMPT)
    for token in ids:
        rows = llama_files.logits(wanted, "llama")[-1]
        assert token is not None
        assert rows[token] > rows.max() - 2 * TOLERANCE * np.abs(rows).max()
        wanted.append(token)


async def one_by_one(model: Decoder, logits: np.ndarray, first: int, n: int) -> list[list[int]]:
    """The best tokens by numpy. Each token is read before the next step is queued."""
    ids = [[int(x) for x in logits.argmax(-1)]]
    for position in range(first, first + n - 1):
        logits = await model.decode(ids[-1], [position] * len(logits))
        ids.append([int(x) for x in logits.argmax(-1)])
    return ids


@pytest.mark.parametrize("sequences", [1, 3])
async def test_greedy_steps_queued_ahead_take_the_same_tokens(
    files: dict[str, Path], sequences: int
) -> None:
    """Also if attention, in the middle of it, needs a graph for more positions."""
    prompt = np.random.default_rng(1).integers(3, 290, 250).tolist()
    greedy = [Sampler(temperature=0)] * sequences
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"], sequences)
        logits = np.repeat((await model.prefill(0, prompt))[None], sequences, 0)
        await model.share(len(prompt))
        wanted = await one_by_one(model, logits, len(prompt), 16)
        steps = generating.generate(model, prompt, greedy, n_predict=16)
        assert [x async for x in steps] == wanted
    assert len({x for (x, *_) in wanted}) > 4


async def test_sequences_follow_their_own_tokens_at_their_own_positions(
    files: dict[str, Path],
) -> None:
    prompts = [PROMPT, [1, 290, 291], [1, 290, 263, 264, 280, 281, 282, 283]]
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"], sequences=3)
        wanted: list[list[int]] = []
        for again in (False, True):
            rows = [await model.prefill(slot, prompt) for slot, prompt in enumerate(prompts)]
            ids = [int(row.argmax()) for row in rows]
            at = np.array([len(prompt) for prompt in prompts])
            if again:
                steps = [await model.follow(at.tolist(), ids)]
                steps += [await model.follow((at + i).tolist()) for i in range(1, 8)]
                assert [x.tolist() for x in await aggml.gather(*steps)] == wanted
            else:
                for i in range(8):
                    ids = (await model.decode(ids, (at + i).tolist())).argmax(-1).tolist()
                    wanted.append(ids)
    assert len({tuple(x) for x in zip(*wanted, strict=True)}) == 3


async def test_the_step_ahead_of_an_end_harms_nobody(files: dict[str, Path]) -> None:
    greedy = [Sampler(temperature=0)] * 2
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"], sequences=2)
        whole = await collect(model, greedy, 12)
        tokens = [x[0] for x in whole]
        end = next(i for i in range(2, 12) if tokens[i] not in tokens[:i])
        ends = frozenset([tokens[end] or 0])
        for _ in range(3):
            steps = generating.generate(model, PROMPT, greedy, n_predict=12, ends=ends)
            assert [x async for x in steps] == whole[:end]
        assert await collect(model, greedy, 12) == whole


async def test_sequences_end_at_different_times(files: dict[str, Path]) -> None:
    def samplers() -> list[Sampler]:
        return [Sampler(2.0, seed=i) for i in range(4)]

    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"], sequences=4)
        whole = await collect(model, samplers(), 16)
        columns = list(zip(*whole, strict=True))
        ends = frozenset(column[3 * i] or 0 for i, column in enumerate(columns[1:], start=1))
        steps = generating.generate(model, PROMPT, samplers(), n_predict=16, ends=ends)
        got = [x async for x in steps]
    first = [next((i for i, x in enumerate(c) if x in ends), 16) for c in columns]
    assert len(set(first)) > 1
    assert len(got) == max(first)
    for i, tokens in enumerate(got):
        assert tokens == [x if i < end else None for x, end in zip(whole[i], first, strict=True)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_leaving_in_the_middle_leaves_the_model_usable(
    files: dict[str, Path], temperature: float
) -> None:
    """By cancelling, and by closing the generator: queued work is aborted, and nobody waits."""
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"], sequences=2)

        def steps() -> AsyncGenerator[list[int | None]]:
            samplers = [Sampler(temperature, seed=i) for i in (1, 2)]
            return generating.generate(model, PROMPT, samplers, n_predict=24)

        whole = [x async for x in steps()]
        for seen in (1, 5):
            with anyio.CancelScope() as scope:
                async with contextlib.aclosing(steps()) as cancelled:
                    for i in range(seen):
                        assert await anext(cancelled) == whole[i]
                    scope.cancel()
                    await anext(cancelled)
            assert scope.cancelled_caught
            closed = steps()
            assert [await anext(closed) for _ in range(seen)] == whole[:seen]
            await closed.aclose()
            assert [x async for x in steps()] == whole
        await backend.synchronize()  # raises nothing: no failure is unseen


async def test_a_full_context_is_told_after_the_last_token(files: dict[str, Path]) -> None:
    prompt = np.random.default_rng(2).integers(3, 290, 506).tolist()
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"])
        for temperature in (0.0, 1.0):
            samplers = [Sampler(temperature, seed=1)]
            steps = generating.generate(model, prompt, samplers, n_predict=20)
            assert len([await anext(steps) for _ in range(7)]) == 7
            with pytest.raises(ModelError, match="context of 512 tokens is full"):
                await anext(steps)


@pytest.mark.parametrize("top_k", [0, 8, 200])
async def test_draws_are_those_of_all_logits(files: dict[str, Path], top_k: int) -> None:
    """Whether the device preselects candidates or all logits are brought to the host."""
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"], sequences=2)
        got = await collect(model, [Sampler(0.9, top_k, seed=7), Sampler(temperature=0)], 10)
        drawn, best = Sampler(0.9, top_k, seed=7), Sampler(temperature=0)
        rows = np.repeat((await model.prefill(0, PROMPT))[None], 2, 0)
        await model.share(len(PROMPT))
        for i in range(10):
            ids = [drawn(rows[0]), best(rows[1])]
            assert got[i] == ids
            rows = await model.decode(ids, [len(PROMPT) + i] * 2)


async def test_parallel_sequences_draw_on_their_own_and_again_the_same(
    files: dict[str, Path],
) -> None:
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"], sequences=3)
        first, again = [
            await collect(model, [Sampler(seed=i) for i in (1, 2, 1)], 16) for _ in range(2)
        ]
    assert first == again
    one, two, three = zip(*first, strict=True)
    assert one == three != two


async def test_cancelling_leaves_the_model_usable(files: dict[str, Path]) -> None:
    async with aggml.get_device("CPU").backend() as backend:
        model = await load(backend, files["llama"])
        wanted = await model.prefill(0, PROMPT)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await model.prefill(0, PROMPT)
        assert scope.cancelled_caught
        assert np.array_equal(await model.prefill(0, PROMPT), wanted)
