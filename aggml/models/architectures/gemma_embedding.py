"""gemma-embedding: gemma3 whose tokens see all others, or those within a window on both sides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import layers_of, rms_encoder_of, rope_of, windowed

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    for n in (2, 3):  # matrices after pooling, whose shapes say the same
        hp.integer(f"dense_{n}_feat_in", 0)
        hp.integer(f"dense_{n}_feat_out", 0)
    rope, width = rope_of(hp, "neox"), hp.integer("embedding_length", least=1)
    window = hp.integer("attention.sliding_window", least=1)
    nearby = replace(rope, base=hp.number("rope.freq_base_swa", 10000.0, above=0.0), scale=1.0)
    layers = [
        EncoderLayer(
            nearby if near else rope, window if near else None, "gated tanh", norms_first=True,
            norms_after=True, head_norms=True,
        )
        for near in windowed(hp, layers_of(hp), 6)
    ]  # fmt: skip
    return rms_encoder_of(hp, layers, embedding_scale=math.sqrt(width))


ARCHITECTURE = Architecture(("gemma-embedding",), describe)
