"""jina-bert-v2: BERT whose positions count by distance (ALiBi), with a gated net."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture
from aggml.models.encoding.description import EncoderDescription, EncoderLayer
from aggml.models.reading import encoder_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layer = EncoderLayer(None, None, "gated gelu")
    return encoder_of(hp, [layer] * hp.integer("block_count"), distance_bias=8.0)


ARCHITECTURE = Architecture(("jina-bert-v2",), describe)
