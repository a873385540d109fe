"""Encoding: models that make vectors of whole texts: BERT and its like.

Here: the names. description.py says how one is built, graph.py builds the graph of a batch,
encoder.py runs it, packing.py lays texts side by side. Not here: what users hold
(../encoder_model.py).
"""

from __future__ import annotations

from aggml.models.encoding.description import EncoderDescription, EncoderLayer
from aggml.models.encoding.encoder import Encoder

__all__ = ["Encoder", "EncoderDescription", "EncoderLayer"]


def __dir__() -> list[str]:
    return __all__
