"""jais: Jais; LayerNorms, ALiBi, products of queries and keys divided by the length of a head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, head_length, layer_norm_description_of, layers_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    slope = hp.number("attention.max_alibi_bias", 0.0, least=0.0)
    scale = 1 / head_length(hp)
    mixers = (
        attention_of(hp, None, i, joined=True, slope=slope, scale=scale)
        for i in range(layers_of(hp))
    )
    return layer_norm_description_of(hp, [Layer(mixer, FeedForward()) for mixer in mixers])


ARCHITECTURE = Architecture(("jais",), describe)
