"""gemma: llama with gelu, and embeddings times the square root of the width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), FeedForward("gelu")
    layers = [Layer(attention_of(hp, rope, i), net) for i in range(hp.integer("block_count"))]
    return description_of(hp, layers, embedding_scale=math.sqrt(hp.integer("embedding_length")))


ARCHITECTURE = Architecture(("gemma",), describe)
