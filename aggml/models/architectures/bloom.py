"""bloom: LayerNorms, ALiBi instead of positions, a norm of the embeddings, nets without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, Recipe
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, layer_norm_description_of, layers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "SLOPE", "describe"]

SLOPE: Final = 8.0  # the largest bias of ALiBi


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    net = FeedForward("gelu", gated=False)
    mixers = (attention_of(hp, None, i, joined=True, slope=SLOPE) for i in range(layers_of(hp)))
    return layer_norm_description_of(
        hp, [Layer(mixer, net) for mixer in mixers], embedding_norm=True
    )


def _heads(config: Config) -> int:
    return int(config.need("n_head", "num_attention_heads"))


def _regroup(source: str) -> Recipe:
    """All queries, then all keys, then all values; a folder has the three of each head together."""

    def make(arrays: Sequence[Array], config: Config) -> Array:
        (x,) = arrays
        each = x.reshape(_heads(config), 3, -1, *x.shape[1:])
        return np.concatenate([each[:, i].reshape(-1, *x.shape[1:]) for i in range(3)])

    return Recipe((source,), make, lambda shapes, _: shapes[0])


CHECKPOINT: Final = Checkpoint(
    ("bloom",),
    {
        "token_embd": "word_embeddings",
        "token_embd_norm": "word_embeddings_layernorm",
        "output_norm": "ln_f",
        "output": "lm_head",
        "blk.{i}.attn_norm": "h.{i}.input_layernorm",
        "blk.{i}.attn_qkv": _regroup("h.{i}.self_attention.query_key_value"),
        "blk.{i}.attn_output": "h.{i}.self_attention.dense",
        "blk.{i}.ffn_norm": "h.{i}.post_attention_layernorm",
        "blk.{i}.ffn_up": "h.{i}.mlp.dense_h_to_4h",
        "blk.{i}.ffn_down": "h.{i}.mlp.dense_4h_to_h",
    },
    {
        **CENTRED_KEYS,
        "context_length": lambda config: config.get("seq_length", default=2048),
        "embedding_length": ("hidden_size", "n_embed"),
        "block_count": ("n_layer", "num_hidden_layers"),
        "feed_forward_length": lambda config: 4 * config.need("hidden_size", "n_embed"),
        "attention.head_count": _heads,
        "attention.head_count_kv": _heads,
        "attention.key_length": lambda _: None,
        "attention.value_length": lambda _: None,
        "rope.dimension_count": lambda _: None,
    },
    prefixes=("transformer.",),
    harmless=dict.fromkeys(
        ("masked_softmax_fusion", "bias_dropout_fusion", "offset_alibi", "unk_token_id",
         "max_position_embeddings"),
        "it changes no result",
    ) | {
        "slow_but_exact": "it adds up the same parts in another order",
        "pretraining_tp": "it adds up the same parts in another order",
    },
    expects={"apply_residual_connection_post_layernorm": (False,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("bloom",), describe, (CHECKPOINT,))
