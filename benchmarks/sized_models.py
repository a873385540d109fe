"""Files of models with the sizes of real ones and random weights, for architectures.py.

These models have states, or vectors in place of keys, so they cannot be widened by one factor. They
are written directly as GGUF, with fewer layers and experts than the real models have. Not here:
measuring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

import aggml

if TYPE_CHECKING:
    from pathlib import Path

LAYERS: Final = 8
VOCABULARY: Final = 8192  # with a larger one, embeddings would be most of the file


class Shapes(NamedTuple):
    """The contents of a file.

    Attributes:
        metadata: values by key, without the architecture in front.
        whole: shapes, in numpy order, of the tensors that belong to no layer.
        layer: shapes of the tensors of each layer.
        single: shapes for layers that are not like the others, by number.
        layers: number of layers.
    """

    metadata: dict[str, Any]
    whole: dict[str, tuple[int, ...]]
    layer: dict[str, tuple[int, ...]]
    single: dict[int, dict[str, tuple[int, ...]]] = {}  # noqa: RUF012  # a tuple's default, not shared state
    layers: int = LAYERS


def _mamba2(width: int = 1024, heads: int = 32, state: int = 128) -> Shapes:
    """mamba2-370m: heads of 64, one group."""
    inner = 2 * width
    channels = inner + 2 * state
    return Shapes(
        {
            "embedding_length": width,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": inner,
            "ssm.state_size": state,
            "ssm.time_step_rank": heads,
            "ssm.group_count": 1,
        },
        {"token_embd.weight": (VOCABULARY, width), "output_norm.weight": (width,)},
        {
            "attn_norm.weight": (width,),
            "ssm_in.weight": (inner + channels + heads, width),
            "ssm_conv1d.weight": (channels, 4),
            "ssm_conv1d.bias": (channels,),
            "ssm_dt.bias": (heads,),
            "ssm_a": (heads, 1),
            "ssm_d": (heads, 1),
            "ssm_norm.weight": (1, inner),
            "ssm_out.weight": (width, inner),
        },
    )


def _rwkv7(width: int = 1024) -> Shapes:
    """rwkv7-g1-0.4b: heads of 64, low-rank matrices of rank 64 and 128."""
    ranks = {"w": 64, "a": 64, "v": 64, "g": 128}
    vectors = ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln")
    square = ("key", "value", "receptance", "output")
    return Shapes(
        {
            "wkv.head_size": 64,
            "embedding_length": width,
            "feed_forward_length": 4 * width,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.head_count": 0,
            "attention.decay_lora_rank": ranks["w"],
            "attention.iclr_lora_rank": ranks["a"],
            "attention.value_residual_mix_lora_rank": ranks["v"],
            "attention.gate_lora_rank": ranks["g"],
        },
        {
            "token_embd.weight": (VOCABULARY, width),
            "output.weight": (VOCABULARY, width),
            **{f"{x}.{y}": (width,) for x in ("output_norm", "token_embd_norm")
               for y in ("weight", "bias")},
        },
        {
            **{f"attn_{x}.{y}": (width,) for x in ("norm", "norm_2") for y in ("weight", "bias")},
            **{f"time_mix_{x}.weight": (width,) for x in vectors},
            **{f"time_mix_{x}1.weight": (rank, width) for x, rank in ranks.items()},
            **{f"time_mix_{x}2.weight": (width, rank) for x, rank in ranks.items()},
            **{f"time_mix_{x}.weight": (width, width) for x in square},
            "time_mix_ln.bias": (width,),
            "time_mix_lerp_fused.weight": (6, 1, 1, width),
            "channel_mix_lerp_k.weight": (1, 1, width),
            "channel_mix_key.weight": (4 * width, width),
            "channel_mix_value.weight": (width, 4 * width),
        },
    )  # fmt: skip


def _ends(width: int) -> dict[str, tuple[int, ...]]:
    """Embeddings and output."""
    of_words = (VOCABULARY, width)
    return {
        "token_embd.weight": of_words, "output.weight": of_words, "output_norm.weight": (width,),
    }  # fmt: skip


def _gated(width: int, inner: int, end: str = "") -> dict[str, tuple[int, ...]]:
    """A gated unit: the layer's only one, or its shared expert."""
    return {
        f"ffn_gate{end}.weight": (inner, width),
        f"ffn_up{end}.weight": (inner, width),
        f"ffn_down{end}.weight": (width, inner),
    }


