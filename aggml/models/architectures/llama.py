"""llama: also mistral, smollm, tinyllama and mixtral, whose files name this architecture.

Norms before each block, rotary positions on neighbours, a gated feed-forward net or experts.
"""

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
    rope = rope_of(hp, "normal")
    of_experts = hp.integer("expert_count", 0) > 0
    net = experts_of(hp, sum_to_one=True) if of_experts else FeedForward()
    layers = range(hp.integer("block_count"))
    return description_of(hp, [Layer(attention_of(hp, rope, i), net) for i in layers])


ARCHITECTURE = Architecture(("llama",), describe)
