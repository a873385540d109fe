"""deepseek2: latent attention, a few dense layers, then experts and a net beside them.

Also DeepSeek-V3, R1, Kimi-K2 and others whose files name this architecture.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward, LatentAttention
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import description_of, experts_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

GATINGS: Final = {0: "softmax", 1: "softmax", 2: "sigmoid"}


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: a way of weighing experts that is not known.
    """
    gating = hp.integer("expert_gating_func", 0)
    if gating not in GATINGS:
        raise ModelError(
            f"deepseek2.expert_gating_func is {gating}, not 1 (softmax) or 2 (sigmoid)"
        )
    experts = experts_of(
        hp,
        weights=GATINGS[gating],
        sum_to_one=hp.flag("expert_weights_norm", False),
        groups=hp.integer("expert_group_count", 1) or 1,
        groups_used=hp.integer("expert_group_used_count", 1) or 1,
        shared=FeedForward(suffix="_shexp"),
    )
    mixer, dense = _attention(hp), hp.integer("leading_dense_block_count", 0)
    layers = range(hp.integer("block_count"))
    return description_of(
        hp, [Layer(mixer, FeedForward() if i < dense else experts) for i in layers]
    )


def _attention(hp: Hyperparameters) -> LatentAttention:
    """Of every layer. YaRN's factor of sines and cosines becomes one of the products."""
    head = hp.integer("attention.key_length_mla", 0)
    folded = head > 0
    head = head or hp.integer("attention.key_length")
    turned = hp.integer("rope.dimension_count")
    rope = rope_of(hp, "normal")
    whole = 1.0 + 0.1 * math.log(1.0 / rope.scale)
    multiplier = 10.0 * hp.number("rope.scaling.yarn_log_multiplier", 0.0)
    factor = rope.attention_factor
    if rope.extrapolation and multiplier:
        factor /= whole
        rope = rope_of(hp, "normal", attention_factor=factor)
    stretched = factor * whole * (1.0 + 0.1 * multiplier * math.log(1.0 / rope.scale))
    value = "attention.value_length_mla" if folded else "attention.value_length"
    return LatentAttention(
        heads=hp.each_layer("attention.head_count", 1)[0],
        rank=hp.integer("attention.kv_lora_rank"),
        plain=head - turned,
        turned=turned,
        value_length=hp.integer(value),
        rope=rope,
        scale=stretched * stretched / math.sqrt(head),
        query_rank=hp.integer("attention.q_lora_rank", 0),
        folded=folded,
    )


ARCHITECTURE = Architecture(("deepseek2",), describe)
