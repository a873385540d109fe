"""cohere2moe: North Mini Code; cohere2 with experts beside attention, and a shared net.

The first layers have one net, and rotary positions in any case. Not here: layers that predict
further tokens, which are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aggml.models.architectures import exaone_moe
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import (
    CENTRED_KEYS,
    DECODER,
    EXPERT_KEYS,
    EXPERTS,
    number,
    window_pattern,
)
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    layer_norm_description_of,
    layers_of,
    nets_of,
    rope_of,
    routed_experts_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

PERIOD: Final = 4


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture; norms are RMS norms if the file has the epsilon of one."""
    layers, rope = layers_of(hp), rope_of(hp, "normal")
    window = hp.integer("attention.sliding_window", least=1)
    dense = hp.integer("leading_dense_block_count", 0, most=layers)
    has_shared = hp.integer("expert_shared_count", 0) > 0
    experts = routed_experts_of(
        hp, "sigmoid", averaged=has_shared,
        shared=FeedForward(suffix="_shexp") if has_shared else None,
    )  # fmt: skip
    mixers = (
        attention_of(hp, rope if near or i < dense else None, i, window=window if near else None)
        for i, near in enumerate(sliding_layers(hp, layers, PERIOD))
    )
    made = [
        Layer(mixer, net, before_feed_forward=None, parallel=True)
        for mixer, net in zip(mixers, nets_of(hp, experts), strict=True)
    ]
    is_rms = bool(hp.number("attention.layer_norm_rms_epsilon", 0.0, least=0.0))
    scale = hp.number("logit_scale") or 1.0
    if is_rms:
        hp.get("attention.layer_norm_epsilon")
        return description_of(hp, made, logit_scale=scale)
    return layer_norm_description_of(hp, made, logit_scale=scale)


def _gating(config: Config) -> int:
    """GGUF's number for how experts are weighed."""
    return 2 if config.get("expert_selection_fn", default="softmax") == "sigmoid" else 3


def _sums_to_one(config: Config) -> bool:
    """Whether weights of experts are divided by their sum; those of a softmax have the sum 1."""
    return bool(config.get("norm_topk_prob", default=True)) and _gating(config) == 2


def _dense_inner(config: Config) -> Any:  # noqa: ANN401 a key
    """Elements between the matrices of the first layers' nets."""
    return config.get("prefix_dense_intermediate_size", default=config.need("intermediate_size"))


def _shared_inner(config: Config) -> int | None:
    """Elements between the matrices of the shared net; None: there is none."""
    return config.get("num_shared_experts", default=0) * config.need("intermediate_size") or None


CHECKPOINT: Final = Checkpoint(
    ("cohere2_moe",),
    {
        **{x: y for x, y in DECODER.items() if x != "blk.{i}.ffn_norm"}, **EXPERTS,
        **{
            f"blk.{{i}}.ffn_{x}_shexp": f"layers.{{i}}.mlp.shared_experts.{x}_proj"
            for x in ("gate", "up", "down")
        },
    },
    {
        **CENTRED_KEYS,
        **EXPERT_KEYS,
        "attention.layer_norm_rms_epsilon": lambda config: config.get("rms_norm_eps"),
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern(PERIOD),
        "feed_forward_length": _dense_inner,
        "expert_feed_forward_length": "intermediate_size",
        "expert_shared_count": "num_shared_experts",
        "expert_shared_feed_forward_length": _shared_inner,
        "expert_gating_func": _gating,
        "expert_weights_norm": _sums_to_one,
        "leading_dense_block_count": exaone_moe.dense_layers,
        "logit_scale": number("logit_scale", default=0.0625),
    },
    harmless={
        "prefix_dense_sliding_window_pattern": "layer_types say the same",
    },
    expects={
        "hidden_act": ("silu",), "shared_expert_combination_strategy": ("average",),
        "expert_selection_fn": ("softmax", "sigmoid"), "attention_bias": (False,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("cohere2moe",), describe, (CHECKPOINT,))
