"""pangu-embedded: openPangu-Embedded; llama with biases in attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox", factors=None)
    mixers = (attention_of(hp, rope, i) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, FeedForward()) for mixer in mixers])


CHECKPOINT: Final = Checkpoint(
    ("PanguEmbedded",),
    DECODER,
    DECODER_KEYS | {"attention.key_length": lambda config: config.head,
                    "attention.value_length": lambda config: config.head},
    harmless={"bias": "the names of the tensors say the same"},
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("pangu-embedded",), describe, (CHECKPOINT,))
