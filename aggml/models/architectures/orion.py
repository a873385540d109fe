"""orion: llama with LayerNorms that have biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS, DECODER, number
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, layer_norm_description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox", factors=None), FeedForward()
    return layer_norm_description_of(
        hp, [Layer(attention_of(hp, rope, i), net) for i in range(layers_of(hp))]
    )


CHECKPOINT: Final = Checkpoint(
    ("orion",),
    DECODER,
    {
        **CENTRED_KEYS,
        "context_length": ("max_sequence_length", "max_position_embeddings", "model_max_length"),
        # its code gives this number to LayerNorms
        "attention.layer_norm_epsilon": number("rms_norm_eps"),
    },
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("orion",), describe, (CHECKPOINT,))
