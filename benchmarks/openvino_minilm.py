"""all-MiniLM-L6-v2 in OpenVINO: f32, bf16, and int8 with static scales of activations.

OpenVINO gets the graph that onnxruntime gets, compiled anew for each shape, because it is slower
with shapes that may change. int8 is made by NNCF, OpenVINO's quantizer: it finds the scales of
activations from examples, which here are tokens of the same kind as those that are measured. Not
here: the export of the graph (peers.py), timing (embeddings.py).
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from benchmarks.peers import export_minilm, module, need

if TYPE_CHECKING:
    from benchmarks.peers import Compute

EXAMPLES: Final = 64  # batches that NNCF sees


def openvino(precision: Literal["f32", "bf16", "int8"], threads: int) -> Compute:
    """OpenVINO's CPU plugin, one stream with ``threads`` threads."""
    need("openvino", "onnx", "torch", "transformers")
    ov = module("openvino")
    core = ov.Core()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minilm.onnx"
        export_minilm(path)
        model = ov.convert_model(str(path))
    if precision == "int8":
        model = _quantized(model)
    how = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
    }
    requests: dict[tuple[int, ...], Any] = {}

    def compute(ids: np.ndarray) -> np.ndarray:
        if ids.shape not in requests:
            fixed = model.clone()
            fixed.reshape({"input_ids": ids.shape, "attention_mask": ids.shape})
            requests[ids.shape] = core.compile_model(fixed, "CPU", how).create_infer_request()
        found = requests[ids.shape].infer(_feed(ids))
        return np.array(next(iter(found.values())), np.float32)

    return compute


def _feed(ids: np.ndarray) -> dict[str, np.ndarray]:
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _quantized(model: Any) -> Any:
    need("nncf")
    nncf = module("nncf")
    logging.getLogger("nncf").setLevel(logging.ERROR)
    rng = np.random.default_rng(7)
    examples = []
    for _ in range(EXAMPLES):
        ids = rng.integers(1000, 30000, (1, int(rng.integers(8, 128))))
        ids[:, 0], ids[:, -1] = 101, 102  # [CLS], [SEP]
        examples.append(_feed(ids))
    return nncf.quantize(
        model,
        nncf.Dataset(examples),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=EXAMPLES,
    )
