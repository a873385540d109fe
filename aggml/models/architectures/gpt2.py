"""gpt2: embeddings of positions, LayerNorm, nets without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, transpose
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    layer_norm_description_of,
    layers_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    net, layers = FeedForward("gelu", gated=False), range(layers_of(hp))
    return layer_norm_description_of(
        hp,
        [Layer(attention_of(hp, None, i, joined=True), net) for i in layers],
        position_table=True,
    )


CHECKPOINT: Final = Checkpoint(
    ("gpt2",),
    {
        "token_embd": "wte",
        "position_embd": "wpe",
        "output_norm": "ln_f",
        "output": "lm_head",
        "blk.{i}.attn_norm": "h.{i}.ln_1",
        "blk.{i}.attn_qkv": transpose("h.{i}.attn.c_attn"),
        "blk.{i}.attn_output": transpose("h.{i}.attn.c_proj"),
        "blk.{i}.ffn_norm": "h.{i}.ln_2",
        "blk.{i}.ffn_up": transpose("h.{i}.mlp.c_fc"),
        "blk.{i}.ffn_down": transpose("h.{i}.mlp.c_proj"),
    },
    CENTRED_KEYS | {
        "embedding_length": "n_embd",
        "block_count": "n_layer",
        "feed_forward_length": lambda config: config.get("n_inner") or 4 * config.need("n_embd"),
        "attention.head_count": "n_head",
        "attention.head_count_kv": "n_head",
        "rope.dimension_count": lambda _: None,
    },
    prefixes=("transformer.",),
    ignored=(r"attn\.bias$",),
    expects={
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"), "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("gpt2",), describe, (CHECKPOINT,))
