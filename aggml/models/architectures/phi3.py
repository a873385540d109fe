"""phi3: queries, keys and values in one matrix, gate and up in one; LongRoPE factors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, longrope_factors, window_of_folder
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of, window_of

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(
        hp,
        "neox",
        factors="rope_factors_short.weight",
        long_factors="rope_factors_long.weight",
        stretched=hp.get("rope.scaling.type") == "longrope",
    )
    layers = range(layers_of(hp))
    window = window_of(hp)
    attention = (attention_of(hp, rope, i, joined=True, window=window) for i in layers)
    return description_of(hp, [Layer(mixer, FeedForward(joined=True)) for mixer in attention])


def _window(config: Config) -> int:
    """The window; 0: there is none. llama.cpp needs the number in any case."""
    return window_of_folder()(config) or 0


CHECKPOINT: Final = Checkpoint(
    ("phi3",),
    DECODER | {
        "blk.{i}.attn_qkv": "layers.{i}.self_attn.qkv_proj",
        "blk.{i}.ffn_up": "layers.{i}.mlp.gate_up_proj",
        "rope_factors_short.weight": longrope_factors("short_factor"),
        "rope_factors_long.weight": longrope_factors("long_factor"),
    },
    DECODER_KEYS | {"attention.sliding_window": _window},
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("phi3",), describe, (CHECKPOINT,))