def _experts(width: int, inner: int, n: int, shared: int) -> dict[str, tuple[int, ...]]:
    """Experts, their router, and the shared expert."""
    return {
        "ffn_gate_inp.weight": (n, width),
        "ffn_gate_exps.weight": (n, inner, width),
        "ffn_up_exps.weight": (n, inner, width),
        "ffn_down_exps.weight": (n, width, inner),
        **_gated(width, shared, "_shexp"),
    }


def _deepseek2(query_rank: int = 0, *, sigmoid: bool = False) -> Shapes:
    """DeepSeek-V2-Lite with 16 of its 64 experts; queries are low-rank, as in larger models."""
    width, heads, rank, plain, turned, value, n = 2048, 16, 512, 128, 64, 128, 16
    key = plain + turned
    query = {
        "attn_q_a.weight": (query_rank, width),
        "attn_q_a_norm.weight": (query_rank,),
        "attn_q_b.weight": (heads * key, query_rank),
    }
    attention: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        **(query if query_rank else {"attn_q.weight": (heads * key, width)}),
        "attn_kv_a_mqa.weight": (rank + turned, width),
        "attn_kv_a_norm.weight": (rank,),
        "attn_k_b.weight": (heads, rank, plain),
        "attn_v_b.weight": (heads, value, rank),
        "attn_output.weight": (width, heads * value),
        "ffn_norm.weight": (width,),
    }
    routed = {
        "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5,
        "expert_group_count": 4, "expert_group_used_count": 2,
    } if sigmoid else {}  # fmt: skip
    bias: dict[str, tuple[int, ...]] = {"exp_probs_b.bias": (n,)} if sigmoid else {}
    return Shapes(
        {
            "embedding_length": width,
            "feed_forward_length": 10944,
            "attention.head_count": heads,
            "attention.head_count_kv": 1,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.kv_lora_rank": rank,
            "attention.q_lora_rank": query_rank,
            "attention.key_length": rank + turned,
            "attention.value_length": rank,
            "attention.key_length_mla": key,
            "attention.value_length_mla": value,
            "rope.dimension_count": turned,
            "leading_dense_block_count": 1,
            "expert_count": n,
            "expert_used_count": 6,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 1408,
            **routed,
        },
        _ends(width),
        {**attention, **_experts(width, 1408, n, 2 * 1408), **bias},
        {0: {**attention, **_gated(width, 10944)}},
        layers=4,
    )


def _qwen3next(width: int = 2048) -> Shapes:
    """Qwen3-Next-80B-A3B with 32 of its 512 experts: 3 layers with states, then attention."""
    heads, kv_heads, head, n, inner = 16, 2, 256, 32, 512
    keys, values = 16 * 128, 32 * 128
    nets: dict[str, tuple[int, ...]] = {
        "post_attention_norm.weight": (width,),
        **_experts(width, inner, n, inner),
        "ffn_gate_inp_shexp.weight": (width,),
    }
    linear: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "attn_qkv.weight": (2 * keys + values, width),
        "attn_gate.weight": (values, width),
        "ssm_conv1d.weight": (2 * keys + values, 4),
        "ssm_dt.bias": (32,),
        "ssm_a": (32,),
        "ssm_ba.weight": (64, width),
        "ssm_norm.weight": (128,),
        "ssm_out.weight": (width, values),
    }
    attention: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (2 * heads * head, width),
        "attn_k.weight": (kv_heads * head, width),
        "attn_v.weight": (kv_heads * head, width),
        "attn_q_norm.weight": (head,),
        "attn_k_norm.weight": (head,),
        "attn_output.weight": (width, heads * head),
    }
    return Shapes(
        {
            "embedding_length": width,
            "feed_forward_length": 5120,
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.key_length": head,
            "attention.value_length": head,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": 64,
            "rope.freq_base": 1e7,
            "expert_count": n,
            "expert_used_count": 10,
            "expert_feed_forward_length": inner,
            "expert_shared_feed_forward_length": inner,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": values,
            "ssm.state_size": 128,
            "ssm.time_step_rank": 32,
            "ssm.group_count": 16,
        },
        _ends(width),
        {**linear, **nets},
        {3: {**attention, **nets}},
        layers=4,
    )


