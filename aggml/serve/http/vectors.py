"""Embeddings in the form of an answer: as numbers or as base64.

Not here: computing them (`Model.embed_ids`).
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

__all__ = ["base64_of", "numbers_of"]


def numbers_of(vector: F32) -> msgspec.Raw:
    """A list of numbers for JSON."""
    return msgspec.Raw(msgspec.json.encode(vector.tolist()))  # 0.05 ms for 384 numbers


def base64_of(vector: F32) -> str:
    """The vector as base64 of little-endian float32, as OpenAI's clients ask for it."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
