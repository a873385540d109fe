"""plamo: PLaMo 13B; attention and net side by side after one norm."""

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
    rope = rope_of(hp, "neox")
    mixers = (attention_of(hp, rope, i) for i in range(layers_of(hp)))
    return description_of(
        hp,
        [Layer(mixer, FeedForward(), before_feed_forward=None, parallel=True) for mixer in mixers],
    )


ARCHITECTURE = Architecture(("plamo",), describe)
