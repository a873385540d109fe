"""starcoder2: norms that take the mean away, nets without a gate, biases everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, centred_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), FeedForward("gelu", gated=False)
    layers = range(hp.integer("block_count"))
    return centred_of(hp, [Layer(attention_of(hp, rope, i, joined=None), net) for i in layers])


ARCHITECTURE = Architecture(("starcoder2",), describe)
