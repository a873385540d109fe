"""gemma: llama with gelu, and embeddings times the square root of the width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, add_one
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
    rope, net = rope_of(hp, "neox"), FeedForward("gelu")
    width = hp.integer("embedding_length", least=1)
    layers = [Layer(attention_of(hp, rope, i), net) for i in range(layers_of(hp))]
    return description_of(hp, layers, embedding_scale=math.sqrt(width))


CHECKPOINT: Final = Checkpoint(
    ("gemma",),
    DECODER | {
        "output_norm": add_one("norm"),
        "blk.{i}.attn_norm": add_one("layers.{i}.input_layernorm"),
        "blk.{i}.ffn_norm": add_one("layers.{i}.post_attention_layernorm"),
    },
    DECODER_KEYS,
    # The first folders say "gelu" by mistake: the models were trained with GELU by tanh.
    expects={"hidden_act": ("gelu", "gelu_pytorch_tanh"), "hidden_activation": (
        "gelu_pytorch_tanh",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("gemma",), describe, (CHECKPOINT,))
