"""gemma3: gemma2 with norms of queries and keys instead of soft caps.

Five of six layers see a window, and their rotary positions have a base of their own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    gemma_norms,
    number,
    same_as_heads,
    window_pattern,
)
from aggml.models.checkpoints.recipes import Checkpoint, add_one
from aggml.models.description import Architecture, Description
from aggml.models.reading import (
    attention_of,
    description_of,
    head_length,
    layers_of,
    post_norm_layer,
    rope_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "LARGE", "describe"]

LARGE: Final = 62  # layers of the 27B model, which scales products by (width / heads) ** -0.5


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, width = layers_of(hp), hp.integer("embedding_length", least=1)
    heads = hp.integer("attention.head_count", least=1)
    of = width // heads if layers == LARGE else head_length(hp)
    window = hp.integer("attention.sliding_window", 0)
    everywhere = rope_of(hp, "neox")
    nearby = replace(
        everywhere, base=hp.number("rope.freq_base_swa", 10000.0, above=0.0), scale=1.0
    )
    local = sliding_layers(hp, layers, 6) if window else (False,) * layers
    mixers = (
        attention_of(
            hp, nearby if near else everywhere, i, scale=1 / math.sqrt(of), norm="head",
            window=window if near else None,
        )
        for i, near in enumerate(local)
    )  # fmt: skip
    return description_of(
        hp,
        [post_norm_layer(mixer, FeedForward("gelu")) for mixer in mixers],
        embedding_scale=math.sqrt(width),
        logit_soft_cap=hp.number("final_logit_softcapping", 0.0, least=0.0),
    )  # fmt: skip


CHECKPOINT: Final = Checkpoint(
    ("gemma3_text", "gemma3"),
    DECODER | gemma_norms() | {
        "blk.{i}.attn_q_norm": add_one("layers.{i}.self_attn.q_norm"),
        "blk.{i}.attn_k_norm": add_one("layers.{i}.self_attn.k_norm"),
    },
    DECODER_KEYS | {
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern(6),
        "final_logit_softcapping": number("final_logit_softcapping"),
        "query_pre_attn_scalar": same_as_heads(LARGE),
    },
    prefixes=("language_model.model.", "model.language_model.", "language_model.", "model."),
    ignored=(r"vision_tower\.", r"multi_modal_projector\."),
    expects={"hidden_activation": ("gelu_pytorch_tanh",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("gemma3",), describe, (CHECKPOINT,))
