"""bert: also sentence-transformers, bge, e5 and xlm-roberta, whose files name this architecture."""

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
    layers = [EncoderLayer(None, None, "gelu")] * hp.integer("block_count")
    return encoder_of(hp, layers, positions=True)


ARCHITECTURE = Architecture(("bert",), describe)
