"""Layouts similar to llama's and gpt2's: other norms, no gate, parallel attention and net."""

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
    POST_NORMS,
    QKV_BIAS,
    SHARED,
    VOCABULARY,
    WIDTH,
    WINDOW,
    Layout,
)
from models.layouts_states import scanned

Shapes = dict[str, tuple[int, ...] | None]

_CENTRED: Final[Shapes] = {"attn_norm.bias": (WIDTH,), "ffn_norm.bias": (WIDTH,)}
_UNGATED: Final[Shapes] = {
    "ffn_gate.weight": None,
    "ffn_up.bias": (INNER,),
    "ffn_down.bias": (WIDTH,),
    "attn_output.bias": (WIDTH,),
}
_ALL_HEADS: Final = WIDTH + 2 * HEAD * KV_HEADS
_JOINED: Final[Shapes] = {
    "attn_q.weight": None,
    "attn_k.weight": None,
    "attn_v.weight": None,
    "attn_qkv.weight": (_ALL_HEADS, WIDTH),
    "attn_qkv.bias": (_ALL_HEADS,),
}
_ONE_NORM: Final[Shapes] = {"ffn_norm.weight": None, "ffn_norm.bias": None}
_LAST: Final = {"output_norm.bias": (WIDTH,)}
_EPS: Final[dict[str, Any]] = {"attention.layer_norm_epsilon": 1e-5}
#: Which layers see a window: all but the first of every four.
_NEAR: Final[dict[str, Any]] = {
    "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": [False, True, True, True],
}
_HYBRID: Final[dict[str, Any]] = {
    "logit_scale": 8.0,
    "residual_scale": 0.22,
    "embedding_scale": 12.0,
    "attention.scale": 0.0625,
}


_ATTENTION: Final = tuple(name for name in DENSE if "attn" in name)


def _of_heads(n: int) -> Shapes:
    """The matrices of keys and values of so many heads."""
    return {f"attn_{x}.weight": (n * HEAD, WIDTH) for x in ("k", "v")}


def _net(inner: int) -> Shapes:
    """A net with so many elements between its matrices."""
    return {
        **{f"ffn_{x}.weight": (inner, WIDTH) for x in ("gate", "up")},
        "ffn_down.weight": (WIDTH, inner),
    }


def _granitehybrid(nets: Shapes, metadata: dict[str, Any]) -> Layout:
    """The third of four layers has attention."""
    tensors, made = scanned(2)
    attention = {name: shape for name, shape in DENSE.items() if "attn" in name}
    without: Shapes = dict.fromkeys(name for name in attention if name != "attn_norm.weight")
    of_scan: Shapes = {**without, **tensors}
    heads = [0, 0, KV_HEADS, 0]
    more = {**made, **_HYBRID, **metadata, "attention.head_count_kv": heads}
    single: dict[int, Shapes] = {2: {**dict.fromkeys(tensors), **attention}}
    return Layout("granitehybrid", {**of_scan, **nets}, metadata=more, single=single)


#: Of openelm: layers with more heads and a larger net.
_SIX_HEADS: Final[Shapes] = {
    "attn_qkv.weight": (12 * HEAD, WIDTH),
    "attn_output.weight": (WIDTH, 6 * HEAD),
    **_net(128),
}

_PLAMO3: Final[Shapes] = {
    **_JOINED, "attn_qkv.bias": None, **HEAD_NORMS, "ffn_gate.weight": None,
    "ffn_up.weight": (2 * INNER, WIDTH), "post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,),
}  # fmt: skip

