"""deepseek2: latent attention, a few dense layers, then experts with a shared net.

Also DeepSeek-V3, R1, Kimi-K2 and others whose files name this architecture. mistral4 (Mistral Small
4) is the same, with queries that get longer at late positions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward, LatentAttention, Temperature
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERTS, number
from aggml.models.checkpoints.recipes import Checkpoint, Recipe
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import description_of, divides, experts_of, layers_of, rope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Shape
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

#: How many of a group's best experts rank the group. The key is aggml's own, since GGUF has none.
#: llama.cpp always sums two, as DeepSeek-V3 does; DeepSeek-V2 236B takes one.
GROUP_BEST: Final = "expert_group_best"
ONE_OF_GROUP: Final = "group_limited_greedy"  # the value of topk_method that means one
GATINGS: Final = {0: "softmax", 1: "softmax", 2: "sigmoid"}


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: an unknown way of weighing experts.
    """
    gating = hp.integer("expert_gating_func", 0)
    count, groups = hp.integer("expert_count", 0), hp.integer("expert_group_count", 1) or 1
    divides(hp, "expert_group_count", groups, "expert_count", count)
    if gating not in GATINGS:
        raise ModelError(
            f"{hp.architecture}.expert_gating_func is {gating}, not 1 (softmax) or 2 (sigmoid)"
        )
    experts = experts_of(
        hp,
        weights=GATINGS[gating],
        sum_to_one=hp.flag("expert_weights_norm", False),
        groups=groups,
        groups_used=hp.integer("expert_group_used_count", 1, most=groups) or 1,
        group_best=hp.integer(GROUP_BEST, 2, least=1, most=max(count // groups, 2)),
        shared=FeedForward(suffix="_shexp"),
    )
    mixer, dense = _attention(hp), hp.integer("leading_dense_block_count", 0)
    layers = range(layers_of(hp))
    return description_of(
        hp, [Layer(mixer, FeedForward() if i < dense else experts) for i in layers]
    )


def _attention(hp: Hyperparameters) -> LatentAttention:
    """The mixer of every layer.

    YaRN's factor multiplies the products of queries and keys here, not sines and cosines.
    """
    head = hp.integer("attention.key_length_mla", 0)
    folded = head > 0
    head = head or hp.integer("attention.key_length", least=1)
    turned = hp.integer("rope.dimension_count", least=2, most=max(head - 1, 2))
    rope = rope_of(hp, "normal")
    whole = 1.0 + 0.1 * math.log(1.0 / rope.scale)
    multiplier = 10.0 * hp.number("rope.scaling.yarn_log_multiplier", 0.0)
    factor = rope.attention_factor
    if rope.extrapolation and multiplier:
        factor /= whole
        rope = rope_of(hp, "normal", attention_factor=factor)
    stretched = factor * whole * (1.0 + 0.1 * multiplier * math.log(1.0 / rope.scale))
    value = "attention.value_length_mla" if folded else "attention.value_length"
    share = hp.number("attention.temperature_scale", 0.0)
    length = hp.integer("attention.temperature_length", rope.original_context, least=1)
    return LatentAttention(
        heads=hp.each_layer("attention.head_count", 1, least=1)[0],
        rank=hp.integer("attention.kv_lora_rank", least=1),
        plain=head - turned,
        turned=turned,
        value_length=hp.integer(value, least=1),
        rope=rope,
        scale=stretched * stretched / math.sqrt(head),
        query_rank=hp.integer("attention.q_lora_rank", 0),
        folded=folded,
        temperature=Temperature(share, length) if share else None,
    )


def _part_of_kv_b(values: bool) -> Recipe:
    """``attn_v_b`` (``values``) or ``attn_k_b``: a part of each head's rows of ``kv_b_proj``."""

    def sizes(config: Config) -> tuple[int, int]:
        return int(config.need("qk_nope_head_dim")), int(config.need("v_head_dim"))

    def make(arrays: Sequence[Array], config: Config) -> Array:
        plain, value = sizes(config)
        each = arrays[0].reshape(-1, plain + value, arrays[0].shape[-1])
        return each[:, plain:] if values else each[:, :plain].swapaxes(1, 2)

    def shape(shapes: Sequence[Shape], config: Config) -> Shape:
        plain, value = sizes(config)
        rows, rank = shapes[0]
        heads = rows // (plain + value)
        return (heads, value, rank) if values else (heads, rank, plain)

    return Recipe(("layers.{i}.self_attn.kv_b_proj",), make, shape)


def _of_rope(name: str, kind: type[float | int]) -> Callable[[Config], float | int | None]:
    """A value of ``rope_parameters``; None if it is not there."""

    def read(config: Config) -> float | int | None:
        told = config.rope().get(name)
        return None if told is None else kind(told)

    return read


def _gating_function(config: Config) -> int:
    """GGUF's number of the function that weighs experts."""
    told = config.get("scoring_func")
    if told is None:
        told = "sigmoid" if config.model_type == "deepseek_v3" else "softmax"
    return {"softmax": 1, "sigmoid": 2}.get(told, 0)


def _groups(key: str) -> Callable[[Config], int | None]:
    """A number of expert groups by its key; None if experts are not chosen by groups."""
    return lambda config: None if config.get("topk_method") == "greedy" else config.get(key)


def _of_latent(turned: bool) -> Callable[[Config], int]:
    """Elements of the vector that is kept of each token, with or without the turned ones."""
    return lambda config: int(
        config.need("kv_lora_rank") + (config.need("qk_rope_head_dim") if turned else 0)
    )


def _log_multiplier(config: Config) -> float | None:
    """YaRN's multiplier for the products of queries and keys."""
    told = config.rope().get("mscale_all_dim")
    return None if told is None else 0.1 * float(told)


CHECKPOINT: Final = Checkpoint(
    ("deepseek_v2", "deepseek_v3"),
    {
        **DECODER,
        **EXPERTS,
        **dict.fromkeys(["blk.{i}.attn_k", "blk.{i}.attn_v"]),
        "blk.{i}.attn_q_a": "layers.{i}.self_attn.q_a_proj",
        "blk.{i}.attn_q_a_norm": "layers.{i}.self_attn.q_a_layernorm",
        "blk.{i}.attn_q_b": "layers.{i}.self_attn.q_b_proj",
        "blk.{i}.attn_kv_a_mqa": "layers.{i}.self_attn.kv_a_proj_with_mqa",
        "blk.{i}.attn_kv_a_norm": "layers.{i}.self_attn.kv_a_layernorm",
        "blk.{i}.attn_k_b": _part_of_kv_b(values=False),
        "blk.{i}.attn_v_b": _part_of_kv_b(values=True),
        "blk.{i}.exp_probs_b.bias": "layers.{i}.mlp.gate.e_score_correction_bias",
        "blk.{i}.ffn_gate_shexp": "layers.{i}.mlp.shared_experts.gate_proj",
        "blk.{i}.ffn_up_shexp": "layers.{i}.mlp.shared_experts.up_proj",
        "blk.{i}.ffn_down_shexp": "layers.{i}.mlp.shared_experts.down_proj",
    },
    {
        **DECODER_KEYS,
        "attention.head_count_kv": lambda _: 1,
        "attention.key_length": _of_latent(turned=True),
        "attention.value_length": _of_latent(turned=False),
        "attention.key_length_mla": lambda config: int(
            config.need("qk_nope_head_dim") + config.need("qk_rope_head_dim")
        ),
        "attention.value_length_mla": "v_head_dim",
        "attention.q_lora_rank": "q_lora_rank",
        "attention.kv_lora_rank": "kv_lora_rank",
        "rope.dimension_count": "qk_rope_head_dim",
        "rope.scaling.yarn_log_multiplier": _log_multiplier,
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_shared_count": "n_shared_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_weights_scale": number("routed_scaling_factor", default=1.0),
        "expert_weights_norm": "norm_topk_prob",
        "expert_gating_func": _gating_function,
        "expert_group_count": _groups("n_group"),
        "expert_group_used_count": _groups("topk_group"),
        GROUP_BEST: lambda config: 1 if config.get("topk_method") == ONE_OF_GROUP else None,
    },
    expects={
        "hidden_act": ("silu",), "rope_interleave": (True,), "moe_layer_freq": (1,),
        "topk_method": ("greedy", "noaux_tc", ONE_OF_GROUP), "attention_bias": (False,),
        "scoring_func": ("softmax", "sigmoid"),
    },
)  # fmt: skip


MISTRAL: Final = replace(
    CHECKPOINT,
    model_types=("mistral4",),
    architecture="mistral4",
    tensors={
        **CHECKPOINT.tensors,
        "blk.{i}.ffn_gate_up_exps.weight": "layers.{i}.mlp.experts.gate_up_proj",
        "blk.{i}.ffn_down_exps.weight": "layers.{i}.mlp.experts.down_proj",
        **dict.fromkeys(f"blk.{{i}}.ffn_{x}_exps" for x in ("gate", "up", "down")),
    },
    keys={
        **CHECKPOINT.keys,
        "attention.temperature_scale": _of_rope("llama_4_scaling_beta", float),
        "attention.temperature_length": _of_rope("original_max_position_embeddings", int),
    },
    prefixes=("language_model.model.", "model.language_model.", "language_model.", "model."),
    ignored=(r"vision_tower\.", r"multi_modal_projector\."),
    expects={x: y for x, y in CHECKPOINT.expects.items() if x != "topk_method"},
)
ARCHITECTURE = Architecture(("deepseek2", "mistral4"), describe, (CHECKPOINT, MISTRAL))
