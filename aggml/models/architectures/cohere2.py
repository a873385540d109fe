"""cohere2: attention and net side by side after one LayerNorm; only layers with a window rotate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS, DECODER, number, window_pattern
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    layer_norm_description_of,
    layers_of,
    rope_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, rope = layers_of(hp), rope_of(hp, "normal")
    window = hp.integer("attention.sliding_window", least=1)
    mixers = (
        attention_of(hp, rope if near else None, i, window=window if near else None)
        for i, near in enumerate(sliding_layers(hp, layers, 4))
    )
    return layer_norm_description_of(
        hp,
        [Layer(mixer, FeedForward(), before_feed_forward=None, parallel=True) for mixer in mixers],
        logit_scale=hp.number("logit_scale") or 1.0,
    )


CHECKPOINT: Final = Checkpoint(
    ("cohere2",), {x: y for x, y in DECODER.items() if x != "blk.{i}.ffn_norm"},
    CENTRED_KEYS | {
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern(4),
        "logit_scale": number("logit_scale", default=0.0625),
    },
    expects={"hidden_act": ("silu",), "tie_word_embeddings": (True,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("cohere2",), describe, (CHECKPOINT,))
