"""seed_oss: qwen2 in which the norm before the feed-forward net has another name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox")
    return description_of(
        hp,
        [
            Layer(
                attention_of(hp, rope, i),
                FeedForward(),
                before_feed_forward="post_attention_norm",
            )
            for i in range(layers_of(hp))
        ],
    )


CHECKPOINT: Final = Checkpoint(
    ("seed_oss",),
    DECODER | {
        "blk.{i}.ffn_norm": None,
        "blk.{i}.post_attention_norm": "layers.{i}.post_attention_layernorm",
    },
    DECODER_KEYS,
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("seed_oss",), describe, (CHECKPOINT,))
