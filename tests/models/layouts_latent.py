"""Layouts of deepseek2: latent attention, folded or not; experts after dense layers."""

from __future__ import annotations

from typing import Any, Final

from models.layout import (
    EXPERTS,
    HEADS,
    INNER,
    INNER_OF_EXPERT,
    N_EXPERTS,
    OF_EXPERTS,
    OUTPUT,
    SHARED,
    WIDTH,
    Layout,
)

RANK: Final = 32  # elements of the latent vector from which keys and values are computed
QUERY_RANK: Final = 24
PLAIN: Final = 16
TURNED: Final = 8
VALUE: Final = 16
KEY: Final = PLAIN + TURNED

_COMMON: Final[dict[str, tuple[int, ...] | None]] = {
    "attn_q.weight": None,
    "attn_k.weight": None,
    "attn_v.weight": None,
    "attn_q_a.weight": (QUERY_RANK, WIDTH),
    "attn_q_a_norm.weight": (QUERY_RANK,),
    "attn_q_b.weight": (HEADS * KEY, QUERY_RANK),
    "attn_kv_a_mqa.weight": (RANK + TURNED, WIDTH),
    "attn_kv_a_norm.weight": (RANK,),
    "attn_output.weight": (WIDTH, HEADS * VALUE),
}
_UNFOLDED: Final = {**_COMMON, "attn_kv_b.weight": (HEADS * (PLAIN + VALUE), RANK)}
_FOLDED: Final = {
    **_COMMON,
    "attn_k_b.weight": (HEADS, RANK, PLAIN),
    "attn_v_b.weight": (HEADS, VALUE, RANK),
}
_LITE: Final[dict[str, tuple[int, ...] | None]] = {
    "attn_q_a.weight": None,
    "attn_q_a_norm.weight": None,
    "attn_q_b.weight": None,
    "attn_q.weight": (HEADS * KEY, WIDTH),
}
_NETS: Final = {**EXPERTS, **SHARED}
_DENSE_FIRST: Final = {0: {name: None for name in _NETS if "exp" in name or "inp" in name}}
_DENSE_NET: Final = {
    "ffn_gate.weight": (INNER, WIDTH),
    "ffn_up.weight": (INNER, WIDTH),
    "ffn_down.weight": (WIDTH, INNER),
}
_SINGLE: Final = {0: {**_DENSE_FIRST[0], **_DENSE_NET}}
_MADE: Final[dict[str, Any]] = {
    **OF_EXPERTS,
    "expert_shared_count": INNER // INNER_OF_EXPERT,
    "leading_dense_block_count": 1,
    "attention.kv_lora_rank": RANK,
    "attention.q_lora_rank": QUERY_RANK,
    "rope.dimension_count": TURNED,
}
_OF_UNFOLDED: Final = {
    **_MADE,
    "attention.head_count_kv": HEADS,
    "attention.key_length": KEY,
    "attention.value_length": VALUE,
}
_OF_FOLDED: Final = {
    **_MADE,
    "attention.head_count_kv": 1,
    "attention.key_length": RANK + TURNED,
    "attention.value_length": RANK,
    "attention.key_length_mla": KEY,
    "attention.value_length_mla": VALUE,
}
_YARN: Final = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}
_SIGMOID: Final = {
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
}
_BIAS: Final = {"exp_probs_b.bias": (N_EXPERTS,)}
_KERNEL: Final = 4
#: A layer with a state: it has the heads of attention, each with as many elements as VALUE.
_STATE: Final[dict[str, tuple[int, ...] | None]] = {
    **dict.fromkeys((*_FOLDED, *_LITE)),
    "attn_q.weight": (HEADS * VALUE, WIDTH),
    "attn_k.weight": (HEADS * VALUE, WIDTH),
    "attn_v.weight": (HEADS * VALUE, WIDTH),
    "attn_output.weight": (WIDTH, HEADS * VALUE),
    **{f"ssm_conv1d_{x}.weight": (1, HEADS * VALUE, 1, _KERNEL) for x in ("q", "k", "v")},
    **{f"ssm_{x}_a.weight": (VALUE, WIDTH) for x in ("f", "g")},
    **{f"ssm_{x}_b.weight": (HEADS * VALUE, VALUE) for x in ("f", "g")},
    "ssm_beta.weight": (HEADS, WIDTH),
    "ssm_dt.bias": (HEADS * VALUE,),
    "ssm_a": (1, 1, HEADS, 1),
    "ssm_norm.weight": (VALUE,),
}
_GROUPS: Final = {"expert_group_count": 4, "expert_group_used_count": 2}

