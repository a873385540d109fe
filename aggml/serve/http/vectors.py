"""Embeddings in the form of an answer: shortened, as numbers or as base64.

Not here: computing them (aggml.models).
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from aggml.models.decoder import F32

__all__ = ["base64_of", "numbers_of", "shortened"]


def shortened(vector: F32, dimensions: int | None) -> F32:
    """The first ``dimensions`` numbers of a vector, normalized to length 1 again."""
    if dimensions is None or dimensions == len(vector):
        return vector
    kept = vector[:dimensions]
    length = float(np.linalg.norm(kept))
    return kept if length == 0 else kept / np.float32(length)


def numbers_of(vector: F32) -> msgspec.Raw:
    """A list of numbers for JSON."""
    return msgspec.Raw(msgspec.json.encode(vector.tolist()))  # 0.05 ms for 384 numbers


def base64_of(vector: F32) -> str:
    """The vector as base64 of little-endian float32, as OpenAI's clients ask for it."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
