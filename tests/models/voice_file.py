"""A detector of speech with random weights, in the shapes of Silero's, and a sound for it.

Not here: the tests (test_voice.py), the recorded results (voice.npz, benchmarks/make_voice.py).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from aggml.models.speech.voice import SHAPES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]


def random_weights() -> dict[str, F32]:
    """Tensors by the names of the file; always the same ones."""
    rng = np.random.default_rng(5)
    found: dict[str, F32] = {}
    for name, shape in SHAPES.items():
        size = float(np.prod(shape[1:])) if len(shape) > 1 else 4.0
        found[name] = (2 * rng.standard_normal(shape) / np.sqrt(size)).astype(np.float32)
    # so that probabilities of silence and of tones are on different sides of 0.5
    found["final_conv.weight"] *= 12
    found["final_conv.bias"][:] = -3.5
    return found


@functools.cache
def sound() -> F32:
    """Three seconds of tones and noise that come and go, 16 kHz, read-only."""
    rng = np.random.default_rng(6)
    t = np.arange(48000 + 200) / 16000
    tones = np.sin(2 * np.pi * 180 * t) + np.sin(2 * np.pi * 1300 * t)
    loud = np.sin(2 * np.pi * 0.7 * t) > 0
    found: F32 = (0.2 * loud * tones + 0.02 * rng.standard_normal(len(t))).astype(np.float32)
    found.flags.writeable = False
    return found


def write(path: Path, **changes: Any) -> Path:
    """The file; a change of None leaves a tensor out."""
    tensors = {**random_weights(), **{k.replace("__", "."): v for k, v in changes.items()}}
    save_file({k: v for k, v in tensors.items() if v is not None}, path)
    return path
