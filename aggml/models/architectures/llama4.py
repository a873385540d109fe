"""llama4: attention in chunks in most layers, experts whose inputs are weighed, a shared net.

Layers that see all positions have no rotary ones. There attention gets sharper at late positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward, Temperature
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    layers_of,
    nets_of,
    rope_of,
    windowed,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

CHUNK: Final = 8192  # positions; files do not have the number
PERIOD: Final = 4  # each so many-th layer sees all positions
SHARPER: Final = Temperature(0.1, CHUNK, 1)
WITHOUT_NORM: Final = 128  # models with so many experts have no norms of queries and keys


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: the file says that no layer has chunks.
    """
    if hp.get("attention.sliding_window") == 0:
        raise ModelError(
            "llama4.attention.sliding_window is 0: models without chunks are not supported"
        )
    hp.integer("attention.sliding_window", CHUNK)  # other programs ignore the number, too
    rope, layers = rope_of(hp, "normal"), layers_of(hp)
    near = rope_of(hp, "normal", base=hp.number("rope.freq_base_swa", rope.base, above=0.0))
    experts = experts_of(
        hp, weights="sigmoid", weigh_input=True, shared=FeedForward(suffix="_shexp")
    )
    step = hp.integer("interleave_moe_layer_step", least=1)
    nets = nets_of(hp, experts, step)
    norm = None if experts.count == WITHOUT_NORM else "turned head alone"
    mixers = []
    for i, chunked in enumerate(windowed(hp, layers, PERIOD)):
        turned = (i + 1) % PERIOD != 0
        mixers.append(
            attention_of(
                hp, (near if chunked else rope) if turned else None, i,
                window=CHUNK if chunked else None, chunked=chunked,
                norm=norm if turned else None, temperature=None if turned else SHARPER,
            )
        )  # fmt: skip
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


ARCHITECTURE = Architecture(("llama4",), describe)
