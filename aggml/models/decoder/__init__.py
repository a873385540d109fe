"""Decoding: models that continue text, a step at a time.

A decoding step is one pass over the weights with some tokens of some sequences. decoder.py runs
steps, step.py builds their graphs, batch.py holds their inputs, sampling.py and adjusting.py choose
tokens. Here: the names. Not here: who decides which steps there are (../engine/).
"""

from __future__ import annotations

from aggml.models.decoder.batch import Batch, Best, Group
from aggml.models.decoder.decoder import F32, Decoder
from aggml.models.decoder.sampling import Sampler

__all__ = ["F32", "Batch", "Best", "Decoder", "Group", "Sampler"]


def __dir__() -> list[str]:
    return __all__
