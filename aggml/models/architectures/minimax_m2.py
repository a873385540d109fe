"""minimax-m2: norms of whole queries and keys, half rotated; experts weighed by sigmoids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERT_KEYS, HEAD_NORMS
from aggml.models.checkpoints.recipes import Checkpoint, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of, routed_experts_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), routed_experts_of(hp, sum_to_one=True)
    mixers = (attention_of(hp, rope, i, norm="width") for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


CHECKPOINT: Final = Checkpoint(
    ("minimax_m2",),
    {
        **DECODER, **HEAD_NORMS,
        "blk.{i}.ffn_gate_inp": "layers.{i}.block_sparse_moe.gate",
        "blk.{i}.exp_probs_b.bias": "layers.{i}.block_sparse_moe.e_score_correction_bias",
        "blk.{i}.ffn_gate_exps": stack("layers.{i}.block_sparse_moe.experts.{e}.w1"),
        "blk.{i}.ffn_down_exps": stack("layers.{i}.block_sparse_moe.experts.{e}.w2"),
        "blk.{i}.ffn_up_exps": stack("layers.{i}.block_sparse_moe.experts.{e}.w3"),
    },
    {
        **DECODER_KEYS,
        **EXPERT_KEYS,
        "expert_feed_forward_length": "intermediate_size",
        "expert_gating_func": lambda _: 2,
    },
    ignored=(r"^mtp\.",),
    harmless={"rotary_dim": "partial_rotary_factor says the same"},
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("minimax-m2",), describe, (CHECKPOINT,))
