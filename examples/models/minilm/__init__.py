"""all-MiniLM-L6-v2, a sentence encoder: the names that programs import.

Here: the names. Not here: the model (model.py), which sentence lies where in a batch (packing.py).
"""

from __future__ import annotations

from models.minilm.model import (
    EPS,
    HEADS,
    INNER,
    LAYERS,
    POSITIONS,
    WIDTH,
    MiniLM,
    ModelError,
    Weights,
    build,
    lanes,
    leaves_of,
    model_folder,
    read_safetensors,
)
from models.minilm.packing import F32, Ids, Shape

__all__ = [
    "EPS",
    "F32",
    "HEADS",
    "INNER",
    "LAYERS",
    "POSITIONS",
    "WIDTH",
    "Ids",
    "MiniLM",
    "ModelError",
    "Shape",
    "Weights",
    "build",
    "lanes",
    "leaves_of",
    "model_folder",
    "read_safetensors",
]
