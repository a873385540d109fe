"""LoRA adapters and control vectors: each answer is that of the model merged with its adapter."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

import anyio
import numpy as np
import pytest
from models import adapter_files, random_models

import aggml
from aggml.devices.sim import SimDevice
from aggml.models.adapters.adaptable import adaptable
from aggml.models.checking import describe_checked
from aggml.models.description import Description
from aggml.models.weights import open_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from aggml.models.text_model import TextModel

    F32 = NDArray[np.float32]

pytestmark = pytest.mark.anyio

NAMES = ("poems", "code", "law", "tables")
#: Layouts, and the ends of the names of the matrices that their adapters change.
LAYOUTS: dict[str, tuple[str, ...]] = {
    "llama": ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    "llama-tied": ("attn_q", "ffn_down"),
    "qwen2": ("attn_q", "attn_k", "attn_v", "ffn_up"),
    "phi3": ("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    "qwen3moe": ("attn_q", "attn_v", "attn_output", "ffn_gate_inp"),
    "qwen2moe": ("attn_q", "ffn_up_shexp", "ffn_down_shexp"),
    "gptneox": ("attn_qkv", "ffn_up"),
    "gemma2": ("attn_q", "attn_output", "ffn_down"),
    "deepseek2": ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_output"),
    "mamba2": ("ssm_in", "ssm_out"),
    "rwkv7": ("time_mix_key", "time_mix_output", "channel_mix_value"),
    "qwen3next": ("attn_q", "attn_qkv", "attn_gate", "ssm_out"),
}


@pytest.fixture
async def backend() -> AsyncIterator[aggml.Backend]:
    """The CPU."""
    async with aggml.get_device("CPU").backend(n_threads=2) as opened:
        yield opened


def load(
    path: Path, backend: aggml.Backend | aggml.Scheduler, **options: Any
) -> AbstractAsyncContextManager[TextModel]:
    """A model whose keys and values are not rounded."""
    found = aggml.models.load(path, backend, cache="f32", **{"slots": 8, **options})
    return cast("AbstractAsyncContextManager[TextModel]", found)


async def tokens_of(model: TextModel, ids: list[int], n: int = 10, **options: Any) -> list[int]:
    """The tokens of an answer that no token ends."""
    return [x.id async for x in model.generate(ids, max_tokens=n, stop_ids=(), **options)]


def adapters_for(
    folder: Path, layout: str, ends: tuple[str, ...], names: tuple[str, ...] = NAMES
) -> tuple[dict[str, Path], dict[str, dict[str, tuple[F32, F32]]]]:
    """Files of adapters of different ranks, some of which leave out a matrix; and their numbers."""
    architecture = random_models.metadata_of(layout)["general.architecture"]
    files, numbers = {}, {}
    for i, name in enumerate(names):
        shapes = adapter_files.shapes_of(layout, ends[: max(1, len(ends) - i % 2)])
        numbers[name] = adapter_files.pairs(shapes, name, rank=1 + 2 * i)
        files[name] = adapter_files.write(
            folder / f"{name}.adapter.gguf", architecture, numbers[name]
        )
    return files, numbers


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_each_of_eight_sequences_with_four_adapters_answers_as_its_merged_model(
    backend: aggml.Backend, tmp_path: Path, layout: str
) -> None:
    base = random_models.write(tmp_path / "base.gguf", layout)
    files, numbers = adapters_for(tmp_path, layout, LAYOUTS[layout])
    prompts = [random_models.prompt()[: 9 + 3 * i] for i in range(2)]
    wanted: dict[tuple[str | None, int], tuple[F32, list[int]]] = {}
    for name in (None, *NAMES):
        path = base
        if name is not None:
            path = tmp_path / f"{name}.merged.gguf"
            weights = adapter_files.merged(layout, numbers[name])
            adapter_files.write_model(path, layout, weights)
        async with load(path, backend) as model:
            for i, ids in enumerate(prompts):
                wanted[name, i] = await model.logits(ids), await tokens_of(model, ids)
    found: dict[tuple[str | None, int], list[int]] = {}
    async with load(base, backend, adapters=files) as model:
        assert model.adapters == NAMES

        async def answer(name: str | None, i: int) -> None:
            found[name, i] = await tokens_of(model, prompts[i], adapter=name)

        for some in (NAMES, (None, *NAMES[:3])):  # eight with adapters, then some without
            async with anyio.create_task_group() as tasks:
                for name in some:
                    for i in range(len(prompts)):
                        tasks.start_soon(answer, name, i)
        for (name, i), tokens in found.items():
            logits = await model.logits(prompts[i], adapter=name)
            np.testing.assert_allclose(logits, wanted[name, i][0], rtol=0, atol=1e-4)
            assert tokens == wanted[name, i][1], (name, i)
    plain = wanted[None, 0][0]
    assert all(np.abs(wanted[name, 0][0] - plain).max() > 0.1 for name in NAMES)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", ["llama", "qwen2moe", "mamba2", "phi3"])
async def test_sequences_with_different_scales_in_one_step_answer_as_their_merged_models(
    backend: aggml.Backend, tmp_path: Path, layout: str
) -> None:
    base = random_models.write(tmp_path / "base.gguf", layout)
    files, numbers = adapters_for(tmp_path, layout, LAYOUTS[layout], NAMES[:2])
    ids = random_models.prompt()[:14]
    given: list[dict[str, float]] = [
        {}, {"poems": 0.3}, {"poems": 1.0}, {"poems": -0.7}, {"code": 2.0},
        {"poems": 0.5, "code": 0.8}, {"code": 1.0, "poems": 1.0}, {"poems": 0.0, "code": 0.4},
    ]  # fmt: skip
    wanted: list[tuple[F32, list[int]]] = []
    for i, scales in enumerate(given):
        plain = random_models.weights(layout)
        weights = {name: x.copy() for name, x in plain.items()}
        for name, scale in scales.items():
            changed = adapter_files.merged(layout, numbers[name], scale=scale)
            for tensor in weights:
                weights[tensor] += changed[tensor] - plain[tensor]
        path = adapter_files.write_model(tmp_path / f"{i}.merged.gguf", layout, weights)
        async with load(path, backend) as model:
            wanted.append((await model.logits(ids), await tokens_of(model, ids)))
    assert len({tuple(tokens) for _, tokens in wanted}) > 4
    found: dict[int, list[int]] = {}
    async with load(base, backend, adapters=files) as model:

        async def answer(i: int) -> None:
            found[i] = await tokens_of(model, ids, adapter=given[i])

        for some in (range(5), range(8), (1, 1, 2, 3)):  # one each, then up to two of each token
            before = model.engine.counters.steps
            async with anyio.create_task_group() as tasks:
                for i in some:
                    tasks.start_soon(answer, i)
            assert model.engine.counters.steps - before < 40  # they shared steps
            for i in some:
                assert found[i] == wanted[i][1], given[i]
        for scales, (logits, _) in zip(given, wanted, strict=True):
            told = await model.logits(ids, adapter=scales)
            np.testing.assert_allclose(told, logits, rtol=0, atol=2e-4)


async def test_beginnings_that_are_kept_belong_to_a_scale(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "llama")
    files, _ = adapters_for(tmp_path, "llama", ("attn_q", "attn_v"), NAMES[:2])
    ids = (random_models.prompt() * 5)[:180]
    given: tuple[Any, ...] = (
        "poems", {"poems": 0.5}, {"poems": 0.5, "code": 0.5}, {"code": 0.5}, None
    )  # fmt: skip
    async with load(base, backend, adapters=files, ctx=512, slots=2) as model:
        wanted = []
        for adapter in given:
            stream = model.generate(ids, max_tokens=10, stop_ids=(), adapter=adapter)
            wanted.append([x.id async for x in stream])
            assert stream.cached_tokens == 0
        same: tuple[Any, ...] = (
            {"poems": 1.0}, {"poems": 0.5, "code": 0}, {"code": 0.5, "poems": 0.5}, {"code": 0.5},
            {"poems": 0.0},
        )  # fmt: skip
        for adapter, tokens in zip(same, wanted, strict=True):
            stream = model.generate(ids, max_tokens=10, stop_ids=(), adapter=adapter)
            assert [x.id async for x in stream] == tokens
            assert stream.cached_tokens > 100


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"poems": "much"}, r"adapter\['poems'\] is 'much', expected a number"),
        ({"poems": float("nan")}, "expected a finite number"),
        ({"poems": 1e9}, "within -1e.06 and 1e.06"),
        ({"tables": 1.0}, "adapter is 'tables'; the model has the adapters 'poems'"),
        ({3: 1.0}, "adapter is 3"),
        (["poems"], "adapter is"),
    ],
)
async def test_a_scale_that_is_no_number_is_refused(
    backend: aggml.Backend, tmp_path: Path, given: Any, told: str
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "llama")
    files, _ = adapters_for(tmp_path, "llama", ("attn_q",), NAMES[:1])
    async with load(base, backend, adapters=files) as model:
        with pytest.raises(aggml.InvalidArgument, match=told):
            model.generate([1, 2], adapter=given)


OTHERS = sorted(set(random_models.LAYOUTS) - set(LAYOUTS))


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    "layout",
    [pytest.param(x, marks=[pytest.mark.slow] if i % 4 else []) for i, x in enumerate(OTHERS)],
)
async def test_every_matrix_that_a_layout_lets_adapters_change_is_changed(
    backend: aggml.Backend, tmp_path: Path, layout: str
) -> None:
    """Logits of all tokens, and of the last one alone, are those of the merged model."""
    base = random_models.write(tmp_path / "base.gguf", layout)
    with await open_model(base) as file:
        described = describe_checked(file.metadata, file.tensors)
        assert isinstance(described, Description)
        names = sorted(await adaptable(described, file.tensors))
        shapes = {name: (file.tensors[name].ne[1], file.tensors[name].ne[0]) for name in names}
        architecture = described.architecture
    assert len(names) > 5
    numbers = adapter_files.pairs(shapes, layout, strength=0.2)
    files = {"all": adapter_files.write(tmp_path / "all.adapter.gguf", architecture, numbers)}
    merged = tmp_path / "merged.gguf"
    adapter_files.write_model(merged, layout, adapter_files.merged(layout, numbers))
    ids = random_models.prompt()[:11]

    async def ask(model: TextModel, name: str | None) -> tuple[F32, int, float]:
        (token,) = [
            x async for x in model.generate(ids, max_tokens=1, logprobs=0, adapter=name)
        ]  # fmt: skip
        assert token.logprob is not None
        return await model.logits(ids, adapter=name), token.id, token.logprob

    async with load(merged, backend, slots=2, prefix_cache=0) as model:
        wanted = await ask(model, None)
    async with load(base, backend, slots=2, prefix_cache=0, adapters=files) as model:
        found = await ask(model, "all")
        plain = await ask(model, None)
    most = np.abs(wanted[0]).max()
    assert np.abs(found[0] - wanted[0]).max() < 2e-4 * most
    assert found[1] == wanted[1]
    assert found[2] == pytest.approx(wanted[2], abs=1e-3)
    assert np.abs(plain[0] - wanted[0]).max() > 0.005 * most


async def test_sequences_with_different_adapters_share_a_step_and_others_keep_their_graphs(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "llama")
    files, _ = adapters_for(tmp_path, "llama", ("attn_q",))
    ids = random_models.prompt()[:12]
    async with load(base, backend, adapters=files) as model:
        await tokens_of(model, ids)
        shapes = decoder_of(model)._steps._kept
        assert not any(shape.adapted for shape in shapes)
        before = model.engine.counters.steps

        async def answer(name: str) -> None:
            await tokens_of(model, ids, 10, adapter=name)

        async with anyio.create_task_group() as tasks:
            for i in range(8):
                tasks.start_soon(answer, NAMES[i % 4])
        assert model.engine.counters.steps - before < 30  # one by one it would be 80
        assert any(shape.adapted and shape.tokens == 8 for shape in shapes)


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("layout", ["llama", "mamba2", "qwen3next"])
async def test_no_keys_values_or_states_pass_from_one_adapter_to_another(
    backend: aggml.Backend, tmp_path: Path, layout: str
) -> None:
    """The same long prompt with each adapter in turn, in every order, and together."""
    ends = ("ssm_in",) if layout == "mamba2" else ("attn_q", "attn_v", "attn_qkv")
    base = random_models.write(tmp_path / "base.gguf", layout)
    files, numbers = adapters_for(tmp_path, layout, ends, NAMES[:2])
    ids = (random_models.prompt() * 5)[:180]  # two whole pages, which are stored
    wanted: dict[str | None, list[int]] = {}
    for name in (None, *files):
        path = tmp_path / f"{name}.merged.gguf"
        weights = adapter_files.merged(layout, numbers[name] if name else {})
        adapter_files.write_model(path, layout, weights)
        async with load(path, backend, prefix_cache=0) as model:
            wanted[name] = await tokens_of(model, ids)
    assert len({tuple(x) for x in wanted.values()}) == 3
    async with load(base, backend, adapters=files, ctx=512, slots=2) as model:
        for name in (*files, None, "code", "poems", None, "code"):
            stream = model.generate(ids, max_tokens=10, stop_ids=(), adapter=name)
            assert [x.id async for x in stream] == wanted[name], name
            longer = [*ids, wanted[name][0]]
            again = model.generate(longer, max_tokens=9, stop_ids=(), adapter=name)
            assert [x.id async for x in again] == wanted[name][1:], name
            assert again.cached_tokens > 100  # its own beginning was found
        found: list[tuple[str | None, list[int]]] = []

        async def answer(name: str | None) -> None:
            found.append((name, await tokens_of(model, ids, adapter=name)))

        async with anyio.create_task_group() as tasks:
            for name in (None, *files) * 3:
                tasks.start_soon(answer, name)
        assert all(tokens == wanted[name] for name, tokens in found)


async def test_a_preempted_request_goes_on_with_its_own_adapter(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "llama")
    files, _ = adapters_for(tmp_path, "llama", ("attn_q", "attn_v"), NAMES[:2])
    ids = (random_models.prompt() * 3)[:70]
    async with load(base, backend, adapters=files, ctx=256, slots=1) as model:
        wanted = {name: await tokens_of(model, ids, 40, adapter=name) for name in files}
        stream = model.generate(ids, max_tokens=40, stop_ids=(), adapter="poems")
        found = [(await anext(stream)).id]
        urgent = await tokens_of(model, ids, 40, adapter="code", priority=5)
        found += [x.id async for x in stream]
        assert model.engine.counters.preemptions == 1
        assert urgent == wanted["code"]
        assert found == wanted["poems"]


async def test_stored_files_of_beginnings_belong_to_their_adapter(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "llama")
    files, numbers = adapters_for(tmp_path, "llama", ("attn_q", "attn_v"), NAMES[:2])
    ids = (random_models.prompt() * 5)[:180]
    kept = tmp_path / "beginnings"

    async def ask(name: str | None, **options: Any) -> tuple[list[int], int]:
        async with load(base, backend, prefix_folder=kept, **options) as model:
            stream = model.generate(ids, max_tokens=8, stop_ids=(), adapter=name)
            return [x.id async for x in stream], stream.cached_tokens

    first = {name: await ask(name, adapters=files) for name in (None, *files)}
    assert [cached for _, cached in first.values()] == [0, 0, 0]
    for name in (None, *files):  # of this process nothing is left: the files have it
        tokens, cached = await ask(name, adapters=files)
        assert (tokens, cached > 0) == (first[name][0], True)
    for_all, cached = await ask(None, adapters=[(files["poems"], 1.0)])
    assert (for_all, cached) == (first["poems"][0], 0)
    _, cached = await ask(None, adapters=[(files["poems"], 0.5)])
    assert cached == 0
    other = adapter_files.pairs(adapter_files.shapes_of("llama", ("attn_q",)), "other")
    adapter_files.write(files["poems"], "llama", other)
    assert (await ask("poems", adapters=files))[1] == 0
    assert numbers["poems"]


async def test_adapters_for_every_request_are_added_up_with_their_scales(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "llama")
    files, numbers = adapters_for(tmp_path, "llama", ("attn_q", "ffn_up"), NAMES[:2])
    weights = adapter_files.merged("llama", numbers["poems"], scale=0.75)
    for name, change in adapter_files.merged("llama", numbers["code"], scale=-0.5).items():
        weights[name] = weights[name] + change - random_models.weights("llama")[name]
    path = adapter_files.write_model(tmp_path / "merged.gguf", "llama", weights)
    ids = random_models.prompt()
    async with load(path, backend) as model:
        wanted = await model.logits(ids), await tokens_of(model, ids)
    given = [(files["poems"], 0.75), (files["code"], -0.5)]
    async with load(base, backend, adapters=given) as model:
        assert model.adapters == ()
        np.testing.assert_allclose(await model.logits(ids), wanted[0], rtol=0, atol=1e-4)
        assert await tokens_of(model, ids) == wanted[1]
    async with load(base, backend, adapters={"x": (files["poems"], 0.75)}) as model:
        one = adapter_files.merged("llama", numbers["poems"], scale=0.75)
        adapter_files.write_model(path, "llama", one)
        async with load(path, backend) as merged:
            wanted_one = await merged.logits(ids)
        found = await model.logits(ids, adapter="x")
        np.testing.assert_allclose(found, wanted_one, rtol=0, atol=1e-4)


async def test_a_quantized_model_takes_adapters_at_full_precision(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    """Every product of the merged model is that of the blocks plus that of the change."""
    weights = random_models.weights("llama")
    base = adapter_files.write_model(tmp_path / "base.gguf", "llama", weights, "q8_0")
    files, numbers = adapters_for(tmp_path, "llama", ("attn_q", "ffn_up"), NAMES[:1])
    rounded = {
        name: aggml.dequantize(aggml.quantize(x, "q8_0"), "q8_0").reshape(x.shape)
        if x.ndim == 2 and "norm" not in name else x
        for name, x in weights.items()
    }  # fmt: skip
    ids = random_models.prompt()
    logits = {}
    for kind in ("plain", "merged"):
        made = dict(rounded)
        if kind == "merged":
            for name, x in adapter_files.merged("llama", numbers["poems"]).items():
                made[name] = rounded[name] + x - weights[name]
        path = adapter_files.write_model(tmp_path / f"{kind}.gguf", "llama", made)
        async with load(path, backend) as model:
            logits[kind] = await model.logits(ids)
    async with load(base, backend, adapters=files) as model:
        plain, adapted = await model.logits(ids), await model.logits(ids, adapter="poems")
    rounding = np.abs(plain - logits["plain"]).max()  # of activations, to 8 bits
    assert np.abs(adapted - logits["merged"]).max() < 4 * rounding + 1e-4
    assert np.abs(logits["merged"] - logits["plain"]).max() > 20 * rounding


async def test_vectors_are_those_of_the_merged_model(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "qwen2")
    files, numbers = adapters_for(tmp_path, "qwen2", ("attn_q", "ffn_down"), NAMES[:2])
    texts = random_models.texts()
    async with load(base, backend, adapters=files) as model:
        found = {name: await model.embed_ids(texts, adapter=name) for name in (None, *files)}
    for name in files:
        path = tmp_path / f"{name}.merged.gguf"
        weights = adapter_files.merged("qwen2", numbers[name])
        async with load(adapter_files.write_model(path, "qwen2", weights), backend) as model:
            np.testing.assert_allclose(found[name], await model.embed_ids(texts), atol=1e-5)
    assert np.abs(found["poems"] - found[None]).max() > 1e-3


async def test_a_control_vector_is_added_after_its_layer(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    """A model with a bias after the layer's last matrix does the same."""
    layout = "llama"
    random = np.random.default_rng(3)
    width = len(random_models.weights(layout)["output_norm.weight"])
    vectors = {i: random.standard_normal(width).astype(np.float32) for i in (1, 3)}
    path = adapter_files.write_control(tmp_path / "control.gguf", vectors)
    base = random_models.write(tmp_path / "base.gguf", layout)
    weights = random_models.weights(layout)
    zeros = np.zeros(width, np.float32)
    for i in range(4):
        weights[f"blk.{i}.ffn_down.bias"] = vectors.get(i, zeros) * np.float32(0.5)
    biased = adapter_files.write_model(tmp_path / "biased.gguf", layout, weights)
    ids = random_models.prompt()
    async with load(biased, backend) as model:
        wanted = await model.logits(ids), await tokens_of(model, ids)
    async with load(base, backend, control_vectors=[(path, 0.25), (path, 0.25)]) as model:
        np.testing.assert_allclose(await model.logits(ids), wanted[0], rtol=0, atol=1e-4)
        assert await tokens_of(model, ids) == wanted[1]


