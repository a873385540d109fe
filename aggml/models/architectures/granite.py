"""granite: llama with scales of embeddings, attention, residuals, logits; granitemoe: experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, experts_of, rope_of

if TYPE_CHECKING:
    from aggml.models.description import Block
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    net: Block = FeedForward()
    if hp.integer("expert_count", 0):
        shared = FeedForward(suffix="_shexp")
        beside = shared if hp.integer("expert_shared_feed_forward_length", 0) else None
        net = experts_of(hp, sum_to_one=True, shared=beside)
    rope = rope_of(hp, "normal") if hp.flag("rope.scaling.finetuned", True) else None
    scale = hp.number("attention.scale", 0.0) or None
    residual = hp.number("residual_scale", 1.0) or 1.0
    layers = range(hp.integer("block_count"))
    return description_of(
        hp,
        [
            Layer(attention_of(hp, rope, i, scale=scale), net, residual_scale=residual)
            for i in layers
        ],
        embedding_scale=hp.number("embedding_scale", 1.0) or 1.0,
        logit_scale=1.0 / hp.number("logit_scale"),
    )


ARCHITECTURE = Architecture(("granite", "granitemoe"), describe)
