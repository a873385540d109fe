"""mamba2: no attention and no feed-forward nets, a selective scan in every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import description_of, mamba2_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    return description_of(hp, [Layer(mamba2_of(hp), None)] * hp.integer("block_count"))


ARCHITECTURE = Architecture(("mamba2",), describe)
