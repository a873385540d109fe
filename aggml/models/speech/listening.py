"""Listener: runs the encoder of a model of speech.

From windows of a spectrogram it computes the keys and values to which the decoder's layers attend,
and writes them to the decoder's caches, once for each window, with a mask: a window that is shorter
than the model's has fewer rows, and the decoder reads no others. Not here: the layers
(../encoder/graph.py, ../blocks/cross.py), the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import numpy as np
from anyio.lowlevel import checkpoint

import aggml
from aggml import DType, Graph, ops
from aggml.models.blocks.cross import CrossAttention, MemoryRows
from aggml.models.encoder.graph import Nodes
from aggml.models.encoder.packing import PackingShape
from aggml.models.lifetime import Lifetime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from aggml import Tensor
    from aggml.models.decoder.decoder import Decoder
    from aggml.models.description import SpeechDescription
    from aggml.models.memory import Parts

    F32 = npt.NDArray[np.float32]

__all__ = ["Listener", "encode_sound", "frames_for", "rows_to_write", "write_memories"]

PARTS: Final = 20  # shorter windows have so many twentieths of 30 s: 1.5 s,
FEWEST: Final = 4  # and at least 6 s


@dataclass(frozen=True, slots=True)
class _Program:
    """The graph for some number of windows of one length, and its inputs."""

    graph: Graph
    mel: Tensor
    at: MemoryRows


def _convolve(
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


async def encode_sound(
    model: SpeechDescription, weights: Mapping[str, Tensor], mel: Tensor
) -> Tensor:
    """The encoder's nodes: windows [frames, bands, windows] -> [width, frames / 2 * windows]."""
    audio, windows = model.audio, mel.ne[2]
    x, n = _convolve(weights, "enc.conv1", mel, 1)
    x = ops.reshape_3d(x, audio.width, n, windows)
    x, n = _convolve(weights, "enc.conv2", ops.cont(ops.transpose(x)), 2)
    x = ops.reshape_3d(x, audio.width, n, windows)
    table = weights["enc.position_embd.weight"]
    if n < table.ne[1]:  # a shorter window
        table = ops.view_2d(table, audio.width, n, table.nb[1], 0)
    x = ops.add(x, table)
    x = ops.reshape_2d(x, audio.width, n * windows)
    shape = PackingShape(windows, n, 1, masked=False)
    nodes = Nodes(audio, weights, {None: None}, None, shape, "enc.")
    for i, layer in enumerate(audio.layers):
        x = nodes.layer(i, layer, x)
        await checkpoint()
    return nodes.norm("enc.output_norm", x)


def frames_for(least: int, most: int) -> int:
    """The frames of the shortest window that has ``least`` of them, where ``most`` fill a window.

    The shorter ones are some twentieths of it, as each length has a graph. They have an even number
    of frames, of which the encoder makes half as many rows.
    """
    if most % (2 * PARTS):
        return most
    part = most // PARTS
    return min(max(-(-least // part), FEWEST) * part, most)


def rows_to_write(n: int, windows: int, most: int) -> MemoryRows:
    """Inputs for ``windows`` windows of ``n`` rows each, where a sequence has ``most`` of them."""
    rows, sequences = (
        aggml.new_tensor(DType.I32, ne=(size,), name=name).set_input()
        for size, name in ((n * windows, "rows"), (windows, "sequences"))
    )
    mask = aggml.new_tensor(DType.F32, ne=(most, windows), name="mask").set_input()
    return MemoryRows(rows, mask, sequences)


def write_memories(
    weights: Mapping[str, Tensor],
    layers: Sequence[Mapping[str, Tensor]],
    x: Tensor,
    at: MemoryRows,
) -> list[Tensor]:
    """The nodes that write the keys and values of ``x`` to the caches of all layers."""
    written: list[Tensor] = []
    for i, caches in enumerate(layers):
        written += CrossAttention.write_memory(weights, f"blk.{i}.", caches, x, at)
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
        self._programs: dict[tuple[int, int], _Program] = {}  # by frames and windows
        #: Functions that free what others keep on the decoder's device.
        self.freed: list[Callable[[], object]] = []
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
        for free in self.freed:
            free()
        self.freed.clear()
        self._decoder.close()

    async def listen(self, windows: Sequence[F32], slots: Sequence[int] | None = None) -> None:
        """Encode windows, each (bands, frames), for the decoder's sequences.

        Args:
            windows: their spectrograms, whose frames are those that `frames_for` gives.
            slots: the sequence of each; None: 0, 1, ...

        Cancellation: aborts the computation; the keys and values of these sequences are undefined.
        """
        slots = range(len(windows)) if slots is None else slots
        # Whole windows go together. Shorter ones are encoded one by one: together they took as long
        # on a CPU, and each number of windows of each length would have a graph.
        whole = []
        with self.lifetime.use("Listener"):
            for mel, slot in zip(windows, slots, strict=True):
                if mel.shape[1] == self.frames:
                    whole.append((mel, slot))
                else:
                    await self._encode(mel.shape[1], [(mel, slot)])
            if whole:
                await self._encode(self.frames, whole)

    async def _encode(self, frames: int, windows: Sequence[tuple[F32, int]]) -> None:
        """Encode windows of ``frames`` frames, each for a sequence."""
        key = frames, len(windows)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = await self._program(*key)
        kept, n = self.model.audio.context_length, frames // 2
        slots = np.array([slot for _, slot in windows], np.int32)
        mask = np.zeros((len(windows), kept), np.float32)
        mask[:, n:] = -np.inf
        mels = [mel for mel, _ in windows]
        # Copying them takes milliseconds, which other tasks of the loop should not wait for.
        mel = mels[0][None] if len(mels) == 1 else await anyio.to_thread.run_sync(np.stack, mels)
        inputs: dict[Tensor, npt.ArrayLike] = {
            program.mel: mel,
            program.at.rows: (slots[:, None] * kept + np.arange(n, dtype=np.int32)).reshape(-1),
            program.at.mask: mask,
            program.at.sequences: slots,
        }
        await self._decoder.site.run(program.graph, inputs)

    async def _program(self, frames: int, windows: int) -> _Program:
        weights = self._decoder.weights
        mel = aggml.new_tensor(DType.F32, ne=(frames, self.model.bands, windows), name="mel")
        at = rows_to_write(frames // 2, windows, self.model.audio.context_length)
        x = await encode_sound(self.model, weights, mel.set_input())
        graph = Graph(*write_memories(weights, self._decoder.caches.layers, x, at))
        await self._decoder.site.prepare(graph)
        return _Program(graph, mel, at)
