"""modern-bert: norms before the blocks; two of three layers see a window, on both sides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.models.description import Architecture
from aggml.models.encoding.description import EncoderDescription, EncoderLayer
from aggml.models.reading import encoder_of, rope_of

if TYPE_CHECKING:
    from aggml.models.encoding.description import Net
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    window = hp.integer("attention.sliding_window", 0)
    net: Net = "joined silu" if hp.get("hidden_activation") == "silu" else "joined gelu"
    everywhere = rope_of(hp, "neox")
    nearby = replace(everywhere, base=hp.number("rope.freq_base_swa", 10000.0), scale=1.0)
    period = hp.get("attention.sliding_window_pattern", 3)
    layers = []
    for i in range(hp.integer("block_count")):
        far = i % period == 0 if isinstance(period, int) else not period[i]
        whole = far or not window
        layers.append(
            EncoderLayer(
                everywhere if whole else nearby, None if whole else window, net, norms_first=True
            )
        )
    return encoder_of(hp, layers)


ARCHITECTURE = Architecture(("modern-bert",), describe)
