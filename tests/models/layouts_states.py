"""Layouts of models with states: mamba2, rwkv6, rwkv7; and qwen3next, which has attention, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
    VOCABULARY,
    WIDTH,
    Layout,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Shapes = dict[str, tuple[int, ...] | None]

KERNEL: Final = 4
SCANNED: Final = 2 * WIDTH  # elements of all heads of mamba2's scan together
SCAN_HEADS: Final = 4
STATE: Final = 16
RANK: Final = 8  # the inner extent of rwkv7's low-rank matrices
KEY_HEADS: Final = 2
VALUE_HEADS: Final = 4
DELTA_HEAD: Final = 16
KEYS: Final = KEY_HEADS * DELTA_HEAD
VALUES: Final = VALUE_HEADS * DELTA_HEAD

_NOTHING: Final[Shapes] = dict.fromkeys(DENSE)


def scanned(groups: int) -> tuple[Shapes, dict[str, int]]:
    """The tensors of a scan of Mamba 2, and its metadata."""
    channels = SCANNED + 2 * groups * STATE
    tensors: Shapes = {
        "ssm_in.weight": (SCANNED + channels + SCAN_HEADS, WIDTH),
        "ssm_conv1d.weight": (channels, KERNEL),
        "ssm_conv1d.bias": (channels,),
        "ssm_dt.bias": (SCAN_HEADS,),
        "ssm_a": (SCAN_HEADS, 1),
        "ssm_d": (SCAN_HEADS, 1),
        "ssm_norm.weight": (groups, SCANNED // groups),
        "ssm_out.weight": (WIDTH, SCANNED),
    }
    metadata = {
        "ssm.conv_kernel": KERNEL,
        "ssm.inner_size": SCANNED,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": SCAN_HEADS,
        "ssm.group_count": groups,
    }
    return tensors, metadata


def _mamba2(groups: int, whole: Mapping[str, tuple[int, ...]]) -> Layout:
    tensors, metadata = scanned(groups)
    tensors = {**_NOTHING, "attn_norm.weight": (WIDTH,), **tensors}
    nothing = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    return Layout("mamba2", tensors, whole, metadata | dict.fromkeys(nothing, 0))


def _rwkv7(width: int) -> Layout:
    """Heads of 64 elements: llama.cpp's kernel for AVX-512 reads that many of any head."""
    vectors = ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln")
    tensors: Shapes = {
        **_NOTHING,
        **{f"attn_{norm}.{x}": (width,) for norm in ("norm", "norm_2") for x in ("weight", "bias")},
        **{f"time_mix_{name}.weight": (width,) for name in vectors},
        **{f"time_mix_{name}1.weight": (RANK, width) for name in "wavg"},
        **{f"time_mix_{name}2.weight": (width, RANK) for name in "wavg"},
        **{
            f"time_mix_{name}.weight": (width, width)
            for name in ("key", "value", "receptance", "output")
        },
        "time_mix_ln.bias": (width,),
        "time_mix_lerp_fused.weight": (6, 1, 1, width),
        "channel_mix_lerp_k.weight": (1, 1, width),
        "channel_mix_key.weight": (INNER, width),
        "channel_mix_value.weight": (width, INNER),
    }
    whole = {
        "token_embd.weight": (VOCABULARY, width),
        "output_norm.weight": (width,),
        "output.weight": (VOCABULARY, width),
        "output_norm.bias": (width,),
        "token_embd_norm.weight": (width,),
        "token_embd_norm.bias": (width,),
    }
    ranks = ("decay", "iclr", "value_residual_mix", "gate")
    metadata: dict[str, Any] = {
        "wkv.head_size": 64,
        "embedding_length": width,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.head_count": 0,
        **{f"attention.{name}_lora_rank": RANK for name in ranks},
    }
    return Layout("rwkv7", tensors, whole, metadata)


