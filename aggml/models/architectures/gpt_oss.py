"""gpt-oss: experts of mxfp4 with biases, a sink for each head, a window in every other layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, experts_of, rope_of, windowed

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, window = hp.integer("block_count"), hp.integer("attention.sliding_window")
    rope = rope_of(hp, "neox")
    net = experts_of(hp, activation="swiglu_oai", weights="chosen")
    mixers = (
        attention_of(hp, rope, i, sinks=True, window=window if near else None)
        for i, near in enumerate(windowed(hp, layers, 2))
    )
    return description_of(
        hp, [Layer(mixer, net, before_feed_forward="post_attention_norm") for mixer in mixers]
    )


ARCHITECTURE = Architecture(("gpt-oss",), describe)
