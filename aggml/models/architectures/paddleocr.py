"""paddleocr: the text model of PaddleOCR-VL; ernie4_5 whose pictures have rows and columns."""

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
    rope, layers = rope_of(hp, "neox"), range(layers_of(hp))
    return description_of(hp, [Layer(attention_of(hp, rope, i), FeedForward()) for i in layers])


ARCHITECTURE = Architecture(("paddleocr",), describe)
