"""falcon: attention and a net side by side, of one norm or of one each; Falcon 7B, 11B and 40B."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.blocks import FeedForward, NormedInput
from aggml.models.checkpoints.keys import CENTRED_KEYS, number
from aggml.models.checkpoints.recipes import Checkpoint, Recipe
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, layer_norm_description_of, layers_of, rope_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

NORMS: Final = ("attn_norm_2", "attn_norm")  # the first one of files that have one for attention


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox", factors=None), FeedForward("gelu_erf", gated=False)
    mixers = (attention_of(hp, rope, i, joined=True) for i in range(layers_of(hp)))
    return layer_norm_description_of(
        hp,
        [
            Layer(
                NormedInput(mixer, NORMS), net, before_mixer=None, before_feed_forward="attn_norm",
                parallel=True,
            )
            for mixer in mixers
        ],
    )  # fmt: skip


def _heads(config: Config) -> int:
    return int(config.need("num_attention_heads", "n_head"))


def _kv_heads(config: Config) -> int:
    """Heads of keys; config.json of the 7B model says 71, and that all queries share one."""
    told = int(config.get("num_kv_heads", "n_head_kv", default=_heads(config)))
    shared = config.get("multi_query", default=True)
    if config.get("new_decoder_architecture", default=False):
        return told
    return 1 if shared else _heads(config)


def _inner(config: Config) -> int:
    return int(config.get("ffn_hidden_size", default=4 * int(config.need("hidden_size"))))


def _regroup(source: str) -> Recipe:
    """All queries, then all keys, then all values; a folder has those of each key together."""

    def make(arrays: Sequence[Array], config: Config) -> Array:
        (x,) = arrays
        heads, kv_heads = _heads(config), _kv_heads(config)
        each = x.reshape(kv_heads, heads // kv_heads + 2, -1, *x.shape[1:])
        parts = each[:, :-2], each[:, -2:-1], each[:, -1:]
        return np.concatenate([part.reshape(-1, *x.shape[1:]) for part in parts])

    return Recipe((source,), make, lambda shapes, _: shapes[0])


CHECKPOINT: Final = Checkpoint(
    ("falcon", "RefinedWeb", "RefinedWebModel"),
    {
        "token_embd": "word_embeddings",
        "output_norm": "ln_f",
        "output": "lm_head",
        "blk.{i}.attn_norm": ("h.{i}.ln_mlp", "h.{i}.input_layernorm"),
        "blk.{i}.attn_norm_2": "h.{i}.ln_attn",
        "blk.{i}.attn_qkv": _regroup("h.{i}.self_attention.query_key_value"),
        "blk.{i}.attn_output": "h.{i}.self_attention.dense",
        "blk.{i}.ffn_up": "h.{i}.mlp.dense_h_to_4h",
        "blk.{i}.ffn_down": "h.{i}.mlp.dense_4h_to_h",
    },
    {
        **CENTRED_KEYS,
        "context_length": lambda config: config.get("max_position_embeddings", default=2048),
        "block_count": ("num_hidden_layers", "n_layer"),
        "feed_forward_length": _inner,
        "attention.head_count": _heads,
        "attention.head_count_kv": _kv_heads,
        "attention.layer_norm_epsilon": number("layer_norm_epsilon", default=1e-5),
    },
    prefixes=("transformer.",),
    expects={
        "alibi": (False,), "parallel_attn": (True,), "bias": (False,), "activation": ("gelu",),
    },
    harmless={"num_ln_in_parallel_attn": "the names of the tensors say the same"},
)  # fmt: skip


ARCHITECTURE = Architecture(("falcon",), describe, (CHECKPOINT,))
