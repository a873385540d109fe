"""States of recurrent layers: several sequences, pieces, copies, and steps that were aborted.

Here: that no token ever follows from a wrong state. Not here: whether the numbers are right
(test_architectures.py).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from models import random_models
from models.kv.running import queue_one
from models.layout import VOCABULARY

import aggml
from aggml.models import TextModel
from aggml.models.decoder import Batch, Decoder, Group
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

LAYOUTS = [
    "mamba2-groups", "rwkv6", "rwkv7-two-heads", "qwen3next", "granitehybrid", "qwen35", "lfm2",
    "nemotron_h", "falcon-h1", "mamba", "jamba",
]  # fmt: skip
CTX = 768


def near(got: Any, wanted: Any) -> None:
    """Equal but for the order of sums, which differs for other sizes of products and for pieces."""
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@contextlib.asynccontextmanager
async def opened(folder: Path, layout: str, sequences: int = 1) -> AsyncGenerator[Decoder]:
    path = random_models.write(folder / f"{layout}.gguf", layout)
    async with aggml.get_device("CPU").backend(n_threads=2) as backend:
        with await open_model(path) as file:
            yield await load_decoder(backend, file, ctx=CTX, sequences=sequences, cache="f32")


def held(decoder: Decoder) -> contextlib.AbstractContextManager[object]:
    return decoder.site.host.stream.hold()


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_prompt_in_pieces_gives_what_it_gives_at_once(tmp_path: Path, layout: str) -> None:
    ids = random_models.prompt(600)  # more than one step takes
    async with opened(tmp_path, layout) as decoder:
        whole = await decoder.logits(ids)
        for end in (1, 7, 540):
            piece = await decoder.prefill(0, ids[:end])
            near(piece, whole[end - 1])
            rest = await decoder.prefill(0, ids[end:], start=end)
            near(rest, whole[-1])
        await decoder.prefill(0, ids[:20])
        for position in range(20, 24):
            (one,) = await decoder.decode([ids[position]], [position])
            near(one, whole[position])


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_sequences_of_one_step_do_not_see_each_other(tmp_path: Path, layout: str) -> None:
    random = np.random.default_rng(3)
    prompts = [random.integers(0, VOCABULARY, n).tolist() for n in (9, 1, 30)]
    nexts = random.integers(0, VOCABULARY, (4, 3)).tolist()
    async with opened(tmp_path, layout, sequences=3) as decoder:
        alone = []
        for i, prompt in enumerate(prompts):
            rows = await decoder.logits([*prompt, *(ids[i] for ids in nexts)], slot=2)
            alone.append(rows[len(prompt) :])
        for slot, prompt in enumerate(prompts):
            await decoder.prefill(slot, prompt)
        for step, ids in enumerate(nexts):
            rows = await decoder.decode(ids, [len(prompt) + step for prompt in prompts])
            for i, row in enumerate(rows):
                near(row, alone[i][step])


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_step_takes_prompts_beside_running_sequences(tmp_path: Path, layout: str) -> None:
    ids = random_models.prompt(20)

    def group(slot: int, first: int, tokens: list[int], n: int = 1) -> Group:
        positions = np.tile(np.arange(first, first + len(tokens), dtype=np.int32), (n, 1))
        slots = np.arange(slot, slot + n, dtype=np.int32)[:, None]
        return Group(
            np.array([tokens] * n, np.int32), positions, slots * CTX + positions, slot, 256
        )

    async with opened(tmp_path, layout, sequences=4) as decoder:
        whole = await decoder.logits(ids)
        for slot in (0, 1):
            await decoder.prefill(slot, ids[:6])
        running = group(0, 6, ids[6:7], 2)
        begun = Batch((running, group(2, 0, ids[:9]), group(3, 0, ids[:9])))
        (rows,) = await (await decoder.queue(begun))
        rows = np.asarray(rows).reshape(-1, VOCABULARY)
        wanted = [*whole[[6, 6]], *whole[:9], *whole[:9]]
        near(rows, wanted)
        gone_on = Batch((group(0, 7, ids[7:8], 2), group(2, 9, ids[9:15], 2)))
        (rows,) = await (await decoder.queue(gone_on))
        rows = np.asarray(rows).reshape(-1, VOCABULARY)
        near(rows, [*whole[[7, 7]], *whole[9:15], *whole[9:15]])


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_prompt_is_shared_where_its_state_stands(tmp_path: Path, layout: str) -> None:
    ids = random_models.prompt(30)
    async with opened(tmp_path, layout, sequences=3) as decoder:
        ways = [[*ids, token] for token in (5, 90, 200)]
        alone = [(await decoder.logits(way, slot=1))[-1] for way in ways]
        await decoder.prefill(0, ids)
        with pytest.raises(aggml.InvalidState, match="taken in 30 positions and cannot be moved"):
            await decoder.share(29)
        await decoder.share(30)
        rows = await decoder.decode([5, 90, 200], [30, 30, 30])
        near(rows, alone)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_state_is_not_cut_back_or_left_ahead(tmp_path: Path, layout: str) -> None:
    ids = random_models.prompt(12)
    async with opened(tmp_path, layout) as decoder:
        whole = await decoder.logits(ids)
        for position in (11, 13):
            with pytest.raises(aggml.InvalidState, match=f"moved to position {position}: go on"):
                await decoder.decode([1], [position])
        with pytest.raises(aggml.InvalidState, match="sequence 0 has taken in 12 positions"):
            await decoder.prefill(0, [1, 2], start=4)
        again = await decoder.prefill(0, ids)
        near(again, whole[-1])


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_after_an_aborted_step_a_sequence_begins_anew(tmp_path: Path, layout: str) -> None:
    ids = random_models.prompt(12)
    lost = pytest.raises(aggml.InvalidState, match="aborted or failed, so its state is lost")
    async with opened(tmp_path, layout, sequences=2) as decoder:
        whole = await decoder.logits([*ids, 7, 8])
        for slot in (0, 1):
            await decoder.prefill(slot, ids)
        with held(decoder):
            future = await queue_one(decoder, 12, 7, 1)
            future.abort()
        # Queued right away, before the abort of the step is noticed.
        with lost:
            await decoder.decode([8], [13], slot=1)
        with lost:
            await decoder.prefill(1, [7, 8], start=12)
        rows = await decoder.decode([7], [12])  # the other sequence is not disturbed
        near(rows[0], whole[12])
        await decoder.prefill(1, [*ids, 7])
        rows = await decoder.decode([8, 8], [13, 13])
        near(rows, [whole[13]] * 2)


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_after_a_cancelled_step_a_sequence_begins_anew(tmp_path: Path, layout: str) -> None:
    ids = random_models.prompt(12)
    async with opened(tmp_path, layout) as decoder:
        whole = await decoder.logits([*ids, 7])
        await decoder.prefill(0, ids)
        with held(decoder), anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(decoder.decode, [7], [12])
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        with pytest.raises(aggml.InvalidState, match="its state is lost"):
            await decoder.decode([7], [12])
        near(await decoder.prefill(0, [*ids, 7]), whole[-1])


@pytest.mark.long(cases=3)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_generation_that_is_left_spoils_no_other(tmp_path: Path, layout: str) -> None:
    path = random_models.write(tmp_path / "model.gguf", layout)
    ids = random_models.prompt()
    taken = random_models.recorded(layout)["ids"].tolist()
    async with await aggml.models.load(path, ctx=256, slots=2) as model:
        found: dict[int, list[int]] = {}

        async def whole(i: int) -> None:
            found[i] = [token.id async for token in model.generate(ids, max_tokens=24)]

        for left in (1, 5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(whole, left)
                tokens = model.generate(ids[::-1], max_tokens=50)
                for _ in range(left):
                    await anext(tokens)
                await tokens.aclose()
            assert found[left] == taken[:24]
        drawn = [
            [t.id async for t in model.generate(ids, max_tokens=9, temperature=0.8, seed=5)]
            for _ in range(2)
        ]
        assert drawn[0] == drawn[1]


async def test_layers_that_look_at_the_first_one_have_no_stages(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "model.gguf", "rwkv7")
    async with aggml.get_device("CPU").backend() as backend:
        with (
            await open_model(path) as file,
            pytest.raises(aggml.Unsupported, match="rwkv7 cannot be cut into stages: later layers"),
        ):
            await load_decoder(backend, file, stage=(0, 2))


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", ["qwen3next", "qwen35", "granitehybrid", "falcon-h1", "mamba2"])
async def test_prompts_that_go_on_from_a_stored_end_beside_others_answer_as_alone(
    tmp_path: Path, layout: str
) -> None:
    """The keys behind the last whole page are where the prompt reads them, its states, too."""
    path = random_models.write(tmp_path / "model.gguf", layout)
    texts = np.random.default_rng(5).integers(5, 300, (4, 12)).tolist()
    prompts = [text[:n] for text in texts for n in (9, 12)]
    found: dict[int, list[int]] = {}

    async def answer(model: TextModel, i: int) -> None:
        tokens = model.generate(prompts[i], max_tokens=4, stop_ids=[])
        found[i] = [x.id async for x in tokens]

    options: Any = {"slots": 8, "ctx": 256, "cache": "f32"}
    async with aggml.get_device("CPU").backend(n_threads=2) as backend:
        async with aggml.models.load(path, backend, prefix_cache=0, **options) as model:
            assert isinstance(model, TextModel)
            for i in range(len(prompts)):
                await answer(model, i)
        alone = dict(found)
        for seed in (0, 3, 7):
            found.clear()
            async with aggml.models.load(path, backend, **options) as model:
                assert isinstance(model, TextModel)
                async with anyio.create_task_group() as tasks:
                    for i in np.random.default_rng(seed).permutation(len(prompts)).tolist():
                        tasks.start_soon(answer, model, i)
            assert found == alone, seed
