"""ernie4_5-moe: ernie4_5 with experts, and a shared net, in most layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERTS
from aggml.models.checkpoints.recipes import Checkpoint, flatten
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    layers_of,
    nets_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
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


def _shared_inner_size(config: Config) -> int:
    """Elements between the matrices of the shared net; 0: there is none."""
    shared = int(config.get("moe_num_shared_experts", default=0))
    return shared * int(config.need("moe_intermediate_size"))


def _step(config: Config) -> int:
    """Every how many layers there are experts.

    Raises:
        ModelError: the last layers have none.
    """
    last, layers = config.get("moe_layer_end_index"), int(config.need("num_hidden_layers"))
    if last is not None and last not in (-1, layers - 1):
        raise ModelError(
            f"config.json has moe_layer_end_index = {last} for {layers} layers; expected was the "
            "last one"
        )
    return int(config.get("moe_layer_interval", default=1))


CHECKPOINT: Final = Checkpoint(
    ("ernie4_5_moe",),
    {
        **DECODER, **EXPERTS,
        "blk.{i}.exp_probs_b.bias": tuple(
            flatten(f"layers.{{i}}.mlp.{part}moe_statics.e_score_correction_bias")
            for part in ("", "gate.")
        ),
        "blk.{i}.ffn_gate_shexp": "layers.{i}.mlp.shared_experts.gate_proj",
        "blk.{i}.ffn_up_shexp": "layers.{i}.mlp.shared_experts.up_proj",
        "blk.{i}.ffn_down_shexp": "layers.{i}.mlp.shared_experts.down_proj",
    },
    {
        **DECODER_KEYS,
        "expert_count": "moe_num_experts",
        "expert_used_count": "moe_k",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": _shared_inner_size,
        "leading_dense_block_count": "moe_layer_start_index",
        "interleave_moe_layer_step": _step,
    },
    ignored=(r"^mtp_",),
    harmless={"moe_norm_min": "sums of weights are above it"},
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("ernie4_5-moe",), describe, (CHECKPOINT,))
