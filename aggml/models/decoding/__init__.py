"""Decoding: models that continue text, a step at a time.

Here: the names. decoder.py runs steps, step.py builds their graphs, batch.py is what they take in,
generating.py goes from one to the next, sampling.py and adjusting.py choose tokens.
"""

from __future__ import annotations

from aggml.models.decoding.batch import Batch, Group
from aggml.models.decoding.decoder import F32, Best, Decoder
from aggml.models.decoding.generating import Timing, generate
from aggml.models.decoding.sampling import Sampler

__all__ = ["F32", "Batch", "Best", "Decoder", "Group", "Sampler", "Timing", "generate"]


def __dir__() -> list[str]:
    return __all__
