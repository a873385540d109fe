"""lfm2 and lfm2moe: most layers are short convolutions, those with heads of keys are attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import FeedForward, ShortConv
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    nets_of,
    rope_of,
    routed_of,
    window_of,
)

if TYPE_CHECKING:
    from aggml.models.description import Block
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, rope = layers_of(hp), rope_of(hp, "neox")
    conv = ShortConv(
        hp.integer("embedding_length", least=1), hp.integer("shortconv.l_cache", least=2)
    )
    heads = hp.each_layer("attention.head_count_kv", layers)
    nets: list[Block] = [FeedForward()] * layers
    if hp.architecture == "lfm2moe":
        nets = nets_of(hp, routed_of(hp, sum_to_one=True))
    window = window_of(hp)
    mixers = (
        attention_of(hp, rope, i, norm="head", window=window) if n else conv
        for i, n in enumerate(heads)
    )
    return description_of(
        hp,
        [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)],
        last_norm="token_embd_norm",  # the wrong name that the first files had
    )


ARCHITECTURE = Architecture(("lfm2", "lfm2moe"), describe)
