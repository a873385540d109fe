"""Layouts of models some of whose layers keep states, and whose others have attention."""

from __future__ import annotations

from typing import Any, Final

from models.layout import (
    DENSE,
    EXPERTS,
    HEAD,
    HEAD_NORMS,
    HEADS,
    INNER,
    KV_HEADS,
    OF_EXPERTS,
    OUTPUT,
    SHARED,
    WIDTH,
    Layout,
)
from models.layouts_states import DELTA_HEAD, KERNEL, KEY_HEADS, KEYS, VALUE_HEADS, VALUES

Shapes = dict[str, tuple[int, ...] | None]

_NOTHING: Final[Shapes] = dict.fromkeys(DENSE)
_GATED: Final[Shapes] = {
    "attn_norm.weight": (WIDTH,),
    "attn_q.weight": (2 * WIDTH, WIDTH),
    "attn_k.weight": (HEAD * KV_HEADS, WIDTH),
    "attn_v.weight": (HEAD * KV_HEADS, WIDTH),
    "attn_output.weight": (WIDTH, HEAD * HEADS),
    **HEAD_NORMS,
}
_AHEAD: Final[Shapes] = {
    "nextn.eh_proj.weight": (WIDTH, 2 * WIDTH),
    "nextn.enorm.weight": (WIDTH,),
    "nextn.hnorm.weight": (WIDTH,),
    "nextn.shared_head_norm.weight": (WIDTH,),
}


def _qwen35(architecture: str, nets: Shapes, metadata: dict[str, Any], *, ahead: bool) -> Layout:
    """Three of four layers are delta nets; a last layer may predict further tokens."""
    nets = {**nets, "post_attention_norm.weight": (WIDTH,)}
    linear: Shapes = {
        **_NOTHING,
        "attn_norm.weight": (WIDTH,),
        "attn_qkv.weight": (2 * KEYS + VALUES, WIDTH),
        "attn_gate.weight": (VALUES, WIDTH),
        "ssm_conv1d.weight": (2 * KEYS + VALUES, KERNEL),
        "ssm_dt.bias": (VALUE_HEADS,),
        "ssm_a": (VALUE_HEADS,),
        "ssm_beta.weight": (VALUE_HEADS, WIDTH),
        "ssm_alpha.weight": (VALUE_HEADS, WIDTH),
        "ssm_norm.weight": (DELTA_HEAD,),
        "ssm_out.weight": (WIDTH, VALUES),
    }
    attention: Shapes = {**dict.fromkeys(linear), **_GATED, **nets}
    single: dict[int, Shapes] = {3: attention}
    whole: dict[str, Any] = {
        "ssm.conv_kernel": KERNEL,
        "ssm.inner_size": VALUES,
        "ssm.state_size": DELTA_HEAD,
        "ssm.time_step_rank": VALUE_HEADS,
        "ssm.group_count": KEY_HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "rope.dimension_count": HEAD // 2,
        "rope.dimension_sections": [2, 1, 1, 0],
        **metadata,
    }
    if ahead:
        single[5] = {**attention, **_AHEAD}
        whole["nextn_predict_layers"] = 1
    return Layout(
        architecture, {**linear, **nets}, OUTPUT, whole, layers=6 if ahead else 5, single=single
    )


_NET: Final[Shapes] = {
    "ffn_gate.weight": (INNER, WIDTH),
    "ffn_up.weight": (INNER, WIDTH),
    "ffn_down.weight": (WIDTH, INNER),
}
_NETS: Final[Shapes] = {**EXPERTS, **SHARED, "ffn_gate_inp_shexp.weight": (WIDTH,)}
_MADE: Final = {**OF_EXPERTS, "expert_shared_feed_forward_length": INNER}

LAYOUTS: Final = {
    "qwen35": _qwen35("qwen35", _NET, {}, ahead=False),
    "qwen35-ahead": _qwen35("qwen35", _NET, {}, ahead=True),
    "qwen35moe": _qwen35("qwen35moe", _NETS, _MADE, ahead=False),
    "qwen35moe-ahead": _qwen35("qwen35moe", _NETS, _MADE, ahead=True),
}
