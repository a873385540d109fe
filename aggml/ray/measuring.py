"""How long layers take on the node that will compute them, and how much memory it has for them.

Layers of one kind (the same parts, tensors of the same shapes and types) take equally long, so one
of each kind is loaded and run for one token. Here: kinds, the run, costs of all layers from it. Not
here: cutting the layers by their costs (cutting.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.stages import Batch, Group, load_decoder, open_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aggml import Backend, DType
    from aggml.models.stages import Decoder, Description, Layer, ModelFile

__all__ = ["Measured", "Sample", "kinds", "measure_layers", "samples", "spread"]

RUNS: Final = 7  # the fastest run counts: disturbances only make a run slower
CONTEXT: Final = 256  # positions of the caches of a measured layer


@dataclass(frozen=True, slots=True)
class Sample:
    """Layers that are measured: one of each kind, and the last layer together with the output.

    Attributes:
        kind: the kind of each layer of the model, as a number.
        layers: for each kind the layer that is measured.
    """

    kind: tuple[int, ...]
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a stage has measured.

    Attributes:
        node: Ray's id of its node.
        seconds: of one token, for each measured layer, then for the last layer with the output.
        free: free bytes of its device; 0: unknown.
    """

    node: str
    seconds: tuple[float, ...]
    free: int


def kinds(model: Description, file: ModelFile) -> list[int]:
    """A number for each layer, the same for layers of one kind."""
    known: list[tuple[Layer, dict[str, tuple[tuple[int, ...], DType]]]] = []
    found = []
    for i, layer in enumerate(model.layers):
        prefix = f"blk.{i}."
        tensors = {
            name.removeprefix(prefix): (tuple(x.ne), x.dtype)
            for name, x in file.tensors.items()
            if name.startswith(prefix)
        }
        if (layer, tensors) not in known:
            known.append((layer, tensors))
        found.append(known.index((layer, tensors)))
    return found


def samples(kind: Sequence[int]) -> Sample:
    """Which layers to measure: of each kind one that is neither the first nor the last, if any."""
    inner = range(1, len(kind) - 1)
    layers = []
    for k in range(max(kind) + 1):
        of = [i for i, x in enumerate(kind) if x == k]
        layers.append(next((i for i in of if i in inner), of[0]))
    return Sample(tuple(kind), tuple(layers))


def spread(sample: Sample, seconds: Sequence[float]) -> tuple[list[float], float]:
    """The time of each layer and the time of the output, from the measured times."""
    *of_kind, last = seconds
    costs = [of_kind[k] for k in sample.kind]
    if sample.layers[sample.kind[-1]] == len(sample.kind) - 1:
        return costs, 0.0  # the last layer alone is of its kind: its time includes the output's
    return costs, max(0.0, last - costs[-1])


async def measure_layers(backend: Backend, path: Path, sample: Sample, cache: str) -> list[float]:
    """Seconds of one token: for each measured layer, then for the last one.

    Cancellation: the layers are freed.
    """
    layers = [*sample.layers, len(sample.kind) - 1]
    return [await _one(backend, path, layer, cache) for layer in layers]


async def _one(backend: Backend, path: Path, layer: int, cache: str) -> float:
    with await open_model(path) as file:
        decoder = await load_decoder(
            backend, file, ctx=CONTEXT, cache=cache, stage=(layer, layer + 1)
        )
        values = np.zeros((1, decoder.model.width), np.float32) if layer else None
        try:
            # The first run does not count: it compiles, and reads the weights from the disk.
            return min([await _run(decoder, i, values) for i in range(RUNS + 1)][1:])
        finally:
            decoder.close()


async def _run(decoder: Decoder, position: int, values: np.ndarray | None) -> float:
    at = np.array([[position]], np.int32)
    batch = Batch((Group(np.zeros_like(at), at, at, 0, decoder.rows_to_read(position)),))
    future = await decoder.queue(batch, 1 if decoder.model.ends else 0, values=values)
    await future
    _, started, done = future.times
    assert started is not None
    assert done is not None
    return done - started