LAYOUTS: Final = {
    "deepseek2": Layout("deepseek2", {**_FOLDED, **_NETS}, OUTPUT, _OF_FOLDED, single=_SINGLE),
    "deepseek2-unfolded": Layout(
        "deepseek2", {**_UNFOLDED, **_NETS}, OUTPUT, _OF_UNFOLDED, single=_SINGLE
    ),
    "deepseek2-lite": Layout(
        "deepseek2",
        {**_FOLDED, **_NETS, **_LITE},
        OUTPUT,
        {**_OF_FOLDED, "attention.q_lora_rank": 0},
        single=_SINGLE,
    ),
    "deepseek2-lite-unfolded": Layout(
        "deepseek2",
        {**_UNFOLDED, **_NETS, **_LITE},
        OUTPUT,
        {**_OF_UNFOLDED, **_YARN, "attention.q_lora_rank": 0},
        single=_SINGLE,
    ),
    "deepseek2-stretched": Layout(
        "deepseek2", {**_FOLDED, **_NETS}, OUTPUT, {**_OF_FOLDED, **_YARN}, single=_SINGLE
    ),
    "deepseek3": Layout(
        "deepseek2",
        {**_FOLDED, **_NETS, **_BIAS},
        OUTPUT,
        {**_OF_FOLDED, **_YARN, **_SIGMOID, **_GROUPS},
        single={0: {**_SINGLE[0], "exp_probs_b.bias": None}},
    ),
    "kimi-linear": Layout(
        "kimi-linear",
        {**_FOLDED, **_NETS, **_BIAS, **_LITE},
        OUTPUT,
        {
            **{x: y for x, y in _OF_FOLDED.items() if "q_lora" not in x},
            "attention.head_count_kv": [0, 0, 1, 0, 1],
            "kda.head_dim": VALUE,
            "ssm.conv_kernel": _KERNEL,
            "expert_gating_func": 2,
            "expert_weights_scale": 2.446,
            "expert_shared_count": INNER // INNER_OF_EXPERT,
        },
        layers=5,
        single={
            0: {**_STATE, **_SINGLE[0], "exp_probs_b.bias": None},
            1: _STATE,
            3: _STATE,
        },
    ),
    "minicpm3": Layout(
        "minicpm3",
        _UNFOLDED,
        {
            **OUTPUT,
            "rope_factors_short.weight": (TURNED // 2,),
            "rope_factors_long.weight": (TURNED // 2,),
        },
        {
            **{x: y for x, y in _OF_UNFOLDED.items() if "expert" not in x and "leading" not in x},
            "rope.scaling.original_context_length": 128,
        },
    ),
    "mistral4": Layout(
        "mistral4",
        {
            **_FOLDED,
            **_NETS,
            "ffn_gate_exps.weight": None,
            "ffn_up_exps.weight": None,
            "ffn_gate_up_exps.weight": (N_EXPERTS, 2 * INNER_OF_EXPERT, WIDTH),
        },
        OUTPUT,
        {
            **_OF_FOLDED,
            **_YARN,
            "rope.scaling.yarn_log_multiplier": 0.1,
            "leading_dense_block_count": 0,
            "expert_weights_norm": True,
            "expert_gating_func": 1,
            "attention.temperature_scale": 0.1,
            "attention.temperature_length": 16,
        },
    ),
}
