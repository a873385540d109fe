"""jina-bert-v3: BERT with rotary positions instead of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import encoder_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layer = EncoderLayer(rope_of(hp, "neox"), None, "gelu")
    return encoder_of(hp, [layer] * layers_of(hp))


ARCHITECTURE = Architecture(("jina-bert-v3",), describe)
