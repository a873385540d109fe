"""Encoding: models that make vectors of whole texts, such as BERT.

Here: the names. description.py says how a model is built, graph.py builds the graph of a batch,
encoder.py runs it, packing.py packs several texts into a row. Not here: the public object
(../encoder_model.py).
"""

from __future__ import annotations

from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.encoder.encoder import Encoder

__all__ = ["Encoder", "EncoderDescription", "EncoderLayer"]


def __dir__() -> list[str]:
    return __all__
