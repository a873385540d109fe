"""afmoe: Trinity; norms around both blocks, gated attention, experts weighed by sigmoids.

Three of four layers see a window; every fourth sees all and has no rotary positions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.architectures import glm4moe
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, EXPERT_KEYS, HEAD_NORMS, window_pattern
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    nets_of,
    post_norm_layer,
    rope_of,
    routed_experts_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

PERIOD: Final = 4  # of layers, the last of which has no rotary positions


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    far, layers = rope_of(hp, "neox", factors=None), layers_of(hp)
    rope = replace(far, base=hp.number("rope.freq_base_swa", far.base, above=0.0))
    window, near = (
        hp.integer("attention.sliding_window", least=1),
        sliding_layers(hp, layers, PERIOD),
    )
    shared = FeedForward(suffix="_shexp") if hp.integer("expert_shared_count") else None
    nets = nets_of(hp, routed_experts_of(hp, "sigmoid", shared=shared))
    mixers = [
        attention_of(
            hp, None if (i + 1) % PERIOD == 0 else rope if near[i] else far, i, norm="head",
            gate="attn_gate", window=window if near[i] else None,
        )
        for i in range(layers)
    ]  # fmt: skip
    return description_of(
        hp, [post_norm_layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)],
        embedding_scale=math.sqrt(hp.integer("embedding_length", least=1)),
    )  # fmt: skip


CHECKPOINT: Final = Checkpoint(
    ("afmoe",),
    {
        **DECODER, **HEAD_NORMS,
        **{
            name: rule for name, rule in glm4moe.CHECKPOINT.tensors.items()
            if "exp" in name
        },
        "blk.{i}.attn_gate": "layers.{i}.self_attn.gate_proj",
        "blk.{i}.post_attention_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.ffn_norm": "layers.{i}.pre_mlp_layernorm",
        "blk.{i}.post_ffw_norm": "layers.{i}.post_mlp_layernorm",
        "blk.{i}.ffn_gate_inp": "layers.{i}.mlp.router.gate",
        "blk.{i}.exp_probs_b.bias": "layers.{i}.mlp.expert_bias",
    },
    {
        **glm4moe.CHECKPOINT.keys,
        **EXPERT_KEYS,
        "expert_shared_count": "num_shared_experts",
        "expert_weights_scale": "route_scale",
        "expert_weights_norm": lambda _: True,
        "leading_dense_block_count": "num_dense_layers",
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern(PERIOD),
    },
    expects={
        "hidden_act": ("silu",), "mup_enabled": (True,), "global_attn_every_n_layers": (PERIOD,),
        "route_norm": (True,), "score_func": ("sigmoid",), "n_group": (1,), "topk_group": (1,),
    },
    harmless=dict.fromkeys(
        ("load_balance_coeff", "num_expert_groups", "num_limited_groups", "use_grouped_mm"),
        "it matters to training, or one value of it is usual",
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("afmoe",), describe, (CHECKPOINT,))
