"""qwen2moe: qwen2 with experts, and a net beside them that a sigmoid weighs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, experts_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox")
    net = experts_of(hp, shared=FeedForward(suffix="_shexp"), shared_gate=True)
    layers = range(hp.integer("block_count"))
    return description_of(hp, [Layer(attention_of(hp, rope, i), net) for i in layers])


ARCHITECTURE = Architecture(("qwen2moe",), describe)
