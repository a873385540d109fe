"""baichuan: built as llama; of 40 layers (13B) with ALiBi instead of rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

ROTARY: Final = 32  # layers of the model of 7B; files do not say which one it is
SLOPED: Final = 40  # of the model of 13B
SLOPE: Final = 8.0  # the largest bias of ALiBi


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: neither of the two published numbers of layers.
    """
    layers, rope = layers_of(hp), rope_of(hp, "normal")
    if layers not in (ROTARY, SLOPED):
        raise ModelError(
            f"baichuan.block_count is {layers}, expected {ROTARY} or {SLOPED}: files do not say "
            "what positions a model has, and these are known"
        )
    rotary = layers == ROTARY
    mixers = (
        attention_of(hp, rope if rotary else None, i, slope=0.0 if rotary else SLOPE)
        for i in range(layers)
    )
    return description_of(hp, [Layer(mixer, FeedForward()) for mixer in mixers])


ARCHITECTURE = Architecture(("baichuan",), describe)
