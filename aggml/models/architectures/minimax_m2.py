"""minimax-m2: norms of whole queries and keys, half rotated; experts weighed by sigmoids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of, routed_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), routed_of(hp, sum_to_one=True)
    mixers = (attention_of(hp, rope, i, norm="width") for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


ARCHITECTURE = Architecture(("minimax-m2",), describe)
