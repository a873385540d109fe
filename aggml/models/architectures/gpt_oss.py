"""gpt-oss: experts of mxfp4 with biases, a sink for each head, a window in every other layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERT_KEYS, window_pattern
from aggml.models.checkpoints.packed_experts import regroup_blocks, transpose_experts
from aggml.models.checkpoints.recipes import Checkpoint, half
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    layers_of,
    rope_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, window = layers_of(hp), hp.integer("attention.sliding_window", least=1)
    rope = rope_of(hp, "neox")
    net = experts_of(hp, activation="swiglu_oai", weights="chosen")
    mixers = (
        attention_of(hp, rope, i, sinks=True, window=window if near else None)
        for i, near in enumerate(sliding_layers(hp, layers, 2))
    )
    return description_of(
        hp, [Layer(mixer, net, before_feed_forward="post_attention_norm") for mixer in mixers]
    )


_MIXED: Final = "layers.{i}.mlp.experts.gate_up_proj"
_DOWN: Final = "layers.{i}.mlp.experts.down_proj"
CHECKPOINT: Final = Checkpoint(
    ("gpt_oss",),
    DECODER | {
        "blk.{i}.ffn_norm": None,
        "blk.{i}.post_attention_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.attn_sinks.weight": "layers.{i}.self_attn.sinks",
        "blk.{i}.ffn_gate_inp": "layers.{i}.mlp.router",
        "blk.{i}.ffn_gate_exps.weight": (regroup_blocks(_MIXED, 0), transpose_experts(_MIXED, 0)),
        "blk.{i}.ffn_up_exps.weight": (regroup_blocks(_MIXED, 1), transpose_experts(_MIXED, 1)),
        "blk.{i}.ffn_down_exps.weight": (regroup_blocks(_DOWN), transpose_experts(_DOWN)),
        "blk.{i}.ffn_gate_exps.bias": half(f"{_MIXED}_bias", 0, axis=1, alternating=True),
        "blk.{i}.ffn_up_exps.bias": half(f"{_MIXED}_bias", 1, axis=1, alternating=True),
        "blk.{i}.ffn_down_exps.bias": f"{_DOWN}_bias",
    },
    DECODER_KEYS | EXPERT_KEYS | {
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern(2),
        "expert_feed_forward_length": "intermediate_size",
    },
    expects={"swiglu_limit": (7.0,), "swiglu_alpha": (1.702,)},
)  # fmt: skip

ARCHITECTURE = Architecture(("gpt-oss",), describe, (CHECKPOINT,))
