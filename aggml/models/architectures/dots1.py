"""dots1: qwen3 with experts and a shared net in all layers but the first ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.architectures import glm4moe
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, HEAD_NORMS, UNUSED_WINDOW
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    nets_of,
    rope_of,
    routed_experts_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox")
    nets = nets_of(hp, routed_experts_of(hp, shared=FeedForward(suffix="_shexp")))
    mixers = (attention_of(hp, rope, i, norm="head") for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


CHECKPOINT: Final = Checkpoint(
    ("dots1",),
    {**DECODER, **HEAD_NORMS, **{
        name: rule for name, rule in glm4moe.CHECKPOINT.tensors.items()
        if "exp" in name or "gate_inp" in name
    }},
    glm4moe.CHECKPOINT.keys,
    harmless={
        **UNUSED_WINDOW, "max_window_layers": "it matters to layers with a window, of which "
        "layer_types says that there are none",
    },
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("dots1",), describe, (CHECKPOINT,))
