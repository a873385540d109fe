"""qwen2: llama with biases on queries, keys and values, and rotary positions of mode "neox"."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, PICTURES, UNUSED_WINDOW
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
    rope = rope_of(hp, "neox")
    layers = range(layers_of(hp))
    return description_of(hp, [Layer(attention_of(hp, rope, i), FeedForward()) for i in layers])


CHECKPOINT: Final = Checkpoint(
    ("qwen2",), DECODER, DECODER_KEYS,
    harmless=UNUSED_WINDOW,
    expects={"hidden_act": ("silu",), "use_sliding_window": (False,)},
)  # fmt: skip


#: The text of models that see.
SEEING: Final = replace(
    CHECKPOINT,
    model_types=("qwen2_vl_text", "qwen2_vl", "qwen2_5_vl_text", "qwen2_5_vl"),
    architecture="qwen2vl",
    keys=DECODER_KEYS | PICTURES,
    prefixes=("model.language_model.", "language_model.model.", "language_model.", "model."),
    ignored=(r"^(model\.)?visual\.",),
)


ARCHITECTURE = Architecture(("qwen2", "qwen2vl"), describe, (CHECKPOINT, SEEING))
