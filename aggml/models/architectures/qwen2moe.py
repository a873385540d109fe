"""qwen2moe: qwen2 with experts, and a shared net that is multiplied by a sigmoid gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERT_KEYS, EXPERTS, UNUSED_WINDOW
from aggml.models.checkpoints.recipes import Checkpoint, flatten
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox")
    net = experts_of(hp, shared=FeedForward(suffix="_shexp"), shared_gate=True)
    layers = range(layers_of(hp))
    return description_of(hp, [Layer(attention_of(hp, rope, i), net) for i in layers])


CHECKPOINT: Final = Checkpoint(
    ("qwen2_moe",),
    DECODER | EXPERTS | {
        "blk.{i}.ffn_gate_shexp": "layers.{i}.mlp.shared_expert.gate_proj",
        "blk.{i}.ffn_up_shexp": "layers.{i}.mlp.shared_expert.up_proj",
        "blk.{i}.ffn_down_shexp": "layers.{i}.mlp.shared_expert.down_proj",
        "blk.{i}.ffn_gate_inp_shexp": flatten("layers.{i}.mlp.shared_expert_gate"),
    },
    DECODER_KEYS | EXPERT_KEYS
    | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    harmless=UNUSED_WINDOW,
    expects={
        "hidden_act": ("silu",), "use_sliding_window": (False,), "norm_topk_prob": (False,),
        "decoder_sparse_step": (1,), "mlp_only_layers": ([],),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("qwen2moe",), describe, (CHECKPOINT,))