def _rwkv6(*, older: bool) -> Layout:
    """Older files have the shares of the blends in five tensors."""
    width = WIDTH
    vectors = ("lerp_x", *(f"lerp_{x}" for x in "wkvrg" if older))
    tensors: Shapes = {
        **_NOTHING,
        **{f"attn_{norm}.{x}": (width,) for norm in ("norm", "norm_2") for x in ("weight", "bias")},
        **{f"time_mix_{name}.weight": (1, 1, width) for name in vectors},
        **{
            f"time_mix_{name}.weight": (width, width)
            for name in ("key", "value", "receptance", "gate", "output")
        },
        "time_mix_w1.weight": (5 * RANK, width),
        "time_mix_w2.weight": (5, width, RANK),
        "time_mix_first.weight": (1, width),
        "time_mix_decay.weight": (width,),
        "time_mix_decay_w1.weight": (RANK, width),
        "time_mix_decay_w2.weight": (width, RANK),
        "time_mix_ln.weight": (width,),
        "time_mix_ln.bias": (width,),
        "channel_mix_lerp_k.weight": (1, 1, width),
        "channel_mix_lerp_r.weight": (1, 1, width),
        "channel_mix_key.weight": (INNER, width),
        "channel_mix_value.weight": (width, INNER),
        "channel_mix_receptance.weight": (width, width),
    }
    if not older:
        tensors["time_mix_lerp_fused.weight"] = (5, 1, 1, width)
    whole = {
        "token_embd_norm.weight": (width,), "token_embd_norm.bias": (width,),
        "output_norm.bias": (width,), **OUTPUT,
    }  # fmt: skip
    metadata: dict[str, Any] = {
        "wkv.head_size": 64, "attention.layer_norm_epsilon": 1e-5,
        **dict.fromkeys(("attention.head_count", "attention.head_count_kv"), 0),
        "time_mix_extra_dim": RANK, "time_decay_extra_dim": RANK,
        "rescale_every_n_layers": 0 if older else 2,
    }  # fmt: skip
    return Layout("rwkv6", tensors, whole, metadata)


def _qwen3next(older: bool) -> Layout:
    linear: Shapes = {
        **_NOTHING,
        "attn_norm.weight": (WIDTH,),
        "ssm_conv1d.weight": (2 * KEYS + VALUES, KERNEL),
        "ssm_dt.bias": (VALUE_HEADS,),
        "ssm_a": (VALUE_HEADS,),
        "ssm_ba.weight": (2 * VALUE_HEADS, WIDTH),
        "ssm_norm.weight": (DELTA_HEAD,),
        "ssm_out.weight": (WIDTH, VALUES),
    }
    if older:
        linear["ssm_in.weight"] = (2 * KEYS + 2 * VALUES, WIDTH)
    else:
        linear["attn_qkv.weight"] = (2 * KEYS + VALUES, WIDTH)
        linear["attn_gate.weight"] = (VALUES, WIDTH)
    nets: Shapes = {
        **EXPERTS, **SHARED, "ffn_gate_inp_shexp.weight": (WIDTH,),
        "post_attention_norm.weight": (WIDTH,),
    }  # fmt: skip
    attention: Shapes = {
        **dict.fromkeys(linear),
        **HEAD_NORMS,
        "attn_norm.weight": (WIDTH,),
        "attn_q.weight": (2 * WIDTH, WIDTH),
        "attn_k.weight": (HEAD * KV_HEADS, WIDTH),
        "attn_v.weight": (HEAD * KV_HEADS, WIDTH),
        "attn_output.weight": (WIDTH, HEAD * HEADS),
    }
    metadata = {
        **OF_EXPERTS,
        "expert_shared_feed_forward_length": INNER,
        "ssm.conv_kernel": KERNEL,
        "ssm.inner_size": VALUES,
        "ssm.state_size": DELTA_HEAD,
        "ssm.time_step_rank": VALUE_HEADS,
        "ssm.group_count": KEY_HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "rope.dimension_count": HEAD // 2,
    }
    single: dict[int, Shapes] = {3: {**attention, **nets}}
    return Layout("qwen3next", {**linear, **nets}, OUTPUT, metadata, layers=5, single=single)


LAYOUTS: Final = {
    "mamba2": _mamba2(1, {}),
    "mamba2-groups": _mamba2(2, OUTPUT),
    "rwkv6": _rwkv6(older=False),
    "rwkv6-older": _rwkv6(older=True),
    "rwkv7": _rwkv7(WIDTH),
    "rwkv7-two-heads": _rwkv7(2 * WIDTH),
    "qwen3next": _qwen3next(older=False),
    "qwen3next-joined": _qwen3next(older=True),
}
