"""granite: llama with scales of embeddings, attention, residuals, logits; granitemoe: experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERT_KEYS, NEIGHBOURS, number
from aggml.models.checkpoints.recipes import Checkpoint, half
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.description import Block
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    net: Block = FeedForward()
    if hp.integer("expert_count", 0):
        shared = FeedForward(suffix="_shexp")
        beside = shared if hp.integer("expert_shared_feed_forward_length", 0) else None
        net = experts_of(hp, sum_to_one=True, shared=beside)
    rope = rope_of(hp, "normal") if hp.flag("rope.scaling.finetuned", True) else None
    scale = hp.number("attention.scale", 0.0) or None
    residual = hp.number("residual_scale", 1.0) or 1.0
    layers = range(layers_of(hp))
    return description_of(
        hp,
        [
            Layer(attention_of(hp, rope, i, scale=scale), net, residual_scale=residual)
            for i in layers
        ],
        embedding_scale=hp.number("embedding_scale", 1.0) or 1.0,
        logit_scale=1.0 / hp.number("logit_scale", above=0.0),
    )


_KEYS: Final = DECODER_KEYS | {
    "embedding_scale": number("embedding_multiplier"),
    "residual_scale": number("residual_multiplier"),
    "attention.scale": number("attention_multiplier"),
    "logit_scale": number("logits_scaling"),
}
CHECKPOINTS: Final = (
    Checkpoint(("granite",), DECODER | NEIGHBOURS, _KEYS, expects={"hidden_act": ("silu",)}),
    Checkpoint(
        ("granitemoe", "granitemoeshared"),
        DECODER | NEIGHBOURS | {
            "blk.{i}.ffn_gate_inp": "layers.{i}.block_sparse_moe.router.layer",
            "blk.{i}.ffn_gate_exps": half("layers.{i}.block_sparse_moe.input_linear", 0, axis=1),
            "blk.{i}.ffn_up_exps": half("layers.{i}.block_sparse_moe.input_linear", 1, axis=1),
            "blk.{i}.ffn_down_exps": "layers.{i}.block_sparse_moe.output_linear",
            "blk.{i}.ffn_gate_shexp": half("layers.{i}.shared_mlp.input_linear", 0),
            "blk.{i}.ffn_up_shexp": half("layers.{i}.shared_mlp.input_linear", 1),
            "blk.{i}.ffn_down_shexp": "layers.{i}.shared_mlp.output_linear",
        },
        _KEYS | EXPERT_KEYS | {
            "expert_feed_forward_length": "intermediate_size",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        architecture="granitemoe",
        expects={"hidden_act": ("silu",)},
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("granite", "granitemoe"), describe, CHECKPOINTS)
