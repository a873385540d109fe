"""Files of models with states at sizes that exist, with random weights: for architectures.py.

Folders of these do not grow by one factor, so they are written as GGUF at once, with fewer layers
than the models have. Not here: measuring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

import aggml

if TYPE_CHECKING:
    from pathlib import Path

LAYERS: Final = 8
VOCABULARY: Final = 8192  # a larger one would be most of the file


class Shapes(NamedTuple):
    """What a file holds.

    Attributes:
        metadata: by key without the architecture.
        whole: shapes in numpy order of tensors beside the layers.
        layer: the same of each layer's.
    """

    metadata: dict[str, Any]
    whole: dict[str, tuple[int, ...]]
    layer: dict[str, tuple[int, ...]]


def _mamba2(width: int = 1024, heads: int = 32, state: int = 128) -> Shapes:
    """Of mamba2-370m: heads of 64, one group."""
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
    """Of rwkv7-g1-0.4b: heads of 64, thin matrices of rank 64 and 128."""
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


#: Cases by name: the architecture, what the file holds.
MODELS: Final = {"mamba2-370m": ("mamba2", _mamba2()), "rwkv7-0.4b": ("rwkv7", _rwkv7())}


def write(path: Path, name: str, dtype: str) -> Path:
    """A GGUF file of the case; matrices of ``dtype``, all else f32."""
    architecture, shapes = MODELS[name]
    rng = np.random.default_rng(0)
    tensors = dict(shapes.whole)
    for i in range(LAYERS):
        tensors |= {f"blk.{i}.{x}": shape for x, shape in shapes.layer.items()}
    with aggml.GGUFWriter(path) as writer:
        writer.add("general.architecture", architecture)
        told = {"block_count": LAYERS, "context_length": 4096, "vocab_size": VOCABULARY}
        for key, value in (told | shapes.metadata).items():
            writer.add(f"{architecture}.{key}", value)
        writer.add("tokenizer.ggml.model", "no_vocab")
        for tensor, shape in tensors.items():
            values = rng.standard_normal(shape, np.float32)
            if tensor.endswith("ssm_a"):
                values = -np.exp(values)
            is_matrix = len(shape) == 2 and min(shape) >= 32 and "norm" not in tensor
            if is_matrix:
                writer.add_tensor(tensor, aggml.quantize(values / shape[1] ** 0.5, dtype), dtype)
            else:
                writer.add_tensor(tensor, values)
    return path
