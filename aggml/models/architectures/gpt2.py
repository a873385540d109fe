"""gpt2: embeddings of positions, norms that take the mean away, nets without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, centred_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    net, layers = FeedForward("gelu", gated=False), range(hp.integer("block_count"))
    return centred_of(
        hp,
        [Layer(attention_of(hp, None, i, joined=True), net) for i in layers],
        position_table=True,
    )


ARCHITECTURE = Architecture(("gpt2",), describe)
