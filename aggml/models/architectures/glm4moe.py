"""glm4moe: GLM 4.5 and later; experts and a shared net in all layers but the first ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    number,
)
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    add_prediction_head,
    attention_of,
    description_of,
    layers_of,
    nets_of,
    rope_of,
    routed_experts_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox")
    shared = FeedForward(suffix="_shexp") if hp.integer("expert_shared_count") else None
    experts = routed_experts_of(hp, "sigmoid", shared=shared)
    mixers = [attention_of(hp, rope, i, norm="head of some files") for i in range(layers_of(hp))]
    layers = [
        Layer(mixer, net, before_feed_forward="post_attention_norm")
        for mixer, net in zip(mixers, nets_of(hp, experts), strict=True)
    ]
    head = Layer(mixers[-1], experts, before_feed_forward="post_attention_norm")
    return add_prediction_head(hp, description_of(hp, layers), head)


CHECKPOINT: Final = Checkpoint(
    ("glm4_moe",),
    {
        **{x: y for x, y in DECODER.items() if x != "blk.{i}.ffn_norm"}, **HEAD_NORMS, **EXPERTS,
        "blk.{i}.post_attention_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.exp_probs_b.bias": "layers.{i}.mlp.gate.e_score_correction_bias",
        "blk.{i}.ffn_gate_shexp": "layers.{i}.mlp.shared_experts.gate_proj",
        "blk.{i}.ffn_up_shexp": "layers.{i}.mlp.shared_experts.up_proj",
        "blk.{i}.ffn_down_shexp": "layers.{i}.mlp.shared_experts.down_proj",
    },
    {
        **DECODER_KEYS,
        **EXPERT_KEYS,
        "expert_count": "n_routed_experts",
        "expert_shared_count": "n_shared_experts",
        "expert_gating_func": lambda _: 2,
        "expert_weights_norm": "norm_topk_prob",
        "expert_weights_scale": number("routed_scaling_factor"),
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "leading_dense_block_count": "first_k_dense_replace",
    },
    harmless={"use_qk_norm": "the names of the tensors say the same"},
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("glm4moe",), describe, (CHECKPOINT,))
