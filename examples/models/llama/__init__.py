"""Llama-architecture models (llama, qwen2, qwen3) of GGUF files: the names that programs import.

Here: the names. Not here: the model and its cache (model.py), the file (file.py), what one step
takes in (batch.py), the graph of a step (graph.py).
"""

from __future__ import annotations

from models.llama.batch import Batch, Group
from models.llama.file import Config, ModelError, open_model
from models.llama.model import F32, KV_STEP, Best, Llama

__all__ = [
    "F32", "KV_STEP", "Batch", "Best", "Config", "Group", "Llama", "ModelError", "open_model",
]  # fmt: skip
