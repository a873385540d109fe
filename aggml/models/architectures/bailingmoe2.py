"""bailingmoe2: Ling 2; queries, keys and values in one matrix, groups of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    nets_of,
    rope_of,
    routed_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox")
    nets = nets_of(hp, routed_of(hp, shared=FeedForward(suffix="_shexp")))
    mixers = (attention_of(hp, rope, i, norm="head", joined=True) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


ARCHITECTURE = Architecture(("bailingmoe2",), describe)
