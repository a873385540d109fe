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
    POST_NORMS,
    QKV_BIAS,
    SHARED,
    VOCABULARY,
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
_SHARED_SMALL: Final[Shapes] = {
    "ffn_gate_shexp.weight": (INNER_OF_EXPERT, WIDTH),
    "ffn_up_shexp.weight": (INNER_OF_EXPERT, WIDTH),
    "ffn_down_shexp.weight": (WIDTH, INNER_OF_EXPERT),
}
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


_STRETCHED: Final[dict[str, Any]] = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}  # fmt: skip
#: Of minimax-m3: a token sees two of the blocks of eight positions, its own and the best other one.
_INDEXER: Final[Shapes] = {
    "indexer.q_proj.weight": (KV_HEADS * HEAD, WIDTH),
    "indexer.k_proj.weight": (HEAD, WIDTH),
    "indexer.q_norm.weight": (HEAD,),
    "indexer.k_norm.weight": (HEAD,),
}
#: Of mimo2: values shorter than keys.
_SHORT_VALUES: Final[Shapes] = {
    "attn_k.weight": (HEADS * HEAD, WIDTH),
    "attn_v.weight": (HEADS * HEAD // 2, WIDTH),
    "attn_output.weight": (WIDTH, HEADS * HEAD // 2),
    "attn_sinks.weight": (HEADS,),
}
#: Its layers without a window have fewer heads of keys, and no sinks.
_FAR: Final[Shapes] = {
    "attn_k.weight": (KV_HEADS * HEAD, WIDTH),
    "attn_v.weight": (KV_HEADS * HEAD // 2, WIDTH),
    "attn_sinks.weight": None,
}
_OF_MIMO: Final[dict[str, Any]] = {
    **OF_EXPERTS, "attention.head_count_kv": [KV_HEADS, HEADS, HEADS, KV_HEADS],
    "attention.key_length": HEAD, "attention.value_length": HEAD // 2,
    "attention.sliding_window": WINDOW, "rope.freq_base": 1e6, "rope.freq_base_swa": 10000.0,
    "attention.sliding_window_pattern": [False, True, True, False],
    "rope.dimension_count": HEAD // 2,
}  # fmt: skip


def _joined_short(kv_heads: int) -> Shapes:
    """One matrix for queries, keys and values that are half as long."""
    rows = HEADS * HEAD + kv_heads * (HEAD + HEAD // 2)
    parts = dict.fromkeys(("attn_q.weight", "attn_k.weight", "attn_v.weight"))
    return {**parts, "attn_qkv.weight": (rows, WIDTH)}


#: Of laguna: layers with a window have more heads of queries.
_SIX_HEADS: Final[Shapes] = {
    "attn_q.weight": (6 * HEAD, WIDTH),
    "attn_gate.weight": (6, WIDTH),
    "attn_output.weight": (WIDTH, 6 * HEAD),
}


def _gemma4(layers: int, metadata: dict[str, Any], more: Shapes, whole: Shapes) -> Layout:
    """The layers 2 and 4 see all positions, and have longer heads."""
    far = [i in (2, 4) for i in range(layers)]
    kv_heads = metadata.get("attention.head_count_kv", [KV_HEADS] * layers)
    single: dict[int, Shapes] = {}
    for i, everywhere in enumerate(far):
        head = 2 * HEAD if everywhere else HEAD
        single[i] = {
            "attn_q.weight": (HEADS * head, WIDTH),
            "attn_k.weight": (kv_heads[i] * head, WIDTH),
            "attn_v.weight": (kv_heads[i] * head, WIDTH),
            "attn_output.weight": (WIDTH, HEADS * head),
            "attn_q_norm.weight": (head,),
            "attn_k_norm.weight": (head,),
        }
        if i >= layers - metadata.get("attention.shared_kv_layers", 0):
            single[i] |= dict.fromkeys(["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"])
        elif everywhere and "attention.head_count_kv" in metadata:
            single[i]["attn_v.weight"] = None  # values are the keys
    made: dict[str, Any] = {
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [not x for x in far],
        "attention.key_length": 2 * HEAD,
        "attention.value_length": 2 * HEAD,
        "attention.key_length_swa": HEAD,
        "attention.value_length_swa": HEAD,
        "rope.dimension_count": 2 * HEAD,
        "rope.dimension_count_swa": HEAD,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 10000.0,
        "embedding_length_per_layer_input": 0,
        "final_logit_softcapping": 30.0,
        "attention.head_count_kv": KV_HEADS,
    }
    outside: dict[str, tuple[int, ...]] = {"rope_freqs.weight": (HEAD,)}
    outside |= {name: shape for name, shape in whole.items() if shape is not None}
    return Layout("gemma4", {**POST_NORMS, **more}, outside, {**made, **metadata},
                  layers=layers, single=single)  # fmt: skip


_SIZE: Final = 8  # elements of the embedding that a token has for each layer
_OF_LAYERS: Final[Shapes] = {
    "inp_gate.weight": (_SIZE, WIDTH),
    "proj.weight": (WIDTH, _SIZE),
    "post_norm.weight": (WIDTH,),
    "layer_output_scale.weight": (1,),
}
_BESIDE: Final[Shapes] = {
    "ffn_gate_inp.weight": (N_EXPERTS, WIDTH),
    "ffn_gate_inp.scale": (WIDTH,),
    "ffn_gate_up_exps.weight": (N_EXPERTS, 2 * INNER_OF_EXPERT, WIDTH),
    "ffn_down_exps.weight": (N_EXPERTS, WIDTH, INNER_OF_EXPERT),
    "ffn_down_exps.scale": (N_EXPERTS,),
    "pre_ffw_norm_2.weight": (WIDTH,),
    "post_ffw_norm_1.weight": (WIDTH,),
    "post_ffw_norm_2.weight": (WIDTH,),
}

# llama.cpp knows no other numbers of streams, ranks, and layers with keys, whatever a file says.
_STREAMS, _RANK, _KEYED = 4, 64, 20
_PER_LAYER: Final = 256
_FEW: Final = _KEYED + 2  # of the last two layers one has a window
# llama.cpp estimates the deviation of a net's values as if they were a sample, by n - 1 of them;
# transformers, and aggml, divide by n. In a narrow net that is no small difference.
_WIDE: Final = 2048


_FALCON: Final[Shapes] = {
    **_JOINED, "ffn_gate.weight": None, "ffn_norm.weight": None, "attn_norm.bias": (WIDTH,),
}  # fmt: skip
_OF_FALCON: Final[dict[str, Any]] = {
    "attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip


LAYOUTS: Final = {
    "falcon": Layout(
        "falcon", {**_FALCON, "attn_qkv.weight": (WIDTH + 2 * HEAD, WIDTH)},
        {"output_norm.bias": (WIDTH,)}, {**_OF_FALCON, "attention.head_count_kv": 1},
    ),
    "falcon-two-norms": Layout(
        "falcon", {**_FALCON, "attn_norm_2.weight": (WIDTH,), "attn_norm_2.bias": (WIDTH,)},
        {**OUTPUT, "output_norm.bias": (WIDTH,)}, _OF_FALCON,
    ),
    "gemma3n": Layout(
        "gemma3n",
        {
            **POST_NORMS, **HEAD_NORMS, "inp_gate.weight": (_PER_LAYER, WIDTH),
            "proj.weight": (WIDTH, _PER_LAYER), "post_norm.weight": (WIDTH,),
            "altup_correct_coef.weight": (_STREAMS, _STREAMS),
            "altup_correct_scale.weight": (WIDTH,),
            "altup_predict_coef.weight": (_STREAMS**2, _STREAMS),
            "altup_router.weight": (_STREAMS, WIDTH), "altup_router_norm.weight": (WIDTH,),
            "laurel_l.weight": (_RANK, WIDTH), "laurel_r.weight": (WIDTH, _RANK),
            "laurel_post_norm.weight": (WIDTH,), "ffn_gate.weight": (_WIDE, WIDTH),
            "ffn_up.weight": (_WIDE, WIDTH), "ffn_down.weight": (WIDTH, _WIDE),
        },
        {
            "altup_proj.weight": (_STREAMS - 1, WIDTH, WIDTH),
            "altup_unembd_proj.weight": (_STREAMS - 1, WIDTH, WIDTH),
            "per_layer_token_embd.weight": (VOCABULARY, _FEW * _PER_LAYER),
            "per_layer_model_proj.weight": (_FEW * _PER_LAYER, WIDTH),
            "per_layer_proj_norm.weight": (_PER_LAYER,),
        },
        {
            "attention.sliding_window": WINDOW, "rope.freq_base": 1e6,
            "attention.sliding_window_pattern": [i % 5 < 4 and i != 21 for i in range(_FEW)],
            "attention.shared_kv_layers": 2, "altup.num_inputs": _STREAMS, "altup.active_idx": 0,
            "embedding_length_per_layer_input": _PER_LAYER, "feed_forward_length": _WIDE,
            "activation_sparsity_scale": [1.6448534] * 10 + [float("-inf")] * (_FEW - 10),
        },
        layers=_FEW,
    ),
    "gemma4": _gemma4(
        7,
        {"embedding_length_per_layer_input": _SIZE, "attention.shared_kv_layers": 4},
        _OF_LAYERS,
        {
            "per_layer_token_embd.weight": (VOCABULARY, 7 * _SIZE),
            "per_layer_model_proj.weight": (7 * _SIZE, WIDTH),
            "per_layer_proj_norm.weight": (_SIZE,),
        },
    ),
    "gemma4-keys-as-values": _gemma4(
        5, {"attention.head_count_kv": [2, 2, 1, 2, 1]}, {"layer_output_scale.weight": (1,)}, {}
    ),
    "gemma4-experts": _gemma4(5, OF_EXPERTS, _BESIDE, {}),
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
    "deepseek": Layout(
        "deepseek", {**EXPERTS, **SHARED}, OUTPUT,
        {**OF_EXPERTS, "leading_dense_block_count": 1, "expert_shared_count": 3,
         "rope.scaling.type": "none", "expert_weights_scale": 1.0},
        single={0: {x: y for x, y in _DENSE.items() if x != "exp_probs_b.bias"}},
    ),
    "minimax-m2": Layout(
        "minimax-m2", {**EXPERTS, **_WIDE_NORMS, "exp_probs_b.bias": (N_EXPERTS,)}, OUTPUT,
        {**OF_EXPERTS, "feed_forward_length": INNER_OF_EXPERT, "expert_gating_func": 2,
         "rope.dimension_count": HEAD // 2},
    ),
    "minimax-m3": Layout(
        "minimax-m3", {**_NETS, **HEAD_NORMS, **_INDEXER}, OUTPUT,
        {
            **_ROUTED, "rope.dimension_count": HEAD // 2, "attention.indexer.head_count": KV_HEADS,
            "attention.indexer.key_length": HEAD, "attention.indexer.top_k": 2,
            "attention.indexer.block_size": 8, "attention.indexer.local_blocks": 1,
        },
        layers=3, single={0: _DENSE | dict.fromkeys(_INDEXER)},
    ),
    "mimo2": Layout(
        "mimo2", {**EXPERTS, **_SHORT_VALUES, "exp_probs_b.bias": (N_EXPERTS,)}, OUTPUT,
        {**_OF_MIMO, "attention.value_scale": 0.707},
        single={
            0: {**{x: y for x, y in _DENSE.items() if "shexp" not in x}, **_FAR}, 3: _FAR,
        },
    ),
    "mimo2-joined-qkv": Layout(  # a layer that predicts a further token is left out
        "mimo2",
        {**EXPERTS, **_SHORT_VALUES, "exp_probs_b.bias": (N_EXPERTS,), **_joined_short(HEADS)},
        OUTPUT,
        {**_OF_MIMO, "attention.head_count_kv": [KV_HEADS, HEADS, KV_HEADS, HEADS],
         "attention.sliding_window_pattern": [False, True, False, True],
         "nextn_predict_layers": 1},
        single={
            0: {**{x: y for x, y in _DENSE.items() if "shexp" not in x}, **_FAR,
                **_joined_short(KV_HEADS)},
            2: _FAR | _joined_short(KV_HEADS), 3: _AHEAD,
        },
    ),
    "step35": Layout(
        "step35", {**_NETS, **HEAD_NORMS, "attn_gate.weight": (HEADS, WIDTH)},
        {**OUTPUT, "rope_freqs.weight": (HEAD // 2,)},
        {
            **_ROUTED, "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": [False, True, True, True, False],
            "attention.head_count": [4, 6, 6, 6, 4], "attention.key_length": HEAD,
            "attention.value_length": HEAD, "rope.dimension_count": HEAD,
            "rope.freq_base": 1e6, "rope.freq_base_swa": 10000.0,
            "expert_shared_feed_forward_length": INNER,
            "swiglu_clamp_exp": [0.0, 0.0, 0.0, 0.5, 0.5],
            "swiglu_clamp_shexp": [0.0, 0.0, 0.0, 0.0, 0.5],
        },
        layers=5, single={0: _DENSE, **dict.fromkeys((1, 2, 3), _SIX_HEADS)},
    ),
    "hy_v3": Layout(
        "hy_v3", {**EXPERTS, **SHARED, **HEAD_NORMS, "exp_probs_b": (N_EXPERTS,)}, OUTPUT,
        {**_ROUTED, "expert_shared_feed_forward_length": INNER},
        single={0: {**_DENSE, "exp_probs_b": None}},
    ),
    "hy_v3-ahead": Layout(
        "hy_v3", {**EXPERTS, **SHARED, **HEAD_NORMS, "exp_probs_b": (N_EXPERTS,)}, OUTPUT,
        {**_ROUTED, "expert_shared_feed_forward_length": INNER, "nextn_predict_layers": 1},
        single={
            0: {**_DENSE, "exp_probs_b": None},
            3: {**_AHEAD, "nextn.shared_head_norm.weight": (WIDTH,)},
        },
    ),
    "cohere2moe": Layout(
        "cohere2moe", {**EXPERTS, **SHARED, "ffn_norm.weight": None}, {},
        {
            **{x: y for x, y in _ROUTED.items() if x != "expert_weights_scale"},
            "attention.sliding_window": WINDOW, "logit_scale": 0.25,
            "attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": None,
            "attention.sliding_window_pattern": [False, True, True, False],
            "expert_shared_feed_forward_length": INNER,
        },
        single={0: {**{x: y for x, y in _DENSE.items() if x != "exp_probs_b.bias"}}},
    ),
    "cohere2moe-rms": Layout(
        "cohere2moe", {**EXPERTS, "ffn_norm.weight": None}, OUTPUT,
        {
            **OF_EXPERTS, "expert_gating_func": 3, "attention.sliding_window": WINDOW,
            "logit_scale": 0.25, "attention.sliding_window_pattern": [True, True, True, False],
            "leading_dense_block_count": 0,
        },
    ),
    "exaone-moe": Layout(
        "exaone-moe", {**_NETS, **HEAD_NORMS}, {**OUTPUT, "rope_freqs.weight": (HEAD // 2,)},
        {**_ROUTED, "attention.sliding_window": WINDOW,
         "expert_shared_feed_forward_length": INNER},
        layers=5, single=_FIRST,
    ),
    "exaone-moe-ahead": Layout(  # a layer that predicts a further token is left out
        "exaone-moe", {**_NETS, **HEAD_NORMS}, OUTPUT,
        {**_ROUTED, "attention.sliding_window": WINDOW, "nextn_predict_layers": 1,
         "expert_shared_feed_forward_length": INNER,
         "attention.sliding_window_pattern": [True, False, True, True, True]},
        layers=5, single={**_FIRST, 4: {**_DENSE, **_AHEAD}},
    ),
    "afmoe": Layout(
        "afmoe", {**_NETS, **HEAD_NORMS, **POST_NORMS, "attn_gate.weight": (WIDTH, WIDTH)}, OUTPUT,
        {**_ROUTED, "attention.sliding_window": WINDOW, "rope.freq_base_swa": 5000.0},
        layers=5, single=_FIRST,
    ),
    "bailingmoe": Layout(
        "bailingmoe", {**EXPERTS, **SHARED}, OUTPUT,
        {**OF_EXPERTS, "expert_shared_count": INNER // INNER_OF_EXPERT,
         "expert_weights_norm": True, "expert_weights_scale": 1.0,
         "leading_dense_block_count": 0, "rope.dimension_count": HEAD},
        layers=5,
    ),
    "mellum": Layout(
        "mellum", {**EXPERTS, **HEAD_NORMS}, OUTPUT,
        {**OF_EXPERTS, **_STRETCHED, "attention.sliding_window": WINDOW},
        layers=5,
    ),
    "maple": Layout(
        "maple", {**EXPERTS, **HEAD_NORMS}, OUTPUT,
        {
            **OF_EXPERTS, "attention.sliding_window": WINDOW, "rope.freq_base_swa": 5000.0,
            "attention.sliding_window_pattern": [True, False, True, True],
            "swiglu_clamp_exp": [0.5, 0.5, 0.0, 0.3],
        },
    ),
    "laguna": Layout(
        "laguna", {**_NETS, **HEAD_NORMS, "attn_gate.weight": (HEADS, WIDTH)}, OUTPUT,
        {
            **_ROUTED, **_STRETCHED, "attention.sliding_window": WINDOW,
            "attention.head_count": [4, 6, 6, 6, 4], "attention.key_length": HEAD,
            "attention.value_length": HEAD, "rope.dimension_count": HEAD // 2,
            "rope.dimension_count_swa": HEAD, "rope.freq_base_swa": 5000.0,
            "expert_shared_feed_forward_length": INNER,
        },
        layers=5, single={0: _DENSE, **dict.fromkeys((1, 2, 3), _SIX_HEADS)},
    ),
    "laguna-without-windows": Layout(
        "laguna",
        {
            **EXPERTS, **_SHARED_SMALL, **HEAD_NORMS, "exp_probs_b.bias": (N_EXPERTS,),
            "attn_gate.weight": (WIDTH, WIDTH),
        },
        OUTPUT,
        {
            **_ROUTED, **_STRETCHED, "expert_shared_feed_forward_length": INNER_OF_EXPERT,
            "leading_dense_block_count": 2,
        },
        single=dict.fromkeys((0, 1), _DENSE),
    ),
    "apertus": Layout(
        "apertus", {**HEAD_NORMS, "ffn_gate.weight": None},
        {**OUTPUT, "rope_freqs.weight": (HEAD // 2,)},
        bare={"xielu.alpha_n": [0.1, 0.3, -0.2, 0.5], "xielu.alpha_p": [0.9, 0.2, 0.4, 1.5],
              "xielu.beta": [0.5, 0.5, 0.4, 0.6], "xielu.eps": [-1e-6] * 4},
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
    "llama4": Layout(
        "llama4",
        {**EXPERTS, **_SHARED_SMALL},
        OUTPUT,
        {**OF_EXPERTS, "interleave_moe_layer_step": 1, "context_length": 16384},
        layers=6,
    ),
    "llama4-interleaved": Layout(
        "llama4", {**EXPERTS, **_SHARED_SMALL},
        {**OUTPUT, "rope_freqs.weight": (HEAD // 2,)},
        {**OF_EXPERTS, "interleave_moe_layer_step": 2, "expert_used_count": 1},
        single={i: {**_DENSE, **dict.fromkeys(_SHARED_SMALL)} for i in (0, 2)},
    ),
    "smallthinker": Layout(
        "smallthinker", EXPERTS, OUTPUT,
        {**OF_EXPERTS, "attention.sliding_window": 4096, "expert_gating_func": 2,
         "context_length": 8192},
        layers=5,
    ),
    "smallthinker-without-windows": Layout(
        "smallthinker", EXPERTS, {}, {**OF_EXPERTS, "expert_gating_func": 1},
    ),
    "internlm2": Layout("internlm2", whole=OUTPUT),
    "exaone": Layout("exaone", whole={**OUTPUT, "rope_freqs.weight": (HEAD // 2,)}),
    "arcee": Layout("arcee", {"ffn_gate.weight": None}),
    "nemotron": Layout(
        "nemotron",
        {
            "ffn_gate.weight": None, "attn_norm.bias": (WIDTH,), "ffn_norm.bias": (WIDTH,),
        },
        {**OUTPUT, "output_norm.bias": (WIDTH,)},
        {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": HEAD // 2},
    ),
    "command-r": Layout(
        "command-r", {"ffn_norm.weight": None},
        metadata={"logit_scale": 0.0625, "attention.layer_norm_epsilon": 1e-5},
    ),
    "command-r-large": Layout(
        "command-r",
        {
            "ffn_norm.weight": None, "attn_q_norm.weight": (HEADS, HEAD),
            "attn_k_norm.weight": (KV_HEADS, HEAD),
        },
        metadata={"logit_scale": 0.8, "attention.layer_norm_epsilon": 1e-5}, layers=64,
    ),
    "minicpm": Layout(
        "minicpm", metadata={"embedding_scale": 2.0, "residual_scale": 0.5, "logit_scale": 0.25}
    ),
    "minicpm-long": Layout(
        "minicpm",
        whole={
            **OUTPUT, "rope_factors_short.weight": (HEAD // 2,),
            "rope_factors_long.weight": (HEAD // 2,),
        },
        metadata={
            "embedding_scale": 2.0, "residual_scale": 0.5, "logit_scale": 0.25,
            "rope.scaling.original_context_length": 128, "rope.scaling.type": "longrope",
            "rope.scaling.attn_factor": 1.19,
        },
    ),
    "paddleocr": Layout(
        "paddleocr", whole=OUTPUT, metadata={"rope.dimension_sections": [2, 3, 3, 0]}
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
