"""Layouts of models with experts, and of others that differ little from llama's."""

from __future__ import annotations

from typing import Any, Final

from models.layout import (
    EXPERTS,
    HEAD,
    HEAD_NORMS,
    HEADS,
    INNER,
    INNER_OF_EXPERT,
    KV_HEADS,
    N_EXPERTS,
    OF_EXPERTS,
    OUTPUT,
    QKV_BIAS,
    SHARED,
    WIDTH,
    WINDOW,
    Layout,
)

Shapes = dict[str, tuple[int, ...] | None]

_NETS: Final[Shapes] = {**EXPERTS, **SHARED, "exp_probs_b.bias": (N_EXPERTS,)}
_DENSE: Final[Shapes] = {
    **dict.fromkeys(_NETS),
    "ffn_gate.weight": (INNER, WIDTH),
    "ffn_up.weight": (INNER, WIDTH),
    "ffn_down.weight": (WIDTH, INNER),
}
_FIRST: Final = {0: _DENSE}
_AHEAD: Final[Shapes] = {
    "nextn.eh_proj.weight": (WIDTH, 2 * WIDTH),
    "nextn.enorm.weight": (WIDTH,),
    "nextn.hnorm.weight": (WIDTH,),
}
_ROUTED: Final[dict[str, Any]] = {
    **OF_EXPERTS,
    "leading_dense_block_count": 1,
    "expert_shared_count": INNER // INNER_OF_EXPERT,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
}
_WIDE_NORMS: Final[Shapes] = {
    "attn_q_norm.weight": (WIDTH,),
    "attn_k_norm.weight": (HEAD * KV_HEADS,),
}
_JOINED: Final[Shapes] = {
    "attn_q.weight": None,
    "attn_k.weight": None,
    "attn_v.weight": None,
    "attn_qkv.weight": (WIDTH + 2 * HEAD * KV_HEADS, WIDTH),
}
_POST: Final[Shapes] = {"ffn_norm.weight": None, "post_attention_norm.weight": (WIDTH,)}
_YARN: Final[dict[str, Any]] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
    "rope.scaling.yarn_log_multiplier": 1.0,
    "attention.temperature_scale": 0.1,
}

LAYOUTS: Final = {
    "mistral3-late": Layout("mistral3", whole=OUTPUT, metadata=_YARN),
    "mistral3": Layout("mistral3"),
    "glm4moe": Layout(
        "glm4moe", {**_NETS, **_POST, **QKV_BIAS}, OUTPUT,
        {**_ROUTED, "rope.dimension_count": HEAD // 2}, single=_FIRST,
    ),
    "glm4moe-normed": Layout(
        "glm4moe", {**_NETS, **_POST, **QKV_BIAS, **HEAD_NORMS}, OUTPUT,
        {**_ROUTED, "rope.dimension_count": HEAD // 2, "nextn_predict_layers": 1},
        layers=5, single={**_FIRST, 4: _AHEAD},
    ),
    "cohere2": Layout(
        "cohere2", {"ffn_norm.weight": None},
        metadata={
            "attention.sliding_window": WINDOW, "logit_scale": 0.0625,
            "attention.layer_norm_epsilon": 1e-5,
        },
        layers=5,
    ),
    "minimax-m2": Layout(
        "minimax-m2", {**EXPERTS, **_WIDE_NORMS, "exp_probs_b.bias": (N_EXPERTS,)}, OUTPUT,
        {**OF_EXPERTS, "feed_forward_length": INNER_OF_EXPERT, "expert_gating_func": 2,
         "rope.dimension_count": HEAD // 2},
    ),
    "olmoe": Layout(
        "olmoe",
        {
            **EXPERTS, "attn_q_norm.weight": (WIDTH,), "attn_k_norm.weight": (WIDTH,),
            "attn_k.weight": (WIDTH, WIDTH), "attn_v.weight": (WIDTH, WIDTH),
        },
        OUTPUT,
        {**OF_EXPERTS, "feed_forward_length": INNER_OF_EXPERT, "attention.head_count_kv": HEADS},
    ),
    "dots1": Layout(
        "dots1",
        {**_NETS, **HEAD_NORMS, "attn_k.weight": (WIDTH, WIDTH), "attn_v.weight": (WIDTH, WIDTH)},
        OUTPUT, {**_ROUTED, "attention.head_count_kv": HEADS}, single=_FIRST,
    ),
    "bailingmoe2": Layout(
        "bailingmoe2", {**_NETS, **HEAD_NORMS, **_JOINED}, OUTPUT,
        {**_ROUTED, "expert_group_count": 4, "expert_group_used_count": 2,
         "rope.dimension_count": HEAD // 2},
        single=_FIRST,
    ),
    "hunyuan-moe": Layout(
        "hunyuan-moe", {**EXPERTS, **SHARED, **HEAD_NORMS}, OUTPUT,
        {**OF_EXPERTS, "feed_forward_length": INNER_OF_EXPERT,
         "expert_shared_feed_forward_length": INNER},
    ),
    "ernie4_5-moe": Layout(
        "ernie4_5-moe", _NETS, metadata={
            **OF_EXPERTS, "leading_dense_block_count": 1, "interleave_moe_layer_step": 1,
            "expert_shared_feed_forward_length": INNER,
        },
        single=_FIRST,
    ),
    "qwen2vl": Layout("qwen2vl", QKV_BIAS, metadata={"rope.dimension_sections": [2, 3, 3, 0]}),
    "qwen3vl": Layout(
        "qwen3vl", HEAD_NORMS, metadata={"rope.dimension_sections": [3, 3, 2, 0]}
    ),
    "qwen3vlmoe": Layout(
        "qwen3vlmoe", {**HEAD_NORMS, **EXPERTS}, OUTPUT,
        {**OF_EXPERTS, "rope.dimension_sections": [3, 3, 2, 0]},
    ),
}  # fmt: skip
