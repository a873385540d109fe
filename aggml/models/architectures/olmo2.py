"""olmo2: norms after each block, not before; norms of a token's whole queries and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, HEAD_NORMS, window_pattern
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

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, window = layers_of(hp), hp.integer("attention.sliding_window", 0)
    everywhere = rope_of(hp, "neox")
    nearby = replace(everywhere, scale=1.0, extrapolation=0.0, attention_factor=1.0)
    local = sliding_layers(hp, layers, 4) if window else (False,) * layers
    mixers = (
        attention_of(
            hp, nearby if near else everywhere, i, norm="width", window=window if near else None
        )
        for i, near in enumerate(local)
    )
    return description_of(
        hp,
        [
            post_norm_layer(mixer, FeedForward(), before_mixer=None, before_feed_forward=None)
            for mixer in mixers
        ],
    )


def _windows(config: Config) -> list[bool] | None:
    """Which layers see a window; None if it is all but every fourth.

    Raises:
        ModelError: some do, and there is no window.
    """
    found: list[bool] | None = window_pattern(4)(config)
    told = config.get("layer_types", default=())
    if "sliding_attention" in told and config.get("sliding_window") is None:
        raise ModelError(f"config.json has layer_types = {told!r:.60}, but no sliding_window")
    return found


CHECKPOINT: Final = Checkpoint(
    ("olmo2", "olmo3"),
    DECODER | HEAD_NORMS | {
        "blk.{i}.post_attention_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.post_ffw_norm": "layers.{i}.post_feedforward_layernorm",
        "blk.{i}.ffn_norm": None,
    },
    DECODER_KEYS | {
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": _windows,
    },
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("olmo2",), describe, (CHECKPOINT,))