async def test_a_written_file_has_the_adapter_in_it(backend: aggml.Backend, tmp_path: Path) -> None:
    base = random_models.write(tmp_path / "base.gguf", "phi3")
    files, numbers = adapters_for(tmp_path, "phi3", ("attn_qkv", "ffn_up"), NAMES[:1])
    target = tmp_path / "target.gguf"
    done = await aggml.models.convert(base, target, adapters=[(files["poems"], 0.5)])
    assert done.changed == 0
    wanted = adapter_files.merged("phi3", numbers["poems"], scale=0.5)
    with aggml.GGUFFile.open(target) as file:
        for name, values in wanted.items():
            made = file.data(name).view(np.float32).reshape(values.shape)
            np.testing.assert_allclose(made, values, atol=1e-5)
    await aggml.models.convert(base, target, "q8_0", adapters=[(files["poems"], 0.5)])
    with aggml.GGUFFile.open(target) as file:
        values = wanted["blk.0.attn_qkv.weight"]
        assert bytes(file.data("blk.0.attn_qkv.weight")) == bytes(aggml.quantize(values, "q8_0"))


async def test_adapters_count_in_the_memory_of_a_model(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "llama")
    files, numbers = adapters_for(tmp_path, "llama", ("attn_q", "ffn_up"))
    async with load(base, backend) as model:
        before = model.memory.mapped
    async with load(base, backend, adapters=files) as model:
        bytes_of = sum(a.nbytes + b.nbytes for x in numbers.values() for a, b in x.values())
        assert model.memory.mapped - before >= bytes_of
    wanted: dict[str, Any] = {"ctx": 256, "slots": 1, "cache": "f32"}
    fit = await aggml.models.fit(base, backend, **wanted)
    more = await aggml.models.fit(base, backend, **wanted, adapters=files)
    assert more.weights - fit.weights >= bytes_of
    ids = (random_models.prompt() * 6)[:200]
    async with load(base, backend, ctx=256, slots=1, adapters=files) as model:
        await tokens_of(model, ids, 4, adapter="tables")
        assert model.memory.scratch <= more.scratch
    bound = fit.total + 1000
    async with load(base, backend, memory=bound, ctx=256, slots=1):
        pass
    with pytest.raises(aggml.models.MemoryShortage, match="weights"):
        await aggml.models.load(base, backend, memory=bound, ctx=256, slots=1, adapters=files)


