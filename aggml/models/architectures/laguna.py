"""laguna: Poolside's Laguna; experts, and attention with gates whose softplus is taken.

Layers may differ in their heads of queries. Those with a window have rotary positions of their own,
never stretched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from aggml.models.architectures import exaone_moe
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    number,
    window_of_some_layers,
)
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    head_length,
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

PERIOD: Final = 4  # of layers, the first of which sees all positions


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: an odd number of elements with rotary positions.
    """
    layers, window = layers_of(hp), hp.integer("attention.sliding_window", 0)
    far = rope_of(hp, "neox", factors=None)
    dims = hp.integer("rope.dimension_count_swa", far.dims, least=2, most=head_length(hp))
    if dims % 2:
        raise ModelError(f"laguna.rope.dimension_count_swa is {dims}, expected was an even number")
    near = replace(
        far, dims=dims, scale=1.0,
        base=hp.number("rope.freq_base_swa", far.base, above=0.0), extrapolation=0.0,
        attention_factor=1.0,
    )  # fmt: skip
    local = _near_layers(hp, layers) if window else (False,) * layers
    nets = nets_of(hp, routed_experts_of(hp, "sigmoid", shared=FeedForward(suffix="_shexp")))
    mixers = (
        attention_of(
            hp, near if local[i] else far, i, norm="head", gate="attn_gate", softplus=True,
            window=window if local[i] else None,
        )
        for i in range(layers)
    )  # fmt: skip
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


def _near_layers(hp: Hyperparameters, layers: int) -> tuple[bool, ...]:
    """Which layers see a window only: as the file says, or all but the first of every period."""
    name = "attention.sliding_window_pattern"
    if hp.get(name) is None:
        return tuple(i % PERIOD > 0 for i in range(layers))
    return sliding_layers(hp, layers, PERIOD)


def _near(config: Config) -> list[bool] | None:
    """Which layers see a window only; None: none does.

    Raises:
        ModelError: an unknown kind of layer, or not one for each layer.
    """
    kinds, layers = config.get("layer_types"), int(config.need("num_hidden_layers"))
    if kinds is None:
        kinds = ["full_attention"] * layers
    if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise ModelError(
            f"config.json has layer_types = {kinds!r:.60} for {layers} layers; expected was "
            "sliding_attention or full_attention for each"
        )
    if window_of_some_layers(config) is None:
        return None
    return [kind == "sliding_attention" for kind in kinds]


def _rotary_size(config: Config) -> int:
    """How many elements of each head have rotary positions in layers with a window."""
    return int(config.head * config.rope("sliding_attention").get("partial_rotary_factor", 1.0))


def _dense(config: Config) -> int:
    """How many first layers have one net; of folders that do not say it, one."""
    return 1 if config.get("mlp_layer_types") is None else exaone_moe.dense_layers(config)


def _heads(config: Config) -> Any:  # noqa: ANN401 as the file has it
    """Heads of queries, of all layers or of each."""
    each = config.get("num_attention_heads_per_layer")
    return config.need("num_attention_heads") if each is None else each


CHECKPOINT: Final = Checkpoint(
    ("laguna",),
    {
        **DECODER, **HEAD_NORMS, **EXPERTS,
        "blk.{i}.attn_gate": "layers.{i}.self_attn.g_proj",
        "blk.{i}.exp_probs_b.bias": (
            "layers.{i}.mlp.experts.e_score_correction_bias",
            "layers.{i}.mlp.gate.e_score_correction_bias",
        ),
        **{
            f"blk.{{i}}.ffn_{x}_shexp": (
                f"layers.{{i}}.mlp.shared_expert.{x}_proj",
                f"layers.{{i}}.mlp.shared_experts.{x}_proj",
            )
            for x in ("gate", "up", "down")
        },
    },
    {
        **DECODER_KEYS,
        **EXPERT_KEYS,
        "attention.head_count": _heads,
        "attention.sliding_window": window_of_some_layers,
        "attention.sliding_window_pattern": _near,
        "rope.dimension_count_swa": _rotary_size,
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "expert_gating_func": lambda _: 2,
        "expert_weights_norm": lambda _: True,
        "expert_weights_scale": number("moe_routed_scaling_factor", default=1.0),
        "leading_dense_block_count": _dense,
    },
    harmless=dict.fromkeys(
        ("gating", "gating_types", "mlp_only_layers"),
        "the shapes and names of the tensors say the same",
    ),
    expects={
        "hidden_act": ("silu",), "moe_apply_router_weight_on_input": (False,),
        "moe_router_logit_softcapping": (0.0,), "norm_topk_prob": (True,),
        "attention_bias": (False,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("laguna",), describe, (CHECKPOINT,))
