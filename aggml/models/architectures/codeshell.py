"""codeshell: CodeShell; LayerNorms, nets without a gate, biases everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, layer_norm_description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), FeedForward("gelu", gated=False)
    mixers = (attention_of(hp, rope, i, joined=None) for i in range(layers_of(hp)))
    return layer_norm_description_of(hp, [Layer(mixer, net) for mixer in mixers])


ARCHITECTURE = Architecture(("codeshell",), describe)
