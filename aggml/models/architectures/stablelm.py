"""stablelm: llama with LayerNorm; in the 12B model attention and net work in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS, DECODER
from aggml.models.checkpoints.recipes import Checkpoint, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    layer_norm_description_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, parallel = rope_of(hp, "neox"), hp.flag("use_parallel_residual", False)
    return layer_norm_description_of(
        hp,
        [
            Layer(
                attention_of(hp, rope, i, norm="own head" if parallel else None),
                FeedForward(),
                before_feed_forward=None if parallel else "ffn_norm",
                parallel=parallel,
            )
            for i in range(layers_of(hp))
        ],
    )


CHECKPOINT: Final = Checkpoint(
    ("stablelm",),
    DECODER | {
        "blk.{i}.attn_q_norm": stack("layers.{i}.self_attn.q_layernorm.norms.{e}"),
        "blk.{i}.attn_k_norm": stack("layers.{i}.self_attn.k_layernorm.norms.{e}"),
    },
    CENTRED_KEYS | {"use_parallel_residual": "use_parallel_residual"},
    harmless={"qk_layernorm": "the file has these norms or not"},
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("stablelm",), describe, (CHECKPOINT,))