def _granitehybrid(width: int = 2048) -> Shapes:
    """granite-4.0-h-micro: states in all of these four layers but the last."""
    heads, kv_heads, head = 32, 8, 64
    inner, of_scan, state = 2 * width, 64, 128
    channels = inner + 2 * state
    nets = {"ffn_norm.weight": (width,), **_gated(width, 8192)}
    scan: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "ssm_in.weight": (inner + channels + of_scan, width),
        "ssm_conv1d.weight": (channels, 4),
        "ssm_conv1d.bias": (channels,),
        "ssm_dt.bias": (of_scan,),
        "ssm_a": (of_scan, 1),
        "ssm_d": (of_scan, 1),
        "ssm_norm.weight": (1, inner),
        "ssm_out.weight": (width, inner),
    }
    attention: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (heads * head, width),
        "attn_k.weight": (kv_heads * head, width),
        "attn_v.weight": (kv_heads * head, width),
        "attn_output.weight": (width, heads * head),
    }
    return Shapes(
        {
            "embedding_length": width,
            "feed_forward_length": 8192,
            "attention.head_count": heads,
            "attention.head_count_kv": [0, 0, 0, kv_heads],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.scale": 0.015625,
            "embedding_scale": 12.0,
            "residual_scale": 0.22,
            "logit_scale": 8.0,
            "rope.dimension_count": head,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": inner,
            "ssm.state_size": state,
            "ssm.time_step_rank": of_scan,
            "ssm.group_count": 1,
        },
        _ends(width),
        {**scan, **nets},
        {3: {**attention, **nets}},
        layers=4,
    )


#: Cases by name: the architecture, the contents of the file.
MODELS: Final = {
    "mamba2-370m": ("mamba2", _mamba2()),
    "rwkv7-0.4b": ("rwkv7", _rwkv7()),
    "deepseek2-lite-16b": ("deepseek2", _deepseek2()),
    "deepseek3-small": ("deepseek2", _deepseek2(768, sigmoid=True)),
    "qwen3next-80b": ("qwen3next", _qwen3next()),
    "granite-4.0-h-micro": ("granitehybrid", _granitehybrid()),
}


def write(path: Path, name: str, dtype: str) -> Path:
    """Write a GGUF file of the case, with matrices of ``dtype`` and all else f32."""
    architecture, shapes = MODELS[name]
    rng = np.random.default_rng(0)
    tensors = dict(shapes.whole)
    for i in range(shapes.layers):
        of_layer = shapes.single.get(i, shapes.layer)
        tensors |= {f"blk.{i}.{x}": shape for x, shape in of_layer.items()}
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", architecture)
        told = {"block_count": shapes.layers, "context_length": 4096, "vocab_size": VOCABULARY}
        for key, value in (told | shapes.metadata).items():
            writer.add(f"{architecture}.{key}", value)
        writer.add("tokenizer.ggml.model", "no_vocab")
        for tensor, shape in tensors.items():
            values = rng.standard_normal(shape, np.float32)
            if tensor.endswith("ssm_a"):
                values = -np.exp(values)
            is_matrix = len(shape) in (2, 3) and min(shape[-2:]) >= 32
            if is_matrix and not any(x in tensor for x in ("norm", "gate_inp", "lerp")):
                writer.add_tensor(tensor, aggml.quantize(values / shape[-1] ** 0.5, dtype), dtype)
            else:
                writer.add_tensor(tensor, values)
    return path
