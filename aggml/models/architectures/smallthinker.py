"""smallthinker: experts with ReLU in each layer, chosen by the layer's input before attention.

Most layers see a window and have rotary positions; the first of four sees all positions, without
rotary ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of, routed_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

WINDOW: Final = 4096  # positions; a file only says whether there is a window
PERIOD: Final = 4


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    experts = routed_of(hp, activation="relu", sum_to_one=True)
    hp.get("expert_weights_norm")  # other programs do not read it, either
    rope, has_windows = rope_of(hp, "neox", factors=None), hp.integer("attention.sliding_window", 0)
    if not has_windows:
        layers = [attention_of(hp, rope, i) for i in range(layers_of(hp))]
        return description_of(hp, [Layer(x, experts, routed_early=True) for x in layers])
    near = rope_of(
        hp, "neox", factors=None, base=hp.number("rope.freq_base_swa", rope.base, above=0.0)
    )
    layers = [
        attention_of(hp, near if i % PERIOD else None, i, window=WINDOW if i % PERIOD else None)
        for i in range(layers_of(hp))
    ]
    return description_of(hp, [Layer(x, experts, routed_early=True) for x in layers])


ARCHITECTURE = Architecture(("smallthinker",), describe)
