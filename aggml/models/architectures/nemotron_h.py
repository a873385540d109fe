"""nemotron_h and nemotron_h_moe: each layer is a scan of Mamba 2, attention, or a net."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import Alone, FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    LARGEST_EPS,
    attention_of,
    description_of,
    layers_of,
    mamba2_of,
    routed_of,
)

if TYPE_CHECKING:
    from aggml.models.description import Block
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, scan = layers_of(hp), mamba2_of(hp)
    heads = hp.each_layer("attention.head_count_kv", layers)
    inner = hp.each_layer("feed_forward_length", layers)
    net: Block = FeedForward("relu_sqr", gated=False)
    if hp.integer("expert_count", 0):
        shared = FeedForward("relu_sqr", gated=False, suffix="_shexp")
        net = routed_of(
            hp,
            "sigmoid",
            activation="relu_sqr",
            gated=False,
            latent=hp.integer("moe_latent_size", 0) > 0,
            shared=shared,
        )
    mixers = (
        Alone(net) if n else attention_of(hp, None, i) if heads[i] else scan
        for i, n in enumerate(inner)
    )
    eps = hp.number("attention.layer_norm_epsilon", 1e-5, least=0.0, most=LARGEST_EPS)
    eps = hp.number("attention.layer_norm_rms_epsilon", eps, least=0.0, most=LARGEST_EPS)
    return description_of(hp, [Layer(mixer, None) for mixer in mixers], eps=eps)


ARCHITECTURE = Architecture(("nemotron_h", "nemotron_h_moe"), describe)
