"""qwen3: qwen2 with norms of each head's queries and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, HEAD_NORMS, PICTURES, UNUSED_WINDOW
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    deepstack_of,
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
    attention = (attention_of(hp, rope, i, norm="head") for i in layers)
    return description_of(
        hp, [Layer(mixer, FeedForward()) for mixer in attention], deepstack=deepstack_of(hp)
    )


CHECKPOINT: Final = Checkpoint(
    ("qwen3",), DECODER | HEAD_NORMS, DECODER_KEYS,
    harmless=UNUSED_WINDOW,
    expects={"hidden_act": ("silu",), "use_sliding_window": (False,)},
)  # fmt: skip


#: The text of models that see.
SEEING: Final = replace(
    CHECKPOINT,
    model_types=("qwen3_vl_text", "qwen3_vl"),
    architecture="qwen3vl",
    keys=DECODER_KEYS | PICTURES,
    prefixes=("model.language_model.", "language_model.model.", "language_model.", "model."),
    ignored=(r"^(model\.)?visual\.",),
)


ARCHITECTURE = Architecture(("qwen3", "qwen3vl"), describe, (CHECKPOINT, SEEING))
