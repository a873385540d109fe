"""minicpm: llama with scaled embeddings, residual sums and logits; MiniCPM 1, 2 and 4."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    NEIGHBOURS,
    longrope_factors,
    number,
)
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

BASE: Final = 256  # the width for which logits are not scaled


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, width = layers_of(hp), hp.integer("embedding_length", least=1)
    long = hp.get("rope.scaling.type") == "longrope"
    names = {
        "factors": "rope_factors_short.weight" if long else "rope_freqs.weight",
        "long_factors": "rope_factors_long.weight" if long else None,
    }
    rope = rope_of(hp, "normal", stretched=long, **names)
    residual = hp.number("residual_scale", 1.4 / math.sqrt(layers)) or 1.0
    mixers = (attention_of(hp, rope, i) for i in range(layers))
    return description_of(
        hp,
        [Layer(mixer, FeedForward(), residual_scale=residual) for mixer in mixers],
        embedding_scale=hp.number("embedding_scale", 12.0) or 1.0,
        # llama.cpp divides by what it takes for older files, which is the inverse of this
        logit_scale=1.0 / hp.number("logit_scale", width / BASE, above=0.0),
    )


def _residual(config: Config) -> float:
    layers = int(config.need("num_hidden_layers"))
    return float(config.get("scale_depth", default=1.4)) / math.sqrt(layers)


def _logits(config: Config) -> float:
    return float(config.need("hidden_size")) / float(config.get("dim_model_base", default=BASE))


CHECKPOINT: Final = Checkpoint(
    ("minicpm",),
    DECODER | NEIGHBOURS | {
        "rope_factors_short.weight": longrope_factors("short_factor"),
        "rope_factors_long.weight": longrope_factors("long_factor"),
    },
    DECODER_KEYS | {
        "embedding_scale": number("scale_emb", default=12.0),
        "residual_scale": _residual,
        "logit_scale": _logits,
    },
    harmless={"mup_denominator": "it is for training"},
    expects={"hidden_act": ("silu",), "sparse_config": (None,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("minicpm",), describe, (CHECKPOINT,))
