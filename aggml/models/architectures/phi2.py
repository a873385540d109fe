"""phi2: attention and a net without a gate in parallel, with one norm before both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS, DECODER
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    layer_norm_description_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), FeedForward("gelu", gated=False)
    return layer_norm_description_of(
        hp,
        [
            Layer(
                attention_of(hp, rope, i, joined=None), net, before_feed_forward=None, parallel=True
            )
            for i in range(layers_of(hp))
        ],
    )


CHECKPOINT: Final = Checkpoint(
    ("phi",),
    DECODER | {
        "output_norm": "final_layernorm",
        "blk.{i}.attn_output": "layers.{i}.self_attn.dense",
        "blk.{i}.ffn_norm": None,
        "blk.{i}.ffn_up": "layers.{i}.mlp.fc1",
        "blk.{i}.ffn_down": "layers.{i}.mlp.fc2",
    },
    CENTRED_KEYS,
    expects={"hidden_act": ("gelu_new", "gelu_pytorch_tanh"), "qk_layernorm": (False,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("phi2",), describe, (CHECKPOINT,))
