"""gptneox: also pythia; attention and a net without a gate, most often in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, Recipe
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    layer_norm_description_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), FeedForward("gelu", gated=False)
    parallel = hp.flag("use_parallel_residual", True)
    return layer_norm_description_of(
        hp,
        [
            Layer(attention_of(hp, rope, i, joined=True), net, parallel=parallel)
            for i in range(layers_of(hp))
        ],
    )


def _regroup_heads(source: str) -> Recipe:
    """All queries, then all keys, then all values; the folder groups them by heads."""

    def make(arrays: Sequence[Array], config: Config) -> Array:
        (x,) = arrays
        heads = int(config.need("num_attention_heads"))
        return x.reshape(heads, 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)

    return Recipe((source,), make, lambda shapes, _: shapes[0])


CHECKPOINT: Final = Checkpoint(
    ("gpt_neox",),
    {
        "token_embd": "embed_in",
        "output_norm": "final_layer_norm",
        "output": ("embed_out", "lm_head"),
        "blk.{i}.attn_norm": "layers.{i}.input_layernorm",
        "blk.{i}.attn_qkv": _regroup_heads("layers.{i}.attention.query_key_value"),
        "blk.{i}.attn_output": "layers.{i}.attention.dense",
        "blk.{i}.ffn_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.ffn_up": "layers.{i}.mlp.dense_h_to_4h",
        "blk.{i}.ffn_down": "layers.{i}.mlp.dense_4h_to_h",
    },
    CENTRED_KEYS | {
        "attention.head_count_kv": "num_attention_heads",
        "use_parallel_residual": "use_parallel_residual",
    },
    prefixes=("gpt_neox.",),
    ignored=(r"attention\.bias$",),
    # llama.cpp computes all of these as GELU by tanh: its f16 table rounds more than they differ.
    expects={"hidden_act": ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")},
)  # fmt: skip


ARCHITECTURE = Architecture(("gptneox",), describe, (CHECKPOINT,))
