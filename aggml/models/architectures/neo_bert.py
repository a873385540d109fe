"""neo-bert: RMS norms before each block, rotary positions, gate and up in one matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import layers_of, rms_encoder_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layer = EncoderLayer(rope_of(hp, "normal"), None, "joined silu", norms_first=True)
    return rms_encoder_of(hp, [layer] * layers_of(hp), last_norm="enc.output_norm")


ARCHITECTURE = Architecture(("neo-bert",), describe)
