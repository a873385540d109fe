"""qwen3moe: qwen3 with experts, whose weights sum to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, experts_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), experts_of(hp, sum_to_one=True)
    layers = range(hp.integer("block_count"))
    attention = (attention_of(hp, rope, i, norm="head") for i in layers)
    return description_of(hp, [Layer(mixer, net) for mixer in attention])


ARCHITECTURE = Architecture(("qwen3moe",), describe)
