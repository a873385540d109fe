"""nomic-bert: BERT with rotary positions, a gated net, and one matrix for queries, keys, values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture
from aggml.models.encoding.description import EncoderDescription, EncoderLayer
from aggml.models.reading import encoder_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layer = EncoderLayer(rope_of(hp, "neox"), None, "gated silu")
    return encoder_of(hp, [layer] * hp.integer("block_count"))


ARCHITECTURE = Architecture(("nomic-bert",), describe)
