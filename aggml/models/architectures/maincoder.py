"""maincoder: Maincoder; llama whose heads of queries and keys are normalised behind the rope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "normal")
    mixers = (attention_of(hp, rope, i, norm="turned head") for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, FeedForward()) for mixer in mixers])


ARCHITECTURE = Architecture(("maincoder",), describe)
