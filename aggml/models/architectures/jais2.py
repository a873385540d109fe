"""jais2: LayerNorm, rotary positions, nets with ReLU squared and no gate, biases everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.architectures import nemotron
from aggml.models.checkpoints.keys import CENTRED_KEYS, DECODER
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture

if TYPE_CHECKING:
    from aggml.models.description import Description
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture: the blocks are those of nemotron."""
    return nemotron.describe(hp)


CHECKPOINT: Final = Checkpoint(
    ("jais2",),
    {name: rule for name, rule in DECODER.items() if name != "blk.{i}.ffn_gate"},
    CENTRED_KEYS,
    expects={"hidden_act": ("relu2",)},
)


ARCHITECTURE = Architecture(("jais2",), describe, (CHECKPOINT,))
