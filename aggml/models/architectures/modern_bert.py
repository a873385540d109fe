"""modern-bert: norms before the blocks; two of three layers see a window, on both sides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.checkpoints.keys import ENCODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.errors import ModelError
from aggml.models.reading import encoder_of, layers_of, rope_of, sliding_layers

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.encoder.description import Net
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    window = hp.integer("attention.sliding_window", 0)
    silu = hp.text("hidden_activation", "gelu", ("gelu", "silu")) == "silu"
    net: Net = "joined silu" if silu else "joined gelu"
    everywhere = rope_of(hp, "neox")
    nearby = replace(
        everywhere, base=hp.number("rope.freq_base_swa", 10000.0, above=0.0), scale=1.0
    )
    n, layers = layers_of(hp), []
    period = hp.get("attention.sliding_window_pattern", 3)
    if isinstance(period, (list, np.ndarray)):
        near = sliding_layers(hp, n, 3)
    else:  # unlike in decoders, the first layer of each period sees all
        period = hp.integer("attention.sliding_window_pattern", 3, least=1)
        near = tuple(i % period != 0 for i in range(n))
    for i in range(n):
        whole = not near[i] or not window
        layers.append(
            EncoderLayer(
                everywhere if whole else nearby,
                None if whole else window,
                net,
                norms_first=True,
                bare=i == 0,
            )
        )
    return encoder_of(hp, layers)


def _pattern(config: Config) -> int | list[bool] | None:
    """Which layers see a window; None: the usual pattern, all but every third."""
    kinds = config.get("layer_types")
    if kinds is None:
        period = config.get("global_attn_every_n_layers", default=3)
        return None if period == 3 else int(period)
    layers = config.need("num_hidden_layers")
    if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise ModelError(
            f"config.json has layer_types = {kinds!r:.60} for {layers} layers; expected was "
            "sliding_attention or full_attention for each"
        )
    near = [kind == "sliding_attention" for kind in kinds]
    return None if near == [i % 3 != 0 for i in range(len(near))] else near


_LAYERS: Final = {
    "token_embd": "embeddings.tok_embeddings",
    "token_embd_norm": "embeddings.norm",
    "output_norm": "final_norm",
    "blk.{i}.attn_norm": "layers.{i}.attn_norm",
    "blk.{i}.attn_qkv": "layers.{i}.attn.Wqkv",
    "blk.{i}.attn_output": "layers.{i}.attn.Wo",
    "blk.{i}.ffn_norm": "layers.{i}.mlp_norm",
    "blk.{i}.ffn_up": "layers.{i}.mlp.Wi",
    "blk.{i}.ffn_down": "layers.{i}.mlp.Wo",
}
_KEYS: Final = ENCODER_KEYS | {
    "attention.sliding_window": "local_attention",
    "attention.sliding_window_pattern": _pattern,
    "hidden_activation": "hidden_activation",
}
_NETS: Final = {"hidden_activation": ("gelu", "silu")}


CHECKPOINTS: Final = (
    Checkpoint(
        ("modernbert",),
        _LAYERS | {"mlm.dense": "head.dense", "mlm.norm": "head.norm", "mlm.output": "decoder"},
        _KEYS, classes=("ModernBertForMaskedLM",),
        expects=_NETS | {"classifier_activation": ("gelu",)},
    ),
    Checkpoint(
        ("modernbert",),
        _LAYERS | {"cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier"},
        _KEYS, ignored=(r"^decoder\.",), expects=_NETS,
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("modern-bert",), describe, CHECKPOINTS)
