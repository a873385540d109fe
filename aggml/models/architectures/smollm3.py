"""smollm3: llama in which every fourth layer has no rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, NEIGHBOURS, scaled_frequencies
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "normal")
    return description_of(
        hp,
        [
            Layer(attention_of(hp, rope if (i + 1) % 4 else None, i), FeedForward())
            for i in range(layers_of(hp))
        ],
    )


CHECKPOINT: Final = Checkpoint(
    ("smollm3",),
    DECODER | NEIGHBOURS | {"rope_freqs.weight": scaled_frequencies},
    DECODER_KEYS,
    expects={
        "hidden_act": ("silu",), "use_sliding_window": (False,), "no_rope_layer_interval": (4,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("smollm3",), describe, (CHECKPOINT,))
