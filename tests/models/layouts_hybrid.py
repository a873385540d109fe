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
    INNER_OF_EXPERT,
    KV_HEADS,
    N_EXPERTS,
    OF_EXPERTS,
    OUTPUT,
    SHARED,
    WIDTH,
    Layout,
)
from models.layouts_states import DELTA_HEAD, KERNEL, KEY_HEADS, KEYS, VALUE_HEADS, VALUES, scanned

Shapes = dict[str, tuple[int, ...] | None]

_NOTHING: Final[Shapes] = dict.fromkeys(DENSE)
_DENSE_NET: Final = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
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


def _lfm2(moe: bool) -> Layout:
    """The third of four layers, and the last one, have attention."""
    conv: Shapes = {
        **_NOTHING,
        "attn_norm.weight": (WIDTH,),
        "ffn_norm.weight": (WIDTH,),
        "shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
        "shortconv.conv.weight": (WIDTH, 3),
        "shortconv.out_proj.weight": (WIDTH, WIDTH),
    }
    attention: Shapes = {
        **dict.fromkeys(conv), **{x: y for x, y in DENSE.items() if "ffn" not in x},
        **HEAD_NORMS, "ffn_norm.weight": (WIDTH,),
    }  # fmt: skip
    experts: Shapes = {**EXPERTS, "exp_probs_b.bias": (N_EXPERTS,)} if moe else _NET
    dense: Shapes = {**dict.fromkeys(experts), **_NET}
    metadata: dict[str, Any] = {
        "shortconv.l_cache": 3, "attention.head_count_kv": [0, 0, KV_HEADS, 0, KV_HEADS],
    }  # fmt: skip
    if moe:
        metadata |= {**OF_EXPERTS, "leading_dense_block_count": 1, "expert_gating_func": 2}
    single = {
        0: {**conv, **dense},
        2: {**attention, **experts},
        4: {**attention, **experts},
    }
    name = "lfm2moe" if moe else "lfm2"
    return Layout(
        name, {**conv, **experts}, {"token_embd_norm.weight": (WIDTH,)}, metadata,
        layers=5, single=single,
    )  # fmt: skip


def _nemotron_h(nets: Shapes, metadata: dict[str, Any]) -> Layout:
    """A scan, a net, attention, a net, a scan, attention."""
    tensors, scan = scanned(2)
    one: Shapes = {**_NOTHING, "attn_norm.weight": (WIDTH,)}
    attention: Shapes = {
        **one, **{x: y for x, y in DENSE.items() if x.startswith("attn")},
        "attn_output.bias": (WIDTH,),
    }  # fmt: skip
    kinds = "SNANSA"
    parts: dict[str, Shapes] = {"S": {**one, **tensors}, "N": {**one, **nets}, "A": attention}
    of_experts = "expert_count" in metadata
    inner = INNER_OF_EXPERT if of_experts else INNER
    return Layout(
        "nemotron_h_moe" if of_experts else "nemotron_h",
        dict.fromkeys(DENSE),
        OUTPUT,
        {
            **scan,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.head_count_kv": [KV_HEADS if x == "A" else 0 for x in kinds],
            "feed_forward_length": [inner if x == "N" else 0 for x in kinds],
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            **metadata,
        },
        layers=len(kinds),
        single={i: parts[x] for i, x in enumerate(kinds)},
    )


_UNGATED: Final[Shapes] = {"ffn_up.weight": (INNER, WIDTH), "ffn_down.weight": (WIDTH, INNER)}


def _nemotron_experts(seen: int) -> Shapes:
    """Experts without a gate, on ``seen`` elements."""
    found: Shapes = {
        "ffn_gate_inp.weight": (N_EXPERTS, WIDTH),
        "exp_probs_b.bias": (N_EXPERTS,),
        "ffn_up_exps.weight": (N_EXPERTS, INNER_OF_EXPERT, seen),
        "ffn_down_exps.weight": (N_EXPERTS, seen, INNER_OF_EXPERT),
        "ffn_up_shexp.weight": (INNER, WIDTH),
        "ffn_down_shexp.weight": (WIDTH, INNER),
    }
    if seen != WIDTH:
        found |= {"ffn_latent_down.weight": (seen, WIDTH), "ffn_latent_up.weight": (WIDTH, seen)}
    return found


