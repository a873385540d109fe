"""mimo2: Xiaomi's MiMo-V2; experts, layers with a window and sinks, values shorter than keys.

Layers with a window have a base of their rotary positions of their own, and more heads of keys. Not
here: the layers that predict further tokens, which are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.architectures import exaone_moe
from aggml.models.blocks import ExpertsOrNet, FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERT_KEYS, EXPERTS, number
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    each_flag,
    layers_of,
    rope_of,
    routed_experts_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

NEAR: Final = "sliding_attention"


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, window = layers_of(hp), hp.integer("attention.sliding_window", least=1)
    near = each_flag(hp, "attention.sliding_window_pattern", layers, default=True)
    far_rope = rope_of(hp, "neox", factors=None)
    near_rope = replace(
        far_rope, base=hp.number("rope.freq_base_swa", far_rope.base, above=0.0), scale=1.0
    )
    scale = hp.number("attention.value_scale", 1.0) or 1.0
    net = ExpertsOrNet(routed_experts_of(hp, "sigmoid", sum_to_one=True), FeedForward())
    mixers = (
        attention_of(
            hp, near_rope if near[i] else far_rope, i, window=window if near[i] else None,
            joined=None, sinks=None if near[i] else False, value_scale=scale,
        )
        for i in range(layers)
    )  # fmt: skip
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


def _near(config: Config) -> list[bool]:
    """Which layers see a window only.

    Raises:
        ModelError: an unknown kind of layer, or not one for each layer.
    """
    layers, kinds = int(config.need("num_hidden_layers")), config.get("layer_types")
    if kinds is None:
        told = config.get("hybrid_layer_pattern")
        if told is None:
            told = [i > 0 and (i + 1) % 6 > 0 for i in range(layers)]
        kinds = [NEAR if x in (1, True) else "full_attention" for x in told]
    if len(kinds) != layers or not set(kinds) <= {NEAR, "full_attention"}:
        raise ModelError(
            f"config.json has layer_types = {kinds!r:.60} for {layers} layers; expected was "
            f"{NEAR} or full_attention for each"
        )
    return [kind == NEAR for kind in kinds]


def _kv_heads(config: Config) -> list[int]:
    """Heads of keys of each layer."""
    far = int(config.need("num_key_value_heads"))
    near = int(config.get("swa_num_key_value_heads", default=2 * far))
    return [near if x else far for x in _near(config)]


def _window(config: Config) -> int:
    """How many positions a token sees, its own included; transformers counts in this way, too.

    ``sliding_window_size`` is the number of those before it.
    """
    before = config.get("sliding_window_size")
    return int(config.get("sliding_window", default=129) if before is None else before + 1)


def _near_base(config: Config) -> float | None:
    """The base of the frequencies of layers with a window."""
    told = config.get("swa_rope_theta", default=config.rope(NEAR).get("rope_theta"))
    return None if told is None else float(told)


CHECKPOINT: Final = Checkpoint(
    ("mimo_v2_flash", "mimo_v2"),
    {
        **DECODER, **EXPERTS,
        "blk.{i}.attn_qkv": "layers.{i}.self_attn.qkv_proj",
        "blk.{i}.attn_sinks.weight": (
            "layers.{i}.self_attn.attention_sink_bias", "layers.{i}.self_attn.sinks",
        ),
        "blk.{i}.exp_probs_b.bias": "layers.{i}.mlp.gate.e_score_correction_bias",
    },
    {
        **DECODER_KEYS,
        **EXPERT_KEYS,
        "expert_count": ("n_routed_experts", "num_local_experts"),
        "attention.value_length": ("v_head_dim", "head_dim"),
        "attention.head_count_kv": _kv_heads,
        "attention.layer_norm_rms_epsilon": number("rms_norm_eps", "layernorm_epsilon"),
        "attention.sliding_window": _window,
        "attention.sliding_window_pattern": _near,
        "attention.value_scale": number("attention_value_scale"),
        "rope.freq_base_swa": _near_base,
        "expert_gating_func": lambda _: 2,
        "expert_weights_norm": lambda _: True,
        "expert_weights_scale": number("routed_scaling_factor", default=1.0),
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "leading_dense_block_count": exaone_moe.dense_layers,
    },
    ignored=(r"^mtp\.",),
    harmless={
        **dict.fromkeys(
            ("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "swa_head_dim",
             "swa_v_head_dim", "swa_num_attention_heads"),
            "the shapes and names of the tensors say the same",
        ),
        "attention_chunk_size": "sliding_window says which positions a layer sees",
    },
    expects={
        "hidden_act": ("silu",), "attention_bias": (False,), "norm_topk_prob": (True,),
        "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "n_shared_experts": (0,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("mimo2",), describe, (CHECKPOINT,))
