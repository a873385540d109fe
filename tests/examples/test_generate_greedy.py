"""generate.py gives the tokens of llama.cpp; its logits are those of the reference path.

The tokens were recorded (benchmarks/make_greedy.py). Not here: speed; other architectures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import aggml
from aggml.models.loading import load_decoder
from aggml.models.weights import open_model
from examples import llama_files

RECORDED: Final = json.loads(
    Path(__file__).with_name("reference_greedy.json").read_text(encoding="ascii")
)["taken"]
DTYPES: Final = ("f32", "q8_0")
MARGIN: Final = 0.15  # 8-bit activations change a logit by some 0.02


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("decided")
    return {
        dtype: llama_files.write(
            folder / f"{dtype}.gguf", tensors=llama_files.decided(dtype), dtype=dtype
        )
        for dtype in DTYPES
    }


@pytest.mark.parametrize("taken", RECORDED, ids=lambda x: f"{x['dtype']}-{len(x['prompt'])}")
async def test_greedy_ids_are_those_of_llama_cpp(
    files: dict[str, Path], taken: dict[str, Any]
) -> None:
    async with await aggml.models.load(files[taken["dtype"]], ctx=300) as model:
        steps = model.generate(taken["prompt"], max_tokens=len(taken["ids"]), stop_ids=())
        assert [token.id async for token in steps] == taken["ids"]


@pytest.mark.parametrize("taken", RECORDED, ids=lambda x: f"{x['dtype']}-{len(x['prompt'])}")
def test_no_recorded_token_was_a_near_tie(taken: dict[str, Any]) -> None:
    """Otherwise the comparison above would depend on roundings."""
    dtype, prompt = taken["dtype"], taken["prompt"]
    weights = llama_files.dequantized(llama_files.decided(dtype), dtype)
    rows = llama_files.logits([*prompt, *taken["ids"][:-1]], "llama", weights)[len(prompt) - 1 :]
    assert rows.argmax(-1).tolist() == taken["ids"]
    best = np.sort(rows, axis=-1)
    assert (best[:, -1] - best[:, -2]).min() > MARGIN
    assert len(set(taken["ids"])) > len(taken["ids"]) // 2, "it runs in a small circle"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
async def test_f32_logits_are_those_of_the_reference_path(
    tmp_path: Path, architecture: str
) -> None:
    path = llama_files.write(tmp_path / "model.gguf", architecture)
    found = []
    for use_ref in (False, True):
        async with aggml.get_device("CPU").backend(use_ref=use_ref) as backend:
            with await open_model(path) as file:
                model = await load_decoder(backend, file, ctx=300)
            rows = [await model.prefill(0, [1, 40, 270, 281, 265, 277])]
            for position, token in enumerate((275, 262, 290), start=6):
                rows.extend(await model.decode([token], [position]))
            found.append(np.stack(rows))
    fast, slow = found
    assert np.abs(fast - slow).max() < 1e-3
