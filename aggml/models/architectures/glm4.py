"""glm4: norms before and after each block, gate and up in one matrix, rotary half heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    post_norm_layer,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    # Files of models that see have pairs of other elements, so that pictures have rows and columns.
    sees = hp.get("rope.dimension_sections") is not None
    rope = rope_of(hp, "neox" if sees else "normal")
    layers = range(layers_of(hp))
    return description_of(
        hp,
        [post_norm_layer(attention_of(hp, rope, i), FeedForward(joined=True)) for i in layers],
    )


CHECKPOINT: Final = Checkpoint(
    ("glm4",),
    DECODER | {
        "blk.{i}.ffn_up": "layers.{i}.mlp.gate_up_proj",
        "blk.{i}.post_attention_norm": "layers.{i}.post_self_attn_layernorm",
        "blk.{i}.post_ffw_norm": "layers.{i}.post_mlp_layernorm",
    },
    DECODER_KEYS,
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("glm4",), describe, (CHECKPOINT,))
