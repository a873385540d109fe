"""nomic-bert-moe: BERT with rotary positions, and experts in some layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import encoder_of, experts_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    period = hp.integer("moe_every_n_layers", 0)
    rope = rope_of(hp, "neox")
    experts = None
    if period:
        experts = experts_of(hp, activation="gelu_erf", gated=False)
    layers = [
        EncoderLayer(rope, None, "gelu", experts=experts if period and i % period == 1 else None)
        for i in range(layers_of(hp))
    ]
    return encoder_of(hp, layers)


ARCHITECTURE = Architecture(("nomic-bert-moe",), describe)
