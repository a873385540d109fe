"""refact: Refact; llama with ALiBi and one head of keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

SLOPE: Final = 8.0  # the largest bias of ALiBi


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    mixers = (attention_of(hp, None, i, slope=SLOPE) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, FeedForward()) for mixer in mixers])


ARCHITECTURE = Architecture(("refact",), describe)
