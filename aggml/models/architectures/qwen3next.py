"""qwen3next: three of four layers follow the gated delta rule, the fourth is gated attention.

Every layer has experts, and a net beside them that a sigmoid weighs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import DeltaNet, FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, experts_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    net = experts_of(hp, sum_to_one=True, shared=FeedForward(suffix="_shexp"), shared_gate=True)
    linear = DeltaNet(
        key_heads=hp.integer("ssm.group_count"),
        value_heads=hp.integer("ssm.time_step_rank"),
        head=hp.integer("ssm.state_size"),
        kernel=hp.integer("ssm.conv_kernel"),
    )
    rope, layers = rope_of(hp, "neox"), hp.integer("block_count")
    period = hp.integer("full_attention_interval", 4)
    recurrent = hp.each_layer("attention.recurrent_layers", layers, -1)
    mixers = (
        linear
        if (recurrent[i] > 0 if recurrent[i] >= 0 else (i + 1) % period)
        else attention_of(hp, rope, i, norm="head", gated=True)
        for i in range(layers)
    )
    return description_of(
        hp, [Layer(mixer, net, before_feed_forward="post_attention_norm") for mixer in mixers]
    )


ARCHITECTURE = Architecture(("qwen3next",), describe)
