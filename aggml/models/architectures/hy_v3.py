"""hy_v3: Tencent's Hy3; experts weighed by sigmoids beside a shared net, norms of each head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aggml.models.architectures import exaone_moe
from aggml.models.blocks import ExpertsOrNet, FeedForward
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
    rope_of,
    routed_experts_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, shared = rope_of(hp, "neox"), FeedForward(suffix="_shexp")
    net = ExpertsOrNet(routed_experts_of(hp, "sigmoid", shared=shared), FeedForward())
    layers = [Layer(attention_of(hp, rope, i, norm="head"), net) for i in range(layers_of(hp))]
    return add_prediction_head(hp, description_of(hp, layers), layers[-1])


def _dense(config: Config) -> int:
    """How many first layers have one net; of folders that do not say it, one."""
    told = ("mlp_layer_types", "first_k_dense_replace")
    return 1 if config.get(*told) is None else exaone_moe.dense_layers(config)


def _shared_inner(config: Config) -> Any:  # noqa: ANN401 a key
    """Elements between the matrices of the shared net."""
    return config.need("moe_intermediate_size") * config.get("num_shared_experts", default=1)


CHECKPOINT: Final = Checkpoint(
    ("hy_v3",),
    {
        **DECODER, **HEAD_NORMS, **EXPERTS,
        "blk.{i}.ffn_gate_inp": ("layers.{i}.mlp.router.gate", "layers.{i}.mlp.gate"),
        "blk.{i}.exp_probs_b": (
            "layers.{i}.mlp.expert_bias", "layers.{i}.mlp.e_score_correction_bias",
        ),
        **{
            f"blk.{{i}}.ffn_{x}_shexp": (
                f"layers.{{i}}.mlp.shared_mlp.{x}_proj",
                f"layers.{{i}}.mlp.shared_experts.{x}_proj",
            )
            for x in ("gate", "up", "down")
        },
    },
    {
        **DECODER_KEYS,
        **EXPERT_KEYS,
        "expert_count": ("num_experts", "num_local_experts"),
        "expert_shared_feed_forward_length": _shared_inner,
        "expert_gating_func": lambda _: 2,
        "expert_weights_norm": lambda _: True,
        "expert_weights_scale": number("router_scaling_factor", default=1.0),
        "leading_dense_block_count": _dense,
    },
    harmless={
        "enable_moe_fp32_combine": "sums are f32 in any case",
        "enable_attention_fp32_softmax": "sums are f32 in any case",
        "enable_lm_head_fp32": "sums are f32 in any case",
    },
    expects={
        "hidden_act": ("silu",), "route_norm": (True,), "qk_norm": (True,),
        "moe_router_enable_expert_bias": (True,), "moe_router_use_sigmoid": (True,),
    },
    bare=("blk.{i}.exp_probs_b",),
)  # fmt: skip


ARCHITECTURE = Architecture(("hy_v3",), describe, (CHECKPOINT,))
