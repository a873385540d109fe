"""arcee: llama with nets that have ReLU squared and no gate; AFM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, NEIGHBOURS, scaled_frequencies
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "normal"), FeedForward("relu_sqr", gated=False)
    scale = hp.number("attention.scale", 0.0) or None
    mixers = (attention_of(hp, rope, i, scale=scale) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


CHECKPOINT: Final = Checkpoint(
    ("arcee",),
    {
        **{x: y for x, y in DECODER.items() if x != "blk.{i}.ffn_gate"}, **NEIGHBOURS,
        "rope_freqs.weight": scaled_frequencies,
    },
    DECODER_KEYS,
    expects={"hidden_act": ("relu2",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("arcee",), describe, (CHECKPOINT,))
