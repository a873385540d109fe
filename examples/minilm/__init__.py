"""all-MiniLM-L6-v2, a sentence encoder: the names that programs import.

Here: the names. Not here: the model (model.py), its weights (weights.py) and graph (graph.py),
how sentences share a batch (aggml.models.encoder), embedding for many tasks (embedder.py).
"""

from __future__ import annotations

from aggml.models.encoder.packing import F32, Ids, Shape
from minilm.embedder import Embedder, load_tokenizer
from minilm.graph import build
from minilm.model import MiniLM, workers
from minilm.weights import (
    EPS,
    HEADS,
    INNER,
    LAYERS,
    POSITIONS,
    WIDTH,
    ModelError,
    Weights,
    leaves_of,
    model_folder,
    read_safetensors,
)

__all__ = [
    "EPS",
    "F32",
    "HEADS",
    "INNER",
    "LAYERS",
    "POSITIONS",
    "WIDTH",
    "Embedder",
    "Ids",
    "MiniLM",
    "ModelError",
    "Shape",
    "Weights",
    "build",
    "leaves_of",
    "load_tokenizer",
    "model_folder",
    "read_safetensors",
    "workers",
]
