"""starcoder2: LayerNorm, nets without a gate, biases everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS, DECODER, window_of_folder
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    layer_norm_description_of,
    layers_of,
    rope_of,
    window_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), FeedForward("gelu", gated=False)
    layers, window = range(layers_of(hp)), window_of(hp)
    return layer_norm_description_of(
        hp, [Layer(attention_of(hp, rope, i, joined=None, window=window), net) for i in layers]
    )


CHECKPOINT: Final = Checkpoint(
    ("starcoder2",),
    DECODER | {
        "blk.{i}.ffn_up": "layers.{i}.mlp.c_fc", "blk.{i}.ffn_down": "layers.{i}.mlp.c_proj",
    },
    CENTRED_KEYS | {"attention.sliding_window": window_of_folder()},
    expects={"hidden_act": ("gelu_pytorch_tanh", "gelu_new")},
)  # fmt: skip


ARCHITECTURE = Architecture(("starcoder2",), describe, (CHECKPOINT,))
