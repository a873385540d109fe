"""LoRA adapters and control vectors: each answer is that of the model merged with its adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio
import numpy as np
import pytest
from models import adapter_files, random_folders, random_models

import aggml
from aggml.models.adapters.stacks import NO_ADAPTER
from aggml.models.text_model import TextModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from numpy.typing import NDArray

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
    path: Path, backend: aggml.Backend, **options: Any
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
