"""Listener: runs the encoder of a model of speech.

From windows of a spectrogram it computes the keys and values to which the decoder's layers attend,
and writes them to the decoder's caches, once for each window. Not here: the layers
(../encoder/graph.py, ../blocks/cross.py), the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from anyio.lowlevel import checkpoint

import aggml
from aggml import DType, Graph, ops
from aggml.models.blocks.cross import CrossAttention
from aggml.models.encoder.graph import Nodes
from aggml.models.encoder.packing import PackingShape
from aggml.models.lifetime import Lifetime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from aggml import Tensor
    from aggml.models.decoder.decoder import Decoder
    from aggml.models.description import SpeechDescription
    from aggml.models.memory import Parts

    F32 = npt.NDArray[np.float32]

__all__ = ["Listener", "heard", "memorized"]


@dataclass(frozen=True, slots=True)
class _Program:
    """The graph for some number of windows, and its inputs."""

    graph: Graph
    mel: Tensor
    rows: Tensor


def _convolved(
    weights: Mapping[str, Tensor], name: str, x: Tensor, stride: int
) -> tuple[Tensor, int]:
    """A convolution over three frames and GELU.

    [frames, channels, windows] -> [width, frames / stride * windows]; also returns frames / stride.
    """
    kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    element = kernel.dtype if kernel.dtype in (DType.F16, DType.F32) else DType.F32
    rows = ops.im2col(kernel, x, stride, 0, 1, 0, 1, 0, False, element)
    flat = ops.reshape_2d(kernel, kernel.ne[0] * kernel.ne[1], kernel.ne[2])
    y = ops.mul_mat(flat, ops.reshape_2d(rows, rows.ne[0], rows.ne[1] * rows.ne[2]))
    bias = ops.reshape_1d(bias, kernel.ne[2])
    return ops.gelu_erf(ops.add(y, bias)), rows.ne[1]


async def heard(model: SpeechDescription, weights: Mapping[str, Tensor], mel: Tensor) -> Tensor:
    """The encoder's nodes: windows [frames, bands, windows] -> [width, frames / 2 * windows]."""
    audio, windows = model.audio, mel.ne[2]
    x, n = _convolved(weights, "enc.conv1", mel, 1)
    x = ops.reshape_3d(x, audio.width, n, windows)
    x, n = _convolved(weights, "enc.conv2", ops.cont(ops.transpose(x)), 2)
    x = ops.reshape_3d(x, audio.width, n, windows)
    x = ops.add(x, weights["enc.position_embd.weight"])
    x = ops.reshape_2d(x, audio.width, n * windows)
    shape = PackingShape(windows, n, 1, masked=False)
    nodes = Nodes(audio, weights, {None: None}, None, shape, "enc.")
    for i, layer in enumerate(audio.layers):
        x = nodes.layer(i, layer, x)
        await checkpoint()
    return nodes.norm("enc.output_norm", x)


def memorized(
    weights: Mapping[str, Tensor], layers: Sequence[Mapping[str, Tensor]], x: Tensor, rows: Tensor
) -> list[Tensor]:
    """The nodes that write the keys and values of ``x`` to ``rows`` of the caches of all layers."""
    written: list[Tensor] = []
    for i, caches in enumerate(layers):
        written += CrossAttention.memorized(weights, f"blk.{i}.", caches, x, rows)
    return written


class Listener:
    """The encoder.

    Args:
        model: the description of the model.
        decoder: its caches keep the results, those of one window in each sequence.
    """

    def __init__(self, model: SpeechDescription, decoder: Decoder) -> None:
        self.model = model
        self.frames: int = 2 * model.audio.context_length
        self._decoder = decoder
        self._programs: dict[int, _Program] = {}
        self.lifetime: Lifetime = Lifetime(self._free)

    def close(self) -> None:
        """Free the graphs and close the decoder; later windows raise InvalidState.

        If windows are being encoded, all memory is freed when that is done.
        """
        self.lifetime.close()

    def parts(self) -> Parts:
        """What it has, for `Model.memory`."""
        return self._decoder.parts()

    def _free(self) -> None:
        for program in self._programs.values():
            self._decoder.site.forget(program.graph)
        self._programs.clear()
        self._decoder.close()

    async def listen(self, windows: Sequence[F32], slots: Sequence[int] | None = None) -> None:
        """Encode windows, each (bands, frames), for the decoder's sequences.

        Args:
            windows: their spectrograms.
            slots: the sequence of each; None: 0, 1, ...

        Cancellation: aborts the computation; the keys and values of these sequences are undefined.
        """
        n, kept = len(windows), self.model.audio.context_length
        with self.lifetime.use("Listener"):
            program = self._programs.get(n)
            if program is None:
                program = self._programs[n] = await self._program(n)
            firsts = np.arange(n) if slots is None else np.asarray(slots)
            rows = (firsts[:, None] * kept + np.arange(kept)).astype(np.int32).reshape(-1)
            mel = np.stack(list(windows))
            site = self._decoder.site
            await site.run(program.graph, {program.mel: mel, program.rows: rows})

    async def _program(self, n: int) -> _Program:
        weights = self._decoder.weights
        kept = self.model.audio.context_length
        mel = aggml.new_tensor(DType.F32, ne=(self.frames, self.model.bands, n), name="mel")
        rows = aggml.new_tensor(DType.I32, ne=(n * kept,), name="rows").set_input()
        x = await heard(self.model, weights, mel.set_input())
        graph = Graph(*memorized(weights, self._decoder.caches.layers, x, rows))
        await self._decoder.site.prepare(graph)
        return _Program(graph, mel, rows)
