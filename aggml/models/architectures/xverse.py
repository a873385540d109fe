"""xverse: the blocks of llama."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, NEIGHBOURS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "normal", factors=None), FeedForward()
    return description_of(hp, [Layer(attention_of(hp, rope, i), net) for i in range(layers_of(hp))])


CHECKPOINT: Final = Checkpoint(
    ("xverse",), DECODER | NEIGHBOURS, DECODER_KEYS,
    harmless={"max_tokenizer_truncation": "the caller says how long a prompt is"},
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("xverse",), describe, (CHECKPOINT,))
