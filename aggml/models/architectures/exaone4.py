"""exaone4: norms after each block and of each head.

Three of four layers of its 32B model see a window; there the fourth layers are told no positions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, rope_of, windowed

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "LARGE", "describe"]

LARGE: Final = 64  # layers of the 32B model


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers = hp.integer("block_count")
    window = hp.integer("attention.sliding_window", 4096) if layers == LARGE else 0
    rope = rope_of(hp, "neox")
    if window:
        rope = replace(rope, base=hp.number("rope.freq_base_swa", rope.base))
    near = windowed(hp, layers, 4) if window else (False,) * layers
    mixers = (
        attention_of(
            hp, rope if near[i] or not window else None, i, norm="head",
            window=window if near[i] else None,
        )
        for i in range(layers)
    )  # fmt: skip
    return description_of(
        hp,
        [
            Layer(
                mixer, FeedForward(),
                before_mixer=None, after_mixer="post_attention_norm",
                before_feed_forward=None, after_feed_forward="post_ffw_norm",
            )
            for mixer in mixers
        ],
    )  # fmt: skip


ARCHITECTURE = Architecture(("exaone4",), describe)
