"""stablelm: llama with norms that take the mean away; its 12B has parts side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, centred_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, parallel = rope_of(hp, "neox"), hp.flag("use_parallel_residual", False)
    return centred_of(
        hp,
        [
            Layer(
                attention_of(hp, rope, i, norm="head" if parallel else None),
                FeedForward(),
                before_feed_forward=None if parallel else "ffn_norm",
                parallel=parallel,
            )
            for i in range(hp.integer("block_count"))
        ],
    )


ARCHITECTURE = Architecture(("stablelm",), describe)
