"""Decoding on a GPU: llamas of 1 and 8 billion random weights, in tokens per second.

The weights are made in memory, in the layout of a GGUF file. Not here: other figures of a GPU
(gpu.py), generation on CPUs (generation.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

import aggml
from aggml.models import Description, Hyperparameters
from aggml.models.catalogue import describe
from benchmarks.model_files import Shape, tensors
from benchmarks.models import Decoder
from benchmarks.timing import Budget, Row, median, progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml import Backend, Device, Tensor

__all__ = ["DTYPES", "decoding"]

DTYPES: Final = ("q4_0", "q8_0", "bf16")
#: Shapes with about 1 and 8 billion weights, as Llama 3.
SHAPES: Final = {
    "1 B": Shape(2048, 16, 32, 8, 8192, 128256),
    "8 B": Shape(4096, 32, 32, 8, 14336, 128256),
}
TINY: Final = {"tiny": Shape(256, 1, 4, 2, 256, 256)}
CONTEXT: Final = 1024
TOGETHER: Final = 8


async def _weights(be: Backend, dtype: str, shape: Shape) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, data in tensors(dtype, shape):
        plain = data.ndim == 1
        ne = data.shape if plain else (shape.matrices()[name][1], data.shape[0])
        tensor = aggml.new_tensor("f32" if plain else dtype, ne=ne, name=f"{name}.weight")
        await be.alloc_async([tensor], usage="weights")
        if plain:
            await be.set(tensor, data)
        else:
            raw = data.reshape(-1)
            await be.set(tensor, raw, offset=0, size=raw.nbytes)
        found[tensor.name] = tensor
    return found


def _config(shape: Shape) -> Description:
    told: Mapping[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": shape.layers,
        "llama.context_length": 4096,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.inner,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": shape.head,
    }
    found = describe(Hyperparameters(told))
    assert isinstance(found, Description)
    return found


async def _seconds(model: Decoder, n: int, steps: int) -> float:
    """Seconds of one step of ``n`` sequences; the first steps are not counted."""
    ids = np.random.default_rng(n).integers(0, model.vocabulary, (steps + 4, n)).tolist()
    found = []
    for at, tokens in enumerate(ids):
        start = time.perf_counter()
        logits = await model.decode(tokens, [at] * n)
        if at >= 4:
            found.append(time.perf_counter() - start)
        assert np.isfinite(logits).all()
    return median(found)


async def decoding(
    device: Device, roof: float, *, quick: bool, missing: list[str], dtypes: Sequence[str] = DTYPES
) -> list[Row]:
    """Tokens per second of one sequence and of eight, with the limit that the copy bandwidth sets.

    Args:
        device: a GPU.
        roof: GB/s of a copy within the device.
        quick: a tiny model, whose speed means nothing.
        missing: gets a line for each figure that could not be measured.
        dtypes: types of the matrices.
    """
    rows: list[Row] = []
    for label, shape in (TINY if quick else SHAPES).items():
        for dtype in dtypes:
            what = f"decode llama {label} {dtype}"
            progress(what)
            try:
                async with device.backend() as be:
                    weights = await _weights(be, dtype, shape)
                    model = Decoder(be, _config(shape), weights, ctx=CONTEXT, sequences=TOGETHER)
                    for n in (1, TOGETHER):
                        steps = 3 if quick else 128
                        seconds = await _seconds(model, n, steps)
                        row = aggml.DType.parse(dtype).row_size(shape.inner) / shape.inner
                        kv = 4 * shape.head * shape.kv_heads * shape.layers * (steps / 2 + 4)
                        most = roof * 1e9 / (shape.streamed() * row + n * kv) * n
                        rows.append(
                            Row(
                                "decode", f"{what}, {n} at a time", n / seconds, "tokens/s",
                                roofs={"copy": most}, budgets=(Budget("copy", ">=", 0.6),),
                            )
                        )  # fmt: skip
                    del model, weights
            except aggml.AggmlError as error:
                missing.append(f"{what}: {error}")
    return rows
