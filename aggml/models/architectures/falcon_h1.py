"""falcon-h1: attention and a scan of Mamba 2 side by side in each layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward, SideBySide
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, mamba2_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, scan = rope_of(hp, "neox"), replace(mamba2_of(hp), norm_optional=True)
    layers = []
    for i in range(layers_of(hp)):
        attention = attention_of(hp, rope, i)
        mixer = SideBySide(attention, scan, attention.heads * attention.value_length)
        layers.append(Layer(mixer, FeedForward(), bare=("ffn_norm",)))
    return description_of(hp, layers)


ARCHITECTURE = Architecture(("falcon-h1",), describe)
