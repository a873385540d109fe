"""gemma-embedding: gemma3 whose tokens see all others, or those within a window on both sides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.architectures import gemma3
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import layers_of, rms_encoder_of, rope_of, sliding_layers

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    for n in (2, 3):  # matrices after pooling, whose shapes say the same
        hp.integer(f"dense_{n}_feat_in", 0)
        hp.integer(f"dense_{n}_feat_out", 0)
    rope, width = rope_of(hp, "neox"), hp.integer("embedding_length", least=1)
    window = hp.integer("attention.sliding_window", least=1)
    nearby = replace(rope, base=hp.number("rope.freq_base_swa", 10000.0, above=0.0), scale=1.0)
    layers = [
        EncoderLayer(
            nearby if near else rope, window if near else None, "gated tanh", norms_first=True,
            norms_after=True, head_norms=True,
        )
        for near in sliding_layers(hp, layers_of(hp), 6)
    ]  # fmt: skip
    return rms_encoder_of(hp, layers, embedding_scale=math.sqrt(width))


CHECKPOINT: Final = Checkpoint(
    gemma3.CHECKPOINT.model_types,
    {x: y for x, y in gemma3.CHECKPOINT.tensors.items() if x not in ("output", "cls.output")},
    {
        **{x: y for x, y in gemma3.CHECKPOINT.keys.items() if x != "final_logit_softcapping"},
        "attention.causal": lambda _: False,
    },
    prefixes=gemma3.CHECKPOINT.prefixes,
    ignored=(*gemma3.CHECKPOINT.ignored, r"^lm_head\."),
    condition=lambda config: bool(config.get("use_bidirectional_attention", default=False)),
    expects=gemma3.CHECKPOINT.expects,
)


ARCHITECTURE = Architecture(("gemma-embedding",), describe, (CHECKPOINT,))
