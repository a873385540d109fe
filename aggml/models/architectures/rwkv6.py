"""rwkv6: a recurrence instead of attention, LayerNorm, no positions (Finch)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import ChannelMix6, Halved, TimeMix6
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import divides, layer_norm_description_of, layers_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: the two parts of a layer do not use one previous token each.
    """
    if hp.integer("token_shift_count", 2) != 2:
        raise ModelError(f"rwkv6.token_shift_count is {hp.integer('token_shift_count')}, not 2")
    width, head = hp.integer("embedding_length", least=1), hp.integer("wkv.head_size", least=1)
    divides(hp, "wkv.head_size", head, "embedding_length", width)
    period = hp.integer("rescale_every_n_layers", 0)
    layers = [
        Layer(
            TimeMix6(width, head), ChannelMix6(width), before_feed_forward="attn_norm_2",
            ending=Halved() if period and (i + 1) % period == 0 else None,
        )
        for i in range(layers_of(hp))
    ]  # fmt: skip
    return layer_norm_description_of(hp, layers, embedding_norm=True)


ARCHITECTURE = Architecture(("rwkv6",), describe)