async def test_adapters_lie_beside_the_layers_that_they_change(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    """Over two devices and the CPU the logits are those of one backend."""
    base = random_models.write(tmp_path / "base.gguf", "llama")
    files, _ = adapters_for(tmp_path, "llama", ("attn_q", "ffn_down"), NAMES[:2])
    vector = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    control = adapter_files.write_control(tmp_path / "control.gguf", {2: vector})
    options: dict[str, Any] = {"adapters": files, "control_vectors": [control]}
    ids = random_models.prompt()
    async with load(base, backend, **options) as model:
        wanted = {name: await model.logits(ids, adapter=name) for name in (None, *files)}
    devices = [SimDevice("A"), SimDevice("B"), aggml.get_device("CPU")]
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(x.backend()) for x in devices]
        scheduler = await stack.enter_async_context(aggml.Scheduler(backends))
        async with load(base, scheduler, **options) as model:
            decoder = decoder_of(model)
            for name, (a, b) in decoder.adapters.stacks.items():
                home = decoder.weights[name].buffer.type.device
                assert a.buffer.type.device is b.buffer.type.device is home
            for name, logits in wanted.items():
                found = await model.logits(ids, adapter=name)
                np.testing.assert_allclose(found, logits, rtol=0, atol=1e-4)


async def test_a_host_counts_the_adapters_of_its_models(
    backend: aggml.Backend, tmp_path: Path
) -> None:
    base = random_models.write(tmp_path / "base.gguf", "llama")
    files, _ = adapters_for(tmp_path, "llama", ("attn_q", "ffn_up"), NAMES[:2])
    ids = random_models.prompt()[:20]
    bytes_of = {}
    async with aggml.models.Host(backend) as host:
        both: dict[str, dict[str, Any]] = {"plain": {}, "adapted": {"adapters": files}}
        for name, options in both.items():
            host.add(name, base, ctx=256, slots=1, **options)
            async with host.use(name) as model:
                found: Any = model
                assert found.adapters == tuple(options.get("adapters", ()))
                await tokens_of(found, ids, adapter=next(iter(found.adapters), None))
                bytes_of[name] = found.memory.mapped
        assert bytes_of["adapted"] > bytes_of["plain"]


def decoder_of(model: TextModel) -> Any:
    """What computes the steps of a model."""
    return model.engine.decoder