LAYOUTS: Final = {
    "gemma": Layout(
        "gemma",
        {
            "attn_q.weight": (2 * WIDTH, WIDTH), "attn_k.weight": (2 * HEAD, WIDTH),
            "attn_v.weight": (2 * HEAD, WIDTH), "attn_output.weight": (WIDTH, 2 * WIDTH),
        },
        metadata={
            "attention.head_count_kv": 1, "attention.key_length": 2 * HEAD,
            "attention.value_length": 2 * HEAD,
        },
    ),
    "phi2": Layout(
        "phi2",
        {**_CENTRED, **_UNGATED, **QKV_BIAS, **_ONE_NORM},
        {**OUTPUT, **_LAST, "output.bias": (VOCABULARY,)},
        {**_EPS, "rope.dimension_count": HEAD // 2},
    ),
    "phi2-joined": Layout(
        "phi2",
        {**_CENTRED, **_UNGATED, **_JOINED, **_ONE_NORM},
        {**OUTPUT, **_LAST, "output.bias": (VOCABULARY,)},
        {**_EPS, "rope.dimension_count": HEAD // 2},
    ),
    "stablelm": Layout(
        "stablelm", {**_CENTRED, **QKV_BIAS}, {**OUTPUT, **_LAST},
        {**_EPS, "rope.dimension_count": HEAD // 4, "use_parallel_residual": False},
    ),
    "stablelm-12b": Layout(
        "stablelm",
        {
            **_CENTRED, **_ONE_NORM, "attn_q_norm.weight": (HEADS, HEAD),
            "attn_k_norm.weight": (KV_HEADS, HEAD),
        },
        {**OUTPUT, **_LAST},
        {**_EPS, "rope.dimension_count": HEAD // 4, "use_parallel_residual": True},
    ),
    "starcoder2": Layout("starcoder2", {**_CENTRED, **_UNGATED, **QKV_BIAS}, _LAST, _EPS),
    "gpt2": Layout(
        "gpt2", {**_CENTRED, **_UNGATED, **_JOINED},
        {**_LAST, "position_embd.weight": (512, WIDTH)}, _EPS,
    ),
    "starcoder": Layout(
        "starcoder",
        {
            **_CENTRED, **_UNGATED, **_JOINED, "attn_qkv.weight": (WIDTH + 2 * HEAD, WIDTH),
            "attn_qkv.bias": (WIDTH + 2 * HEAD,),
        },
        {**OUTPUT, **_LAST, "position_embd.weight": (512, WIDTH)},
        {**_EPS, "attention.head_count_kv": 1},
    ),
    "olmo": Layout(
        "olmo", {"attn_norm.weight": None, "ffn_norm.weight": None}, OUTPUT,
        {**_EPS, "attention.clamp_kqv": 1.5},
    ),
    "dbrx": Layout(
        "dbrx",
        {
            **_JOINED, "attn_qkv.bias": None, **EXPERTS, "ffn_norm.weight": None,
            "attn_output_norm.weight": (WIDTH,),
        },
        OUTPUT,
        {**OF_EXPERTS, **_EPS, "attention.clamp_kqv": 1.5, "feed_forward_length": INNER_OF_EXPERT},
    ),
    "xverse": Layout("xverse", {}, OUTPUT, {"rope.dimension_count": HEAD}),
    "orion": Layout("orion", _CENTRED, {**OUTPUT, **_LAST}, _EPS),
    "bloom": Layout(
        "bloom",
        {
            **_CENTRED, **_UNGATED, **_JOINED, "attn_qkv.weight": (3 * WIDTH, WIDTH),
            "attn_qkv.bias": (3 * WIDTH,), "ffn_up.weight": (4 * WIDTH, WIDTH),
            "ffn_up.bias": (4 * WIDTH,), "ffn_down.weight": (WIDTH, 4 * WIDTH),
        },
        {**_LAST, "token_embd_norm.weight": (WIDTH,), "token_embd_norm.bias": (WIDTH,)},
        {**_EPS, "attention.head_count_kv": HEADS, "feed_forward_length": 4 * WIDTH},
    ),
    "mpt": Layout(
        "mpt", {**_JOINED, "attn_qkv.bias": None, "ffn_gate.weight": None}, {},
        {**_EPS, "attention.clamp_kqv": 1.5, "attention.max_alibi_bias": 8.0},
    ),
    "mpt-positions": Layout(
        "mpt", {**_CENTRED, **_UNGATED, **_JOINED},
        {**OUTPUT, **_LAST, "position_embd.weight": (512, WIDTH)}, _EPS,
    ),
    "openelm": Layout(  # two layers of another size
        "openelm", {**_JOINED, "attn_qkv.bias": None, **HEAD_NORMS}, {},
        {
            "attention.head_count": [4, 4, 6, 6], "attention.head_count_kv": [2, 2, 3, 3],
            "attention.key_length": HEAD, "attention.value_length": HEAD,
            "rope.dimension_count": HEAD, "feed_forward_length": [INNER, INNER, 128, 128],
            "attention.layer_norm_rms_epsilon": 1e-6,
        },
        single={2: _SIX_HEADS, 3: _SIX_HEADS},
    ),
    "baichuan": Layout(
        "baichuan", {}, OUTPUT, {"rope.dimension_count": HEAD, "rope.freq_base": 20000.0},
        layers=32,
    ),
    "baichuan-13b": Layout("baichuan", {}, OUTPUT, {"rope.dimension_count": HEAD}, layers=40),
    "qwen": Layout(
        "qwen",
        {
            **_JOINED, "attn_qkv.weight": (3 * WIDTH, WIDTH), "attn_qkv.bias": (3 * WIDTH,),
            **_net(INNER // 2),  # files tell twice the size
        },
        OUTPUT, {"attention.head_count_kv": HEADS},
    ),
    "refact": Layout("refact", _of_heads(1), metadata={"attention.head_count_kv": 1}),
    "codeshell": Layout(
        "codeshell", {**_CENTRED, **_UNGATED, **_JOINED}, {**OUTPUT, **_LAST},
        {**_EPS, "rope.dimension_count": HEAD},
    ),
    "jais": Layout(
        "jais",
        {
            **_CENTRED, **_UNGATED, **_JOINED, "ffn_gate.weight": (INNER, WIDTH),
            "ffn_gate.bias": (INNER,),
        },
        {**OUTPUT, **_LAST}, {**_EPS, "attention.max_alibi_bias": 8.0},
    ),
    "maincoder": Layout("maincoder", HEAD_NORMS, metadata={"rope.dimension_count": HEAD}),
    "plamo": Layout("plamo", {"ffn_norm.weight": None}, OUTPUT),
    "plamo3": Layout(
        "plamo3", _PLAMO3, {}, {"attention.sliding_window": WINDOW, "rope.freq_base_swa": 5000.0},
        layers=9,
    ),
    "plamo3-without-windows": Layout("plamo3", _PLAMO3, OUTPUT),
    "bitnet": Layout(
        "bitnet", {"attn_sub_norm.weight": (WIDTH,), "ffn_sub_norm.weight": (INNER,)},
        metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
    ),
    "jais2": Layout(
        "jais2", {**_CENTRED, **_UNGATED, **QKV_BIAS}, {**OUTPUT, **_LAST}, _EPS
    ),
    "chatglm": Layout(
        "chatglm", {**QKV_BIAS, "ffn_gate.weight": None, "ffn_up.weight": (2 * INNER, WIDTH)},
        OUTPUT, {"rope.dimension_count": HEAD // 2},
    ),
    "chatglm-joined-qkv": Layout(
        "chatglm", {**_JOINED, "ffn_gate.weight": None, "ffn_up.weight": (2 * INNER, WIDTH)},
        OUTPUT, {"rope.dimension_count": HEAD // 2},
    ),
    "pangu-embedded": Layout(
        "pangu-embedded", {**QKV_BIAS, "attn_output.bias": (WIDTH,)}, OUTPUT
    ),
    "deci": Layout(
        "deci", _net(256), OUTPUT,
        {
            "attention.head_count": [4, 4, 0, 4, 4], "attention.head_count_kv": [2, 1, 0, 0, 4],
            "attention.key_length": HEAD, "attention.value_length": HEAD,
            "feed_forward_length": [256, 512, 256, 256, 512],
        },
        layers=5,
        single={
            1: {**_of_heads(1), **_net(512)}, 2: dict.fromkeys(_ATTENTION),
            3: dict.fromkeys(x for x in _ATTENTION if x[5] in "qkv"),
            4: {**_of_heads(4), **_net(512)},
        },
    ),
    "granite_swa": Layout(
        "granite_swa", {"attn_sinks.weight": (HEADS,)}, OUTPUT,
        {**_HYBRID, **_NEAR, "attention.rope_pattern": [False, True, True, True]},
    ),
    "granite_swa-experts": Layout(
        "granite_swa",
        {
            **EXPERTS, "attn_sinks.weight": (HEADS,), "ffn_gate_exps.weight": None,
            "ffn_up_exps.weight": None,
            "ffn_gate_up_exps.weight": (N_EXPERTS, 2 * INNER_OF_EXPERT, WIDTH),
            "ffn_up_shexp.weight": (2 * INNER, WIDTH), "ffn_down_shexp.weight": (WIDTH, INNER),
        },
        OUTPUT,
        {
            **_HYBRID, **_NEAR, **OF_EXPERTS, "feed_forward_length": INNER_OF_EXPERT,
            "expert_shared_feed_forward_length": INNER,
        },
    ),
    "gptneox": Layout(
        "gptneox", {**_CENTRED, **_UNGATED, **_JOINED}, {**OUTPUT, **_LAST},
        {**_EPS, "rope.dimension_count": HEAD // 4, "use_parallel_residual": True},
    ),
    "gptneox-one-after-the-other": Layout(
        "gptneox", {**_CENTRED, **_UNGATED, **_JOINED}, {**OUTPUT, **_LAST},
        {**_EPS, "rope.dimension_count": HEAD, "use_parallel_residual": False},
    ),
    "smollm3": Layout("smollm3", layers=5),
    "seed_oss": Layout(
        "seed_oss",
        {**QKV_BIAS, "ffn_norm.weight": None, "post_attention_norm.weight": (WIDTH,)},
        OUTPUT,
    ),
    "ernie4_5": Layout("ernie4_5"),
    "exaone4": Layout(
        "exaone4",
        {**POST_NORMS, **HEAD_NORMS, "attn_norm.weight": None, "ffn_norm.weight": None},
    ),
    "exaone4-32b": Layout(
        "exaone4",
        {**POST_NORMS, **HEAD_NORMS, "attn_norm.weight": None, "ffn_norm.weight": None},
        OUTPUT,
        {"attention.sliding_window": 12},
        layers=64,
    ),
    "hunyuan-dense": Layout("hunyuan-dense", HEAD_NORMS),
    "hunyuan-dense-stretched": Layout(
        "hunyuan-dense", HEAD_NORMS, OUTPUT, {"rope.scaling.alpha": 1000.0}
    ),
    "granitehybrid": _granitehybrid({}, {}),
    "granitehybrid-experts": _granitehybrid(
        {**EXPERTS, **SHARED},
        {
            **OF_EXPERTS, "feed_forward_length": INNER_OF_EXPERT,
            "expert_shared_feed_forward_length": INNER, "rope.scaling.finetuned": False,
        },
    ),
}  # fmt: skip
