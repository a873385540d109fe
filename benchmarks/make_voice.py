"""Records tests/models/voice.npz: probabilities of Silero's own ONNX graph with some weights.

    python -m benchmarks.make_voice silero_vad_16k_op15.onnx WEIGHTS/silero_vad_16k.safetensors \
        WEIGHTS/a13.wav

The package's ONNX file and its safetensors file hold weights of two different trainings. So the
graph of the one is run with the weights of the other, and with random ones. Needs onnx and
onnxruntime. Not here: the test (tests/models/test_voice.py).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models import read_wav
from aggml.models.checkpoints.safetensors import SafeTensors

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parent.parent
RECORD: Final = ROOT / "tests" / "models" / "voice.npz"
NAMES: Final = {
    "model.stft.forward_basis_buffer": "stft_conv.weight",
    **{
        f"model.encoder.{i}.reparam_conv.{part}": f"conv{i + 1}.{part}"
        for i in range(4)
        for part in ("weight", "bias")
    },
    **{
        f"model.decoder.rnn.{part}": f"lstm_cell.{part}"
        for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    },
    "model.decoder.decoder.2.weight": "final_conv.weight",
    "model.decoder.decoder.2.bias": "final_conv.bias",
}


def probabilities(graph: Path, weights: Mapping[str, Any], samples: Any) -> Any:
    """What onnxruntime gives for each window of a sound."""
    import onnx
    import onnxruntime

    model = onnx.load(graph)
    left = set(NAMES)
    for initializer in model.graph.initializer:
        if initializer.name in NAMES:
            value = np.array(weights[NAMES[initializer.name]], np.float32)
            initializer.CopyFrom(onnx.numpy_helper.from_array(value, initializer.name))
            left.discard(initializer.name)
    assert not left, left
    session = onnxruntime.InferenceSession(model.SerializeToString())
    state, before = np.zeros((2, 1, 128), np.float32), np.zeros((1, 64), np.float32)
    found = []
    for first in range(0, len(samples) - 511, 512):
        window = samples[None, first : first + 512]
        inputs = {
            "input": np.concatenate([before, window], axis=1), "state": state,
            "sr": np.array(16000, np.int64),
        }  # fmt: skip
        spoken, state = session.run(None, inputs)
        found.append(spoken[0, 0])
        before = window[:, -64:]
    return np.array(found, np.float32)


def main(graph: Path, weights: Path, recording: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from models.voice_file import random_weights, sound

    file = SafeTensors.open(weights)
    trained = {name: file[name] for name in file.stored}
    spoken, _ = read_wav(recording.read_bytes())
    np.savez_compressed(
        RECORD,
        trained=probabilities(graph, trained, spoken),
        random=probabilities(graph, random_weights(), sound()),
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
