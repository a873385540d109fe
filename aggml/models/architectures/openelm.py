"""openelm: Apple's OpenELM; layers differ in their heads and in the size of their nets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, half
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox", factors=None), FeedForward()
    mixers = (attention_of(hp, rope, i, norm="head", joined=True) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


def _inner_sizes(config: Config) -> list[int]:
    """Elements between the matrices of each layer's net: multiples of a divisor."""
    width = int(config.need("model_dim"))
    step = int(config.get("ffn_dim_divisor", default=256))
    found = []
    for share in config.need("ffn_multipliers"):
        wanted = share * width
        size = max(step, int(wanted + step / 2) // step * step)
        found.append(size + step if size < 0.9 * wanted else size)
    return found


CHECKPOINT: Final = Checkpoint(
    ("openelm",),
    {
        "token_embd": "token_embeddings",
        "output_norm": "norm",
        "output": "lm_head",
        "blk.{i}.attn_norm": "layers.{i}.attn_norm",
        "blk.{i}.attn_qkv": "layers.{i}.attn.qkv_proj",
        "blk.{i}.attn_q_norm": "layers.{i}.attn.q_norm",
        "blk.{i}.attn_k_norm": "layers.{i}.attn.k_norm",
        "blk.{i}.attn_output": "layers.{i}.attn.out_proj",
        "blk.{i}.ffn_norm": "layers.{i}.ffn_norm",
        "blk.{i}.ffn_gate.weight": half("layers.{i}.ffn.proj_1.weight", 0),
        "blk.{i}.ffn_up.weight": half("layers.{i}.ffn.proj_1.weight", 1),
        "blk.{i}.ffn_down": "layers.{i}.ffn.proj_2",
    },
    {
        **DECODER_KEYS,
        "context_length": "max_context_length",
        "embedding_length": "model_dim",
        "block_count": "num_transformer_layers",
        "feed_forward_length": _inner_sizes,
        "attention.head_count": "num_query_heads",
        "attention.head_count_kv": "num_kv_heads",
        "attention.layer_norm_rms_epsilon": lambda _: 1e-6,  # of the published code
        "rope.dimension_count": "head_dim",
        "rope.freq_base": lambda config: float(config.get("rope_freq_constant", default=10000)),
    },
    prefixes=("transformer.",),
    harmless={
        **dict.fromkeys(
            ("num_gqa_groups", "qkv_multipliers"),
            "num_query_heads and num_kv_heads say the same",
        ),
        "rope_max_length": "the caller says how long a sequence is",
    },
    expects={
        "activation_fn_name": ("swish", "silu"), "ffn_with_glu": (True,),
        "normalize_qk_projections": (True,), "normalization_layer_name": ("rms_norm",),
        "share_input_output_layers": (True,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("openelm",), describe, (CHECKPOINT,))
