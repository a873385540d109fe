"""Voice: the probability that somebody speaks, of windows of 32 ms (Silero's detector).

A window has 512 samples at 16 kHz, and 64 of the window before it. A Fourier transform of four
frames, four convolutions, and an LSTM whose state goes on from window to window. Because a window
always has four frames, each convolution is one matrix. Not here: where speech begins and ends
(spans.py), the public object (../voice_model.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from anyio import to_thread

import aggml
from aggml import DType, Graph, ops
from aggml.models.checkpoints.safetensors import SafeTensors
from aggml.models.errors import ModelError
from aggml.models.lifetime import Lifetime
from aggml.models.memory import Parts
from aggml.models.site import CLOSED, site_of, unplace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from aggml import Backend, Scheduler, Tensor

    F32 = npt.NDArray[np.float32]

__all__ = [
    "VOICE",
    "WINDOW",
    "VoiceDetector",
    "VoiceState",
    "is_voice_file",
    "load_voice",
    "plan_voice",
    "read_voice_file",
]

VOICE: Final = "silero-vad"  # the architecture
WINDOW: Final = 512  # samples
BEFORE: Final = 64  # samples of the window before
HOP: Final = 128  # samples from a frame to the next
SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "stft_conv.weight": (258, 1, 256),
    "conv1.weight": (128, 129, 3), "conv1.bias": (128,),
    "conv2.weight": (64, 128, 3), "conv2.bias": (64,),
    "conv3.weight": (64, 64, 3), "conv3.bias": (64,),
    "conv4.weight": (128, 64, 3), "conv4.bias": (128,),
    "lstm_cell.weight_ih": (512, 128), "lstm_cell.bias_ih": (512,),
    "lstm_cell.weight_hh": (512, 128), "lstm_cell.bias_hh": (512,),
    "final_conv.weight": (1, 128, 1), "final_conv.bias": (1,),
}  # fmt: skip
WIDTH: Final = 128  # elements of the LSTM's state
SIZE: Final = WIDTH * 4  # bytes of it
BINS: Final = 129  # of the transform
SEVERAL: Final = 16  # windows that are computed together when there are as many


def is_voice_file(path: Path) -> bool:
    """Whether a file is a detector of this sort, by the names of its tensors."""
    if path.suffix != ".safetensors" or not path.is_file():
        return False
    return {"stft_conv.weight", "lstm_cell.weight_ih"} <= SafeTensors.open(path).stored.keys()


def read_voice_file(path: Path) -> dict[str, F32]:
    """The matrices that the graphs use, by name.

    Raises:
        ModelError: a tensor is missing, or has another shape.
    """
    file = SafeTensors.open(path)
    raw: dict[str, F32] = {}
    for name, shape in SHAPES.items():
        if name not in file.stored:
            raise ModelError(f"the file has no tensor {name!r}")
        if file.stored[name].shape != shape or file.stored[name].dtype.kind not in "fV":
            raise ModelError(
                f"tensor {name!r} is {file.stored[name].dtype} of the shape "
                f"{file.stored[name].shape}, expected floats of {shape}"
            )
        raw[name] = file[name].astype(np.float32)
    found = {"stft": raw["stft_conv.weight"][:, 0]}
    for i, (frames, stride) in enumerate(((4, 1), (4, 2), (2, 2), (1, 1)), 1):
        weight = raw[f"conv{i}.weight"]
        matrix = _dense(weight, frames, stride)
        found[f"conv{i}"] = matrix
        found[f"conv{i}.bias"] = np.tile(raw[f"conv{i}.bias"], len(matrix) // len(weight))
    found["input"] = raw["lstm_cell.weight_ih"]
    found["state"] = raw["lstm_cell.weight_hh"]
    found["lstm.bias"] = raw["lstm_cell.bias_ih"] + raw["lstm_cell.bias_hh"]
    found["final"] = raw["final_conv.weight"][:, :, 0]
    found["final.bias"] = raw["final_conv.bias"]
    return found


def _dense(weight: F32, frames: int, stride: int) -> F32:
    """A convolution over so many frames, padded by one on each side, as a matrix."""
    outputs, inputs, taps = weight.shape
    steps = (frames - 1) // stride + 1
    found = np.zeros((steps, outputs, frames, inputs), np.float32)
    for step in range(steps):
        for tap in range(taps):
            frame = step * stride + tap - 1
            if 0 <= frame < frames:
                found[step, :, frame] = weight[:, :, tap]
    return found.reshape(steps * outputs, frames * inputs)


@dataclass(slots=True)
class VoiceState:
    """What the detector knows of the sound so far.

    Attributes:
        hidden, cell: of the LSTM.
        before: the last samples of the window before.
    """

    hidden: F32
    cell: F32
    before: F32

    @classmethod
    def new(cls) -> VoiceState:
        """The state before a sound begins."""
        return cls(*(np.zeros(n, np.float32) for n in (WIDTH, WIDTH, BEFORE)))


@dataclass(frozen=True, slots=True)
class _Program:
    """The graph for some number of successive windows of one sound."""

    graph: Graph
    frames: Tensor
    hidden: Tensor
    cell: Tensor
    outputs: Sequence[Tensor]  # a probability of each window, then the state


class VoiceDetector:
    """The part that computes."""

    def __init__(self, backend: Backend | Scheduler, matrices: dict[str, F32]) -> None:
        self._site = site_of(backend)
        self._matrices = matrices
        self._weights: dict[str, Tensor] = {}
        self._programs: dict[int, _Program] = {}
        self.lifetime: Lifetime = Lifetime(self._free)

    def close(self) -> None:
        """Free weights and graphs when nobody uses them."""
        self.lifetime.close()

    def parts(self) -> Parts:
        """What it has, for `Model.memory`."""
        return Parts(self._site, self._weights.values())

    def _free(self) -> None:
        for program in self._programs.values():
            self._site.forget(program.graph)
        self._programs.clear()
        unplace(self._weights.values())
        self._weights.clear()
        self._site = CLOSED

    async def prepare(self) -> None:
        """Bring the weights to the backend, and compile the graphs."""
        host = self._site.host
        self._weights = _tensors_of(self._matrices)
        host.alloc([*self._weights.values()]).usage = aggml.BufferUsage.WEIGHTS
        for name, x in self._matrices.items():
            await host.set(self._weights[name], np.ascontiguousarray(x))
        self._matrices = {}
        for n in (1, SEVERAL):
            program = self._programs[n] = _program_of(self._weights, n)
            await self._site.prepare(program.graph)

    async def hear(self, state: VoiceState, samples: F32) -> F32:
        """The probability of each window of samples, a multiple of `WINDOW`; changes the state.

        Cancellation: aborts the computation; the state is that of the last window computed.
        """
        found = np.empty(len(samples) // WINDOW, np.float32)
        at = 0
        while at < len(found):
            n = SEVERAL if len(found) - at >= SEVERAL else 1
            piece = samples[at * WINDOW : (at + n) * WINDOW]
            found[at : at + n] = await self._hear(state, piece, n)
            at += n
        return found

    async def _hear(self, state: VoiceState, samples: F32, n: int) -> list[float]:
        with self.lifetime.use("VoiceDetector"):
            program = self._programs[n]
            inputs: dict[Tensor, Any] = {
                program.frames: _frames(np.concatenate([state.before, samples]), n),
                program.hidden: state.hidden,
                program.cell: state.cell,
            }
            *found, hidden, cell = await self._site.run(program.graph, inputs, program.outputs)
        state.hidden, state.cell = hidden.reshape(-1), cell.reshape(-1)
        state.before = samples[-BEFORE:]
        return [float(x.reshape(-1)[0]) for x in found]


def _tensors_of(matrices: Mapping[str, F32]) -> dict[str, Tensor]:
    """A tensor for each matrix, which is not placed."""
    found = {}
    for name, x in matrices.items():
        ne = (x.shape[1], x.shape[0]) if x.ndim == 2 else (len(x),)
        found[name] = aggml.new_tensor(DType.F32, ne=ne, name=name)
    return found


def plan_voice(path: Path) -> tuple[dict[str, Tensor], list[Graph]]:
    """The weights of a detector, not placed, and its graphs: what it will take.

    Raises:
        ModelError: a tensor is missing, or has another shape.
    """
    weights = _tensors_of(read_voice_file(path))
    return weights, [_program_of(weights, n).graph for n in (1, SEVERAL)]


def _program_of(weights: Mapping[str, Tensor], n: int) -> _Program:
    """The graph of so many windows."""

    def layer(name: str, x: Tensor) -> Tensor:
        return ops.relu(ops.add(ops.mul_mat(weights[name], x), weights[f"{name}.bias"]))

    frames = aggml.new_tensor(DType.F32, ne=(256, 4 * n), name="frames").set_input()
    hidden = aggml.new_tensor(DType.F32, ne=(WIDTH,), name="hidden").set_input()
    cell = aggml.new_tensor(DType.F32, ne=(WIDTH,), name="cell").set_input()
    waves = ops.mul_mat(weights["stft"], frames)
    real = ops.view_2d(waves, BINS, 4 * n, waves.nb[1], 0)
    imaginary = ops.view_2d(waves, BINS, 4 * n, waves.nb[1], BINS * 4)
    power = ops.add(ops.sqr(ops.cont(real)), ops.sqr(ops.cont(imaginary)))
    x = ops.reshape_2d(ops.sqrt(power), 4 * BINS, n)
    for i in range(1, 5):
        x = layer(f"conv{i}", x)
    gates = ops.add(ops.mul_mat(weights["input"], x), weights["lstm.bias"])
    h, c, outputs = hidden, cell, list[aggml.Tensor]()
    for i in range(n):
        one = ops.view_1d(gates, 4 * WIDTH, i * gates.nb[1])
        one = ops.add(one, ops.mul_mat(weights["state"], h))
        enter, forget, new, leave = (ops.view_1d(one, WIDTH, k * SIZE) for k in range(4))
        c = ops.add(ops.mul(ops.sigmoid(forget), c), ops.mul(ops.sigmoid(enter), ops.tanh(new)))
        h = ops.mul(ops.sigmoid(leave), ops.tanh(c))
        spoken = ops.add(ops.mul_mat(weights["final"], ops.relu(h)), weights["final.bias"])
        outputs.append(ops.sigmoid(spoken).set_output())
    outputs += [h.set_output(), c.set_output()]
    return _Program(Graph(*outputs), frames, hidden, cell, tuple(outputs))


def _frames(samples: F32, n: int) -> F32:
    """Four frames of each window; behind a window stand its last samples in reverse."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW + BEFORE)[::WINDOW]
    padded = np.concatenate([windows, windows[:, -2 : -BEFORE - 2 : -1]], axis=1)
    found = np.lib.stride_tricks.sliding_window_view(padded, 256, axis=1)[:, ::HOP]
    return np.ascontiguousarray(found).reshape(4 * n, 256)


async def load_voice(
    backend: Backend | Scheduler,
    path: Path,
    progress: Callable[[int, int], None] | None = None,
) -> VoiceDetector:
    """A detector on a backend, ready to hear.

    Args:
        backend: where to compute.
        path: of the file.
        progress: called with bytes loaded so far and bytes in all.

    Raises:
        ModelError: a tensor is missing, or has another shape.
    """
    matrices = await to_thread.run_sync(read_voice_file, path)
    detector = VoiceDetector(backend, matrices)
    try:
        await detector.prepare()
        if progress is not None:
            total = sum(x.nbytes for x in matrices.values())
            progress(total, total)
    except BaseException:
        detector.close()
        raise
    return detector
