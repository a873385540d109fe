"""A model on several devices gives the tokens, logits and vectors of the CPU alone.

Here: which layers go to which device, their caches, generation, logits, vectors, many sequences.
Not here: the scheduler itself (tests/scheduler).
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from models import random_models

import aggml
from aggml.devices.sim import SimDevice
from aggml.models.decoder import Decoder
from aggml.models.dividing import divide_layers
from aggml.models.small import write_small

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PROMPT = "Once upon a time"
LARGE = 64 << 20
HALF = 10 << 20  # room for some of the small model's layers, but not for all


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("models") / "small.gguf")


@asynccontextmanager
async def scheduler(*memory: int, parallel: int = 1) -> AsyncIterator[aggml.Scheduler]:
    """A scheduler over simulated devices of these sizes, and the CPU."""
    async with AsyncExitStack() as stack:
        devices = [SimDevice(f"S{i}", memory=size) for i, size in enumerate(memory)]
        backends = [
            await stack.enter_async_context(device.backend(n_threads=1))
            for device in [*devices, aggml.get_device("CPU")]
        ]
        yield await stack.enter_async_context(aggml.Scheduler(backends, parallel=parallel))


def homes(model: aggml.models.Model) -> tuple[list[str], list[str]]:
    """The names of the buffers that hold the weights and the caches of each layer."""
    assert isinstance(model, aggml.models.TextModel)
    decoder = model._decoder
    assert isinstance(decoder, Decoder)
    weights = [
        decoder.weights[f"blk.{i}.attn_norm.weight"] for i in range(len(decoder.model.layers))
    ]
    caches = [next(iter(of.values())) for of in decoder.caches.layers]
    names = [[x.buffer.name for x in of if x.buffer is not None] for of in (weights, caches)]
    return names[0], names[1]


@pytest.mark.long(cases=1)
@pytest.mark.parametrize(
    ("memory", "layers"),
    [
        ([LARGE], ["S0"] * 4),
        ([LARGE, LARGE], ["S0", "S0", "S1", "S1"]),
        ([10 << 20, 6 << 20], ["CPU", "S0", "S0", "S1"]),
        ([1 << 20], ["CPU"] * 4),
    ],
)
async def test_tokens_logits_and_vectors_are_those_of_the_cpu(
    small: Path, memory: list[int], layers: list[str]
) -> None:
    async def all_of(model: aggml.models.Model) -> tuple[list[int], list[int], np.ndarray]:
        greedy = [token.id async for token in model.generate(PROMPT, max_tokens=20)]
        options = {"temperature": 1.0, "seed": 7, "top_k": 5}
        drawn = [token.id async for token in model.generate(PROMPT, max_tokens=9, **options)]
        logits = await model.logits(model.tokenizer.encode(PROMPT * 4))
        vectors = await model.embed(["a text", "another one"])
        return greedy, drawn, np.concatenate([logits.ravel(), vectors.ravel()])

    # Of both models one sequence at a time: the last bits depend on what shares a step.
    async with await aggml.models.load(small, ctx=256, slots=1) as model:
        wanted = await all_of(model)
    async with (
        scheduler(*memory) as several,
        await aggml.models.load(small, several, ctx=256, slots=1) as model,
    ):
        for names in homes(model):
            assert [name.removesuffix("_Mapped") for name in names] == layers
        got = await all_of(model)
    assert got[:2] == wanted[:2]
    np.testing.assert_array_equal(got[2], wanted[2])


@pytest.mark.long
async def test_windows_experts_and_states_are_computed_over_devices(tmp_path: Path) -> None:
    for name in ("gemma3", "qwen2moe", "deepseek2", "mamba2", "rwkv7", "qwen3next"):
        path = random_models.write(tmp_path / f"{name}.gguf", name)
        ids = random_models.prompt()
        async with await aggml.models.load(path, ctx=256) as model:
            wanted = [token.id async for token in model.generate(ids, max_tokens=24)]
        async with (
            scheduler(LARGE, LARGE, parallel=2) as several,
            await aggml.models.load(path, several, ctx=256) as model,
        ):
            assert len({*homes(model)[1]}) == 2
            assert [token.id async for token in model.generate(ids, max_tokens=24)] == wanted


async def test_an_encoder_lies_over_devices(tmp_path: Path) -> None:
    path = random_models.write(tmp_path / "bert.gguf", "bert")
    texts = random_models.texts()
    async with await aggml.models.load(path) as model:
        wanted = await model.embed_ids(texts)
    async with scheduler(LARGE) as several, await aggml.models.load(path, several) as model:
        np.testing.assert_allclose(await model.embed_ids(texts), wanted, atol=1e-6)


async def test_sequences_share_the_devices(small: Path) -> None:
    """Several generations at the same time; one that is cancelled does not disturb the others."""
    async with await aggml.models.load(small, ctx=256) as model:
        wanted = {
            text: [x.id async for x in model.generate(text, max_tokens=12)] for text in ("a", "bc")
        }
    found: dict[str, list[int]] = {}
    async with (
        scheduler(HALF, parallel=2) as several,
        await aggml.models.load(small, several, ctx=256, slots=3) as model,
    ):

        async def one(text: str) -> None:
            found[text] = [x.id async for x in model.generate(text, max_tokens=12)]

        async def left() -> None:
            with anyio.CancelScope() as scope:
                async for _ in model.generate(PROMPT, max_tokens=100):
                    scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left)
            for text in wanted:
                tasks.start_soon(one, text)
    assert found == wanted


async def test_the_engine_runs_over_devices(small: Path, tmp_path: Path) -> None:
    """Continuous batching on a scheduler: each request gets the tokens that it gets alone."""
    encoder = random_models.write(tmp_path / "bert.gguf", "bert")
    async with await aggml.models.load(small, ctx=256) as model:
        prompts = [model.tokenizer.encode(text) for text in ("a", "hello", PROMPT)]
        wanted = [[x.id async for x in model.generate(ids, max_tokens=10)] for ids in prompts]
    found: dict[int, list[int]] = {}

    async def ask(model: aggml.models.Model, i: int) -> None:
        found[i] = [x.id async for x in model.generate(prompts[i], max_tokens=10)]

    async with scheduler(HALF) as several:
        async with (
            aggml.models.load(small, several, ctx=256, slots=4) as model,
            anyio.create_task_group() as tasks,
        ):
            for i in range(len(prompts)):
                tasks.start_soon(ask, model, i)
        assert [found[i] for i in range(len(prompts))] == wanted
        async with aggml.models.load(encoder, several) as model:
            (vector,) = await model.embed_ids(random_models.texts()[:1])
            assert vector.shape == (model.width,)


async def test_only_a_backend_or_a_scheduler_is_taken(small: Path) -> None:
    with pytest.raises(aggml.InvalidHandle, match="expected a Backend or a Scheduler"):
        await aggml.models.load(small, "CPU")  # type: ignore[arg-type]


# -- deciding


def test_layers_are_divided_by_memory_and_stay_in_order() -> None:
    tensors = {f"blk.{i}.w": 10 for i in range(6)} | {"output.weight": 10, "token_embd.weight": 99}
    caches = [5] * 6
    assert divide_layers(tensors, caches, [1000]).layers == (0,) * 6
    assert divide_layers(tensors, caches, [1000, 1000]).layers == (0, 0, 0, 1, 1, 1)
    assert divide_layers(tensors, caches, [1000, 3000]).layers == (0, 0, 1, 1, 1, 1)
    few = divide_layers(tensors, caches, [40])
    assert (few.layers, few.ends, few.rest) == ((1, 1, 1, 1, 0, 0), 0, 1)
    none = divide_layers(tensors, caches, [0])
    assert (none.layers, none.ends) == ((1,) * 6, 1)
    assert divide_layers(tensors, caches, []).layers == (0,) * 6
    assert [few.of(x) for x in ("blk.5.w", "blk.0.w", "output.weight", "token_embd.weight")] == [
        0, 1, 0, 1
    ]  # fmt: skip


def test_no_device_gets_more_than_it_has() -> None:
    random = np.random.default_rng(3)
    for _ in range(300):
        n = int(random.integers(1, 12))
        sizes = [int(x) for x in random.integers(1, 40, n)]
        caches = [int(x) for x in random.integers(0, 20, n)]
        free = [int(x) for x in random.integers(0, 200, int(random.integers(1, 4)))]
        first = int(random.integers(0, 3))
        tensors = {f"blk.{first + i}.w": size for i, size in enumerate(sizes)} | {"output.w": 7}
        division = divide_layers(tensors, caches, free, first)
        mine = division.layers[first:]
        order = [-1 if k == len(free) else k for k in (*mine, division.ends)]
        assert order == sorted(order)
        for k, limit in enumerate(free):
            used = sum(s + c for s, c, home in zip(sizes, caches, mine, strict=True) if home == k)
            assert used + 7 * (division.ends == k) <= limit