_NEMOTRON: Final[dict[str, Any]] = {
    **OF_EXPERTS,
    "expert_shared_feed_forward_length": INNER,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "expert_group_count": 1,
}


def _falcon_h1(norm: bool) -> Layout:
    tensors, scan = scanned(1)
    more: Shapes = {**tensors, "ffn_norm.weight": None, "ffn_norm": (WIDTH,)}
    if not norm:
        more["ssm_norm.weight"] = None
    return Layout("falcon-h1", more, OUTPUT, {**scan, "rope.freq_base": 1e6})


def _mamba(metadata: dict[str, Any]) -> Layout:
    inner, state, rank = 2 * WIDTH, 16, 8
    tensors: Shapes = {
        **_NOTHING,
        "attn_norm.weight": (WIDTH,),
        "ssm_in.weight": (2 * inner, WIDTH),
        "ssm_conv1d.weight": (inner, KERNEL),
        "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (rank + 2 * state, inner),
        "ssm_dt.weight": (inner, rank),
        "ssm_dt.bias": (inner,),
        "ssm_a": (inner, state),
        "ssm_d": (inner,),
        "ssm_out.weight": (WIDTH, inner),
    }
    nothing = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    made: dict[str, Any] = {
        **dict.fromkeys(nothing, 0), "ssm.conv_kernel": KERNEL, "ssm.inner_size": inner,
        "ssm.state_size": state, "ssm.time_step_rank": rank, **metadata,
    }  # fmt: skip
    return Layout("mamba", tensors, metadata=made)


def _jamba(*, moe: bool) -> Layout:
    """The second of four layers has attention; every second one has experts."""
    scan = _mamba({})
    of_scan: Shapes = {
        **{x: y for x, y in scan.tensors.items() if x not in _DENSE_NET},
        "ssm_dt_norm.weight": (8,), "ssm_b_norm.weight": (16,), "ssm_c_norm.weight": (16,),
        "ffn_norm.weight": (WIDTH,),
    }  # fmt: skip
    attention: Shapes = {
        **dict.fromkeys(x for x in of_scan if "ssm" in x),
        **{x: y for x, y in DENSE.items() if "attn" in x},
    }
    nets: Shapes = dict(EXPERTS) if moe else {}
    single: dict[int, Shapes] = {1: {**attention, **nets}, 3: nets}
    made: dict[str, Any] = {
        **{x: y for x, y in scan.metadata.items() if x.startswith("ssm")},
        "attention.head_count_kv": [0, KV_HEADS, 0, 0], "expert_count": N_EXPERTS if moe else 1,
        "expert_used_count": 2 if moe else 1,
        "feed_forward_length": INNER_OF_EXPERT if moe else INNER,
    }  # fmt: skip
    if moe:  # experts and the other nets have the same size
        of_scan |= {x: (n, WIDTH) if x != "ffn_down.weight" else (WIDTH, n)
                    for x in _DENSE_NET for n in (INNER_OF_EXPERT,)}  # fmt: skip
    return Layout("jamba", of_scan, {} if moe else OUTPUT, made, single=single)


LAYOUTS: Final = {
    "jamba": _jamba(moe=True),
    "jamba-dense": _jamba(moe=False),
    "qwen35": _qwen35("qwen35", _NET, {}, ahead=False),
    "qwen35-ahead": _qwen35("qwen35", _NET, {}, ahead=True),
    "qwen35moe": _qwen35("qwen35moe", _NETS, _MADE, ahead=False),
    "qwen35moe-ahead": _qwen35("qwen35moe", _NETS, _MADE, ahead=True),
    "lfm2": _lfm2(moe=False),
    "lfm2moe": _lfm2(moe=True),
    "nemotron_h": _nemotron_h(_UNGATED, {}),
    "nemotron_h_moe": _nemotron_h(_nemotron_experts(WIDTH), _NEMOTRON),
    "nemotron_h_moe-latent": _nemotron_h(
        _nemotron_experts(WIDTH // 2), {**_NEMOTRON, "moe_latent_size": WIDTH // 2}
    ),
    "falcon-h1-without-norm": _falcon_h1(norm=False),
    "falcon-h1": _falcon_h1(norm=True),
    "mamba": _mamba({}),
}
