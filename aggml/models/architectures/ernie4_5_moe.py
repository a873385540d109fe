"""ernie4_5-moe: ernie4_5 with experts, and a shared net, in most layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    layers_of,
    nets_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "normal")
    inner = hp.integer("expert_shared_feed_forward_length", 0)
    shared = FeedForward(suffix="_shexp") if inner else None
    experts = experts_of(hp, sum_to_one=True, shared=shared)
    nets = nets_of(hp, experts, hp.integer("interleave_moe_layer_step", least=1))
    mixers = (attention_of(hp, rope, i) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


ARCHITECTURE = Architecture(("ernie4_5-moe",), describe)
