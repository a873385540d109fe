"""maple: Maple; experts whose gates are bounded, rotary positions in layers with a window only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    each_flag,
    experts_of,
    layers_of,
    limits_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, window = layers_of(hp), hp.integer("attention.sliding_window", least=1)
    rope = rope_of(hp, "neox", factors=None)
    near = rope_of(
        hp, "neox", factors=None, base=hp.number("rope.freq_base_swa", rope.base, above=0.0)
    )
    local = each_flag(hp, "attention.sliding_window_pattern", layers, default=False)
    limits = limits_of(hp, "swiglu_clamp_exp", layers)
    found = []
    for i, is_near in enumerate(local):
        mixer = attention_of(
            hp, near if is_near else None, i, norm="head", window=window if is_near else None
        )
        experts = experts_of(hp, sum_to_one=True, scale=1.0, limit=limits[i], bounded_before=True)
        found.append(Layer(mixer, experts))
    return description_of(hp, found)


ARCHITECTURE = Architecture(("maple",), describe)
