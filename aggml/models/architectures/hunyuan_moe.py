"""hunyuan-moe: hunyuan-dense with experts and a shared net."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, experts_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox")
    net = experts_of(hp, sum_to_one=True, shared=FeedForward(suffix="_shexp"))
    mixers = (attention_of(hp, rope, i, norm="turned head") for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


ARCHITECTURE = Architecture(("hunyuan-moe",), describe)
