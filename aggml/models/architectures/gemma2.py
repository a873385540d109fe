"""gemma2: norms before and after each block, soft caps, a window in every other layer.

Embeddings are multiplied by the square root of the width; the output is always the embeddings.
"""

from __future__ import annotations

import math
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
from aggml.models.checkpoints.recipes import Checkpoint
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

LARGE: Final = 46  # layers of the 27B model, which scales products by (width / heads) ** -0.5


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, width = layers_of(hp), hp.integer("embedding_length", least=1)
    heads = hp.integer("attention.head_count", least=1)
    of = width // heads if layers == LARGE else head_length(hp)
    window = hp.integer("attention.sliding_window", 4096, least=1)
    rope = rope_of(hp, "neox")
    mixers = (
        attention_of(
            hp, rope, i, scale=1 / math.sqrt(of), window=window if local else None,
            soft_cap=hp.number("attn_logit_softcapping", 50.0, least=0.0),
        )
        for i, local in enumerate(sliding_layers(hp, layers, 2))
    )  # fmt: skip
    return description_of(
        hp,
        [post_norm_layer(mixer, FeedForward("gelu")) for mixer in mixers],
        embedding_scale=math.sqrt(width),
        logit_soft_cap=hp.number("final_logit_softcapping", 30.0, least=0.0),
    )  # fmt: skip


CHECKPOINT: Final = Checkpoint(
    ("gemma2",),
    DECODER | gemma_norms(),
    DECODER_KEYS | {
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern(2),
        "attn_logit_softcapping": number("attn_logit_softcapping"),
        "final_logit_softcapping": number("final_logit_softcapping"),
        "query_pre_attn_scalar": same_as_heads(LARGE),
    },
    expects={"hidden_activation": ("gelu_pytorch_tanh",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("gemma2",), describe, (CHECKPOINT,))
