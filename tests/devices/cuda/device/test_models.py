"""A small llama on the device: the CPU's tokens for the same seed, and the launches of a token.

Not here: models as such (tests/models), sampling by itself (test_sampling.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from devices.cuda.fake_driver import all_kernels
from models import layout, random_models
from models.kv.running import contents, decoding, generated

import aggml
from aggml.models.small import LAYERS, write_small

if TYPE_CHECKING:
    from pathlib import Path

    from devices.cuda.fake_driver import Fake

    from aggml.devices.cuda import CUDADevice

# Launches for each layer. The last two have 8 experts, of which each token uses two.
OF_A_LAYER = {"llama": 10, "mixtral": 15, "qwen3moe": 17}
# Other launches: rows of the embedding, the last norm, logits, sampling, and the logit of the drawn
# token, which shows whether there was any token to draw.
BESIDE = 10
PROMPT = [1, 40, 50, 60]
# Logits differ in their last bits. If many candidates were nearly equal, these bits would decide
# the order, so few are kept.
SAMPLERS = [(0.0,), (0.9, 8, 0.95, 7), (1.2, 5, 1.0, 8, 0.02)]


kernels = pytest.fixture(all_kernels)


async def _tokens(device: aggml.Device, path: Path, sampler: tuple[Any, ...], n: int) -> list[int]:
    options = dict(zip(("temperature", "top_k", "top_p", "seed", "min_p"), sampler, strict=False))
    async with (
        device.backend() as backend,
        await aggml.models.load(path, backend, ctx=256, slots=1, prefix_cache=0) as model,
    ):
        steps = model.generate(PROMPT, max_tokens=n, stop_ids=(), **options)
        return [token.id async for token in steps]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
async def test_a_seed_gives_the_tokens_of_the_cpu(
    device: CUDADevice, tmp_path: Path, sampler: tuple[Any, ...]
) -> None:
    path = write_small(tmp_path / "small.gguf")
    expected = await _tokens(aggml.get_device("CPU"), path, sampler, 8)
    assert len(expected) == 8
    assert await _tokens(device, path, sampler, 8) == expected


@pytest.mark.parametrize("name", OF_A_LAYER)
async def test_how_many_kernels_a_token_takes(
    device: CUDADevice, tmp_path: Path, fake: Fake, name: str
) -> None:
    path = tmp_path / "small.gguf"
    if name == "llama":
        write_small(path)
    else:
        random_models.write(path, name)
    counts = []
    for n in (3, 7):
        fake.reset_counts()
        await _tokens(device, path, (0.9, 8, 0.95, 7), n)
        counts.append(fake.counter("kernels"))
    # Each kernel of a plan but the first may start while the kernel before it runs.
    assert fake.counter("kernels") - fake.counter("overlapping kernels") <= 2 * 7 + 1
    layers = LAYERS if name == "llama" else layout.LAYERS
    assert counts[1] - counts[0] == 4 * (OF_A_LAYER[name] * layers + BESIDE)


@pytest.mark.parametrize("layout_name", ["llama-wide-heads", "granitehybrid"])
async def test_what_is_taken_out_of_a_slot_goes_on_in_another_one(
    device: CUDADevice, kernels: Any, tmp_path: Path, layout_name: str
) -> None:
    del kernels
    ids = random_models.prompt(70)
    async with decoding(tmp_path, layout_name, device=device) as decoder:
        wanted = await generated(decoder, 0, ids, 0, 6)
        await decoder.prefill(0, ids[:-1])
        before = await contents(decoder, 0, 69)
        snapshot = decoder.save(0, 0, 69, states=True)
        await decoder.prefill(0, ids[::-1])
        assert snapshot.good
        decoder.load(2, snapshot)
        assert await contents(decoder, 2, 69) == before
        assert await generated(decoder, 2, ids[-1:], 69, 6) == wanted
