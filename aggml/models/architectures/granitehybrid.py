"""granitehybrid: granite whose layers without heads of keys follow the scan of Mamba 2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.models.architectures import granite
from aggml.models.description import Architecture, Description
from aggml.models.reading import mamba2_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    of_attention, scan = granite.describe(hp), mamba2_of(hp)
    heads = hp.each_layer("attention.head_count_kv", len(of_attention.layers))
    layers = (
        layer if n else replace(layer, mixer=scan)
        for layer, n in zip(of_attention.layers, heads, strict=True)
    )
    return replace(of_attention, layers=tuple(layers))


ARCHITECTURE = Architecture(("granitehybrid",), describe)
