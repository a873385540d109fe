"""step35: Step 3.5 Flash; experts, layers with a window and more heads, a gate for each head.

Layers without a window turn half as many elements of a head. Not here: layers that predict further
tokens, which are left out; the picture tower.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.architectures import exaone_moe
from aggml.models.blocks import ExpertsOrNet, FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERT_KEYS, number
from aggml.models.checkpoints.recipes import Checkpoint, add_one, compute
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    each_flag,
    layers_of,
    limits_of,
    rope_of,
    routed_experts_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

NEAR: Final = "sliding_attention"


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: a number of elements with rotary positions that four does not divide; not one
            limit for each layer.
    """
    layers, window = layers_of(hp), hp.integer("attention.sliding_window", least=1)
    near = each_flag(hp, "attention.sliding_window_pattern", layers, default=True)
    whole = rope_of(hp, "neox")
    if whole.dims % 4:
        raise ModelError(
            f"step35.rope.dimension_count is {whole.dims}, expected was a multiple of four"
        )
    far_rope = replace(whole, dims=whole.dims // 2, factor_count=whole.dims // 2)
    near_rope = replace(
        whole, base=hp.number("rope.freq_base_swa", whole.base, above=0.0), scale=1.0,
        extrapolation=0.0, factors=None,
    )  # fmt: skip
    of_experts, of_nets = (limits_of(hp, f"swiglu_clamp_{x}", layers) for x in ("exp", "shexp"))
    made = []
    for i in range(layers):
        mixer = attention_of(
            hp, near_rope if near[i] else far_rope, i, window=window if near[i] else None,
            norm="head of some files", gate="attn_gate",
        )  # fmt: skip
        shared = FeedForward(suffix="_shexp", limit=of_nets[i])
        experts = routed_experts_of(hp, "sigmoid", shared=shared, limit=of_experts[i])
        made.append(Layer(mixer, ExpertsOrNet(experts, FeedForward(limit=of_nets[i]))))
    return description_of(hp, made)


def _near(config: Config) -> list[bool]:
    """Which layers see a window only.

    Raises:
        ModelError: an unknown kind of layer, or too few of them.
    """
    layers = int(config.need("num_hidden_layers"))
    kinds = config.get("layer_types", default=["full_attention"] * layers)
    if len(kinds) < layers or not set(kinds) <= {NEAR, "full_attention"}:
        raise ModelError(
            f"config.json has layer_types = {kinds!r:.60} for {layers} layers; expected was "
            f"{NEAR} or full_attention for each"
        )
    return [kind == NEAR for kind in kinds[:layers]]


def _heads(config: Config) -> list[int]:
    """Heads of queries of each layer."""
    far = int(config.need("num_attention_heads"))
    other = config.get("attention_other_setting", default={}).get("num_attention_heads", far)
    near = int(config.get("num_sliding_attention_heads", default=other))
    return [near if x else far for x in _near(config)]


def _each_base(config: Config) -> list[float]:
    """The base of the frequencies of each layer."""
    layers, told = int(config.need("num_hidden_layers")), config.get("rope_theta", default=10000.0)
    if isinstance(told, list):
        return [float(x) for x in told[:layers]]
    near, far = (float(config.rope(x).get("rope_theta", told)) for x in (NEAR, "full_attention"))
    return [near if x else far for x in _near(config)]


def _base(which: bool) -> Any:  # noqa: ANN401 a key
    """The base of layers with a window, or of those without.

    Raises:
        ModelError: such layers differ.
    """

    def find(config: Config) -> float | None:
        each = zip(_each_base(config), _near(config), strict=True)
        told = {x for x, near in each if near == which}
        if len(told) > 1:
            raise ModelError(f"config.json has the bases {sorted(told)} for layers of one type")
        return told.pop() if told else None

    return find


def _dense(config: Config) -> int:
    """How many first layers have one net."""
    told = config.get("moe_layers_enum")
    if config.get("mlp_layer_types") is not None or told is None:
        return exaone_moe.dense_layers(config)
    layers = sorted(int(x) for x in (told.split(",") if isinstance(told, str) else told))
    return layers[0] if layers else int(config.need("num_hidden_layers"))


def _clamps(name: str) -> Any:  # noqa: ANN401 a key
    """The limits of all layers; None: there are none."""

    def find(config: Config) -> list[float] | None:
        told = config.get(name)
        layers = int(config.need("num_hidden_layers"))
        return None if told is None else [float(x or 0.0) for x in told[:layers]]

    return find


def _rotary(config: Config) -> int:
    """Elements of a head with rotary positions in layers with a window.

    Raises:
        ModelError: layers turn other shares than all of a head or half of it.
    """
    layers = int(config.need("num_hidden_layers"))
    if config.get("query_pre_attn_scalar", default=config.head) != config.head:
        raise ModelError("config.json has another query_pre_attn_scalar than head_dim")
    told = config.get("partial_rotary_factors")
    if told is None:
        shares = {kind: config.rope(kind).get("partial_rotary_factor", 1.0)
                  for kind in (NEAR, "full_attention")}  # fmt: skip
        told = [shares[NEAR if x else "full_attention"] for x in _near(config)]
    wanted = [1.0 if near else 0.5 for near in _near(config)]
    if list(told[:layers]) != wanted:
        raise ModelError(
            f"config.json turns shares of {told!r:.60} of a head; expected was 1 in layers with a "
            "window, and 0.5 in the others"
        )
    return config.head


def _frequencies(config: Config) -> Array | None:
    """The factors of llama 3.1 for layers without a window, and 1 for pairs that these lack."""
    rope = config.rope()
    if rope.get("rope_type") != "llama3":
        return None
    half = config.head // 4
    own = _base(False)(config) ** -(np.arange(half, dtype=np.float64) / half)
    length = 2 * np.pi / own
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    context, factor = float(rope["original_max_position_embeddings"]), float(rope["factor"])
    smooth = np.clip((context / length - low) / (high - low), 0, 1)
    found = 1 / ((1 - smooth) / factor + smooth)
    return np.concatenate([found, np.ones(half)]).astype(np.float32)


_NORMED: Final = {
    "output_norm": "norm",
    "blk.{i}.attn_norm": "layers.{i}.input_layernorm",
    "blk.{i}.ffn_norm": "layers.{i}.post_attention_layernorm",
    "blk.{i}.attn_q_norm": "layers.{i}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": "layers.{i}.self_attn.k_norm",
}
CHECKPOINT: Final = Checkpoint(
    ("step3p7", "step3p5"),
    {
        **DECODER,
        **{f"{name}.weight": add_one(f"{source}.weight") for name, source in _NORMED.items()},
        "blk.{i}.attn_gate": "layers.{i}.self_attn.g_proj",
        "blk.{i}.ffn_gate_inp": "layers.{i}.moe.gate",
        "blk.{i}.exp_probs_b.bias": "layers.{i}.moe.router_bias",
        **{
            f"blk.{{i}}.ffn_{part}_exps": f"layers.{{i}}.moe.{part}_proj"
            for part in ("gate", "up", "down")
        },
        **{
            f"blk.{{i}}.ffn_{part}_shexp": f"layers.{{i}}.share_expert.{part}_proj"
            for part in ("gate", "up", "down")
        },
        "rope_freqs.weight": compute(_frequencies),
    },
    {
        **DECODER_KEYS,
        **EXPERT_KEYS,
        "expert_count": ("moe_num_experts", "n_routed_experts", "num_local_experts"),
        "expert_used_count": ("moe_top_k", "num_experts_per_tok"),
        "expert_shared_feed_forward_length": ("share_expert_dim", "share_expert_dims"),
        "attention.head_count": _heads,
        "attention.head_count_kv": ("num_attention_groups", "num_key_value_heads"),
        "attention.sliding_window": lambda config: config.get("sliding_window", default=512),
        "attention.sliding_window_pattern": _near,
        "rope.dimension_count": _rotary,
        "rope.freq_base": _base(False),
        "rope.freq_base_swa": _base(True),
        "expert_gating_func": lambda _: 2,
        "expert_weights_norm": lambda _: True,
        "expert_weights_scale": number("moe_router_scaling_factor", default=1.0),
        "leading_dense_block_count": _dense,
        "swiglu_clamp_exp": _clamps("swiglu_limits"),
        "swiglu_clamp_shexp": _clamps("swiglu_limits_shared"),
    },
    prefixes=("model.language_model.", "language_model.model.", "language_model.", "model."),
    ignored=(
        r"^(model\.)?(vision_model|vit_large_projector|multi_modal_projector)\.",
    ),
    harmless={
        **dict.fromkeys(
            ("projector_bias", "understand_projector_stride", "image_token_len", "patch_token_len",
             "im_start_token", "im_end_token", "im_patch_token", "projector_hidden_size"),
            "pictures are not computed",
        ),
        **dict.fromkeys(
            ("mtp_layer_types", "mtp_mlp_layer_types"),
            "layers that predict further tokens are left out",
        ),
        "per_layer_config": "num_sliding_attention_heads says the same",
    },
    expects={
        "hidden_act": ("silu",), "attention_bias": (False,), "gating": (True, "per-head"),
        "moe_router_activation": ("sigmoid",), "norm_expert_weight": (True,),
        "use_moe_router_bias": (True,), "use_head_wise_attn_gate": (True,), "use_qk_norm": (True,),
        "mlp_bias": (False,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("step35",), describe, (CHECKPOINT,))
