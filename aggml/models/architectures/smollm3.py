"""smollm3: llama in which every fourth layer has no rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    NEIGHBOURS,
    UNUSED_WINDOW,
    scaled_frequencies,
)
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "normal")
    return description_of(
        hp,
        [
            Layer(attention_of(hp, rope if (i + 1) % 4 else None, i), FeedForward())
            for i in range(layers_of(hp))
        ],
    )


def _positions(config: Config) -> None:
    """Refuses other layers without rotary positions than every fourth: GGUF has no key for them.

    Raises:
        ModelError: config.json has such layers.
    """
    told = config.get("no_rope_layers")
    usual = [int((i + 1) % 4 != 0) for i in range(int(config.need("num_hidden_layers")))]
    if told is not None and told != usual:
        raise ModelError(f"config.json has no_rope_layers = {told}; only {usual} is supported")


CHECKPOINT: Final = Checkpoint(
    ("smollm3",),
    DECODER | NEIGHBOURS | {"rope_freqs.weight": scaled_frequencies},
    DECODER_KEYS | {"no_rope_layers": _positions},
    harmless=UNUSED_WINDOW,
    expects={
        "hidden_act": ("silu",), "use_sliding_window": (False,), "no_rope_layer_interval": (4,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("smollm3",), describe, (CHECKPOINT,))
