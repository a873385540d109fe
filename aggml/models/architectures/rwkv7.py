"""rwkv7: a recurrence instead of attention, norms that take the mean away, no positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.blocks import ChannelMix, TimeMix
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import centred_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: another number of tokens that are looked back at than one in each part.
    """
    if hp.integer("token_shift_count", 2) != 2:
        raise ModelError(f"rwkv7.token_shift_count is {hp.integer('token_shift_count')}, not 2")
    width, head = hp.integer("embedding_length"), hp.integer("wkv.head_size")
    return centred_of(
        hp,
        [
            Layer(
                TimeMix(width, head, first=i == 0), ChannelMix(width),
                before_feed_forward="attn_norm_2",
            )
            for i in range(hp.integer("block_count"))
        ],
        embedding_norm=True, entire=True,
    )  # fmt: skip


ARCHITECTURE = Architecture(("rwkv7",), describe)
