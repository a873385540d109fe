"""hunyuan-dense: llama with norms of each head's queries and keys, after positions are told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, head_length, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, alpha, head = rope_of(hp, "neox"), hp.number("rope.scaling.alpha", 0.0), head_length(hp)
    if alpha > 0:
        rope = replace(rope, base=rope.base * alpha ** (head / (head - 2)))
    mixers = (
        attention_of(hp, rope, i, norm="turned head") for i in range(hp.integer("block_count"))
    )
    return description_of(hp, [Layer(mixer, FeedForward()) for mixer in mixers])


ARCHITECTURE = Architecture(("hunyuan-dense",), describe)
