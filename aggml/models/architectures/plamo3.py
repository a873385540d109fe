"""plamo3: PLaMo 3; norms before and after each block, windows in all but each eighth layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    post_norm_layer,
    rope_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

PERIOD: Final = 8  # of layers, the last of which sees all positions
#: Names without ".weight" at their ends.
BARE: Final = ("post_attention_norm", "post_ffw_norm")


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, window = layers_of(hp), hp.integer("attention.sliding_window", 0)
    far = rope_of(hp, "neox", factors=None)
    near = replace(far, base=hp.number("rope.freq_base_swa", far.base, above=0.0))
    local = sliding_layers(hp, layers, PERIOD) if window else (False,) * layers
    mixers = (
        attention_of(
            hp, near if is_near else far, i, joined=True, norm="head",
            window=window if is_near else None,
        )
        for i, is_near in enumerate(local)
    )  # fmt: skip
    net = FeedForward(joined=True)
    return description_of(hp, [post_norm_layer(mixer, net, bare=BARE) for mixer in mixers])


ARCHITECTURE = Architecture(("plamo3",), describe)
