"""exaone4: norms after each block, and of each head's queries and keys.

In the 32B model three of four layers see a window; every fourth sees all and has no rotary
positions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    HEAD_NORMS,
    scaled_frequencies,
    window_pattern,
)
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    post_norm_layer,
    rope_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "LARGE", "describe"]

LARGE: Final = 64  # layers of the 32B model


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers = layers_of(hp)
    window = hp.integer("attention.sliding_window", 4096, least=1) if layers == LARGE else 0
    rope = rope_of(hp, "neox")
    if window:
        rope = replace(rope, base=hp.number("rope.freq_base_swa", rope.base, above=0.0))
    near = sliding_layers(hp, layers, 4) if window else (False,) * layers
    mixers = (
        attention_of(
            hp, rope if near[i] or not window else None, i, norm="head",
            window=window if near[i] else None,
        )
        for i in range(layers)
    )  # fmt: skip
    return description_of(
        hp,
        [
            post_norm_layer(mixer, FeedForward(), before_mixer=None, before_feed_forward=None)
            for mixer in mixers
        ],
    )


def _window(config: Config) -> int | None:
    """The window, in positions; None: there is none.

    Raises:
        ModelError: a model of another size has a window: programs that read GGUF apply the window
            to the 32B model only.
    """
    found = config.get("sliding_window")
    if found is not None and config.need("num_hidden_layers") != LARGE:
        raise ModelError(
            f"config.json has sliding_window = {found}; only models of {LARGE} layers may have one"
        )
    return None if found is None else int(found)


CHECKPOINT: Final = Checkpoint(
    ("exaone4",),
    DECODER | HEAD_NORMS | {
        "blk.{i}.attn_norm": None,
        "blk.{i}.ffn_norm": None,
        "blk.{i}.post_attention_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.post_ffw_norm": "layers.{i}.post_feedforward_layernorm",
        "rope_freqs.weight": scaled_frequencies,
    },
    DECODER_KEYS | {
        "attention.sliding_window": _window,
        "attention.sliding_window_pattern": window_pattern(4),
    },
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("exaone4",), describe, (CHECKPOINT,))
