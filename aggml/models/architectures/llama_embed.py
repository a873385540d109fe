"""llama-embed: Llama Nemotron Embed; llama, but each token sees all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    NEIGHBOURS,
    scaled_frequencies,
)
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import layers_of, rms_encoder_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layer = EncoderLayer(rope_of(hp, "normal"), None, "gated silu", norms_first=True)
    return rms_encoder_of(hp, [layer] * layers_of(hp))


CHECKPOINT: Final = Checkpoint(
    ("llama_bidirec",),
    {
        **{x: y for x, y in DECODER.items() if x not in ("output", "cls.output")}, **NEIGHBOURS,
        "rope_freqs.weight": scaled_frequencies,
    },
    {**DECODER_KEYS, "attention.causal": lambda _: False},
    harmless={"temperature": "it is for training"},
    expects={
        "hidden_act": ("silu",), "pooling": ("avg",), "attention_bias": (False,),
        "mlp_bias": (False,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("llama-embed",), describe, (CHECKPOINT,))
