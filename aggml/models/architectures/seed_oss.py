"""seed_oss: qwen2 whose norm before the net has another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, rope_of

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
            for i in range(hp.integer("block_count"))
        ],
    )


ARCHITECTURE = Architecture(("seed_oss",), describe)
