"""deepseek: DeepSeekMoE; a dense layer, then experts whose weights have any sum, a shared net."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERTS, NEIGHBOURS
from aggml.models.checkpoints.recipes import Checkpoint
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
    nets = nets_of(hp, experts_of(hp, shared=FeedForward(suffix="_shexp")))
    mixers = (attention_of(hp, rope, i) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


CHECKPOINT: Final = Checkpoint(
    ("deepseek",),
    {
        **DECODER, **NEIGHBOURS, **EXPERTS,
        **{
            f"blk.{{i}}.ffn_{x}_shexp": f"layers.{{i}}.mlp.shared_experts.{x}_proj"
            for x in ("gate", "up", "down")
        },
    },
    DECODER_KEYS | {
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_shared_count": "n_shared_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_weights_scale": lambda _: 1.0,
    },
    expects={
        "hidden_act": ("silu",), "norm_topk_prob": (False,), "scoring_func": ("softmax",),
        "moe_layer_freq": (1,), "attention_bias": (False,), "topk_method": ("greedy",),
        "routed_scaling_factor": (1.0,), "n_group": (1,), "topk_group": (1,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("deepseek",), describe, (CHECKPOINT,))
