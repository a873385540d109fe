"""Every layout of every architecture gives the logits and the tokens of llama.cpp.

They were recorded (benchmarks/make_logits.py). Not here: tokenizers, `TextModel` itself
(test_text_model.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from models import random_models
from models.layout import VOCABULARY

import aggml
from aggml.models import catalogue
from aggml.models.architectures import llama4
from aggml.native import cpu_mask

# Bounds of the error: llama.cpp keeps keys and values in f16, too. mxfp4 experts are multiplied
# with activations of 8 bits, here and in llama.cpp.
NMSE: Final = {"gpt-oss": 2e-4}
MOST: Final = 1e-5
TILES: Final = cpu_mask(None) & (1 << 9 | 1 << 10) != 0  # bits of isas.def: AMX_BF16, AMX_INT8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def nmse(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.square(got - wanted).sum() / np.square(wanted).sum())


@pytest.mark.long(cases=16)
@pytest.mark.parametrize("name", random_models.LAYOUTS)
async def test_logits_and_tokens_are_those_of_llama_cpp(folder: Path, name: str) -> None:
    path = random_models.write(folder / f"{name}.gguf", name)
    async with await aggml.models.load(path, ctx=256) as model:
        ids = random_models.prompt()
        logits = await model.logits(ids)
        recorded = random_models.recorded(name)
        wanted = recorded["logits"]
        assert logits.shape == (len(ids), VOCABULARY)
        assert logits.dtype == np.float32
        assert nmse(logits[-len(wanted) :], wanted) < NMSE.get(name, MOST)
        taken = recorded["ids"].tolist()
        made = [token.id async for token in model.generate(ids, max_tokens=len(taken))]
        if made == taken or not (TILES and name in NMSE):
            assert made == taken
            return
        # On matrix tiles prompts are multiplied as bf16, not with activations of 8 bits. So where a
        # token differs, the logits of both candidates must differ by less than three times the
        # error of our logits against llama.cpp's.
        at = next(i for i, (a, b) in enumerate(zip(made, taken, strict=True)) if a != b)
        after = (await model.logits([*ids, *taken[:at]]))[-1]
        error = np.sqrt(np.square(logits[-len(wanted) :] - wanted).mean())
        assert after.max() - after[taken[at]] < 3 * error
        assert after.max() - after[made[at]] < 3 * error


def test_every_architecture_has_a_layout() -> None:
    layouts = (*random_models.LAYOUTS.values(), *random_models.ENCODERS.values())
    described = {layout.architecture for layout in layouts}
    heard = {"whisper"}  # its weights are in speech_file.py, and it is tested in test_speech.py
    heard |= {"t5", "t5encoder"}  # encoder_decoders.py and test_t5.py
    heard |= {"phimoe"}  # llama.cpp computes something else: test_folders.py
    assert described | heard == {*catalogue._find_all()}


def test_the_page_of_models_has_every_layout() -> None:
    page = Path(__file__).parents[2] / "docs" / "models.md"
    row = re.compile(r"^\| (\S+) \| (\S+) \| (\S+) \|", re.MULTILINE)
    text = page.read_text(encoding="utf-8")
    rows = row.findall(text[: text.index("## Pictures")])
    layouts = {(layout.architecture, name) for name, layout in random_models.LAYOUTS.items()}
    assert {(architecture, name) for architecture, name, _ in rows if name != "---"} == layouts
    assert all(float(error) < NMSE.get(name, MOST) for _, name, error in rows if name != "---")


@pytest.mark.long(cases=2)
@pytest.mark.parametrize(
    "name",
    [
        "gemma2", "gemma3", pytest.param("gemma3n", marks=pytest.mark.slow), "gemma4", "cohere2",
        "gpt-oss", "llama4", "olmo3",
    ],
)  # fmt: skip
async def test_a_window_of_any_length_of_context_gives_the_same(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring cache that has wrapped more than once gives the logits of a cache of all positions."""
    monkeypatch.setattr(llama4, "CHUNK", 50)
    path = random_models.write(folder / f"{name}.gguf", name)
    ids = random_models.prompt(1400)
    async with await aggml.models.load(path, ctx=1536) as model:
        whole = await model.logits(ids)
    # The same layers with a row for each position, masked to the window.
    async with aggml.get_device("CPU").backend() as backend:
        from aggml.models.kv.paging import PagedDecoder
        from aggml.models.loading import load_decoder
        from aggml.models.weights import open_model

        with await open_model(path) as file:
            decoder = await load_decoder(backend, file, kind=PagedDecoder, ctx=1536)
        assert nmse(whole, await decoder.logits(ids)) < 1e-6


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", random_models.LATE)
async def test_positions_beyond_a_fixed_chunk_or_window_have_logits_of_llama_cpp(
    folder: Path, name: str
) -> None:
    path = random_models.write(folder / f"{name}-late.gguf", name)
    ids = random_models.prompt(random_models.LATE[name])
    async with await aggml.models.load(path, ctx=9216) as model:
        found = (await model.logits(ids))[-8:]
    # One position more or less in a window of 4096 makes an error of 8e-7.
    assert nmse(found, random_models.recorded(name)["late"]) < 4e-7


@pytest.mark.parametrize("cache", ["f32", "bf16", "q8_0", "q4_0"])
async def test_caches_of_other_types_are_near(folder: Path, cache: str) -> None:
    path = random_models.write(folder / "wide.gguf", "llama-wide-heads")
    ids, found = random_models.prompt(), []
    for kind in ("f16", cache):
        async with await aggml.models.load(path, ctx=256, cache=kind) as model:
            found.append(await model.logits(ids))
    assert nmse(found[1], found[0]) < {"f32": 1e-5, "bf16": 1e-3, "q8_0": 1e-3, "q4_0": 0.2}[cache]


async def test_a_cache_whose_blocks_cross_heads_is_refused(folder: Path) -> None:
    path = random_models.write(folder / "narrow.gguf", "llama")
    with pytest.raises(aggml.models.ModelError, match=r"q8_0 .* multiple of 32 .* heads of 16"):
        await aggml.models.load(path, cache="q8_0")
