"""bitnet: BitNet b1.58; norms before the last matrix of attention and of the net, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox", factors=None), FeedForward(inner_norm="ffn_sub_norm")
    mixers = (attention_of(hp, rope, i, output_norm="attn_sub_norm") for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


ARCHITECTURE = Architecture(("bitnet",), describe)
