"""gemma4: gemma3 with longer heads where all positions are seen, and normed values.

The last layers may use the keys and values of earlier ones, each token may have an embedding for
each layer, and there may be experts beside the nets.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from aggml.models.blocks import BesideExperts, FeedForward, LayerEnd
from aggml.models.description import Architecture, Description
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    head_length,
    layers_of,
    normed_after,
    rope_of,
    windowed,
)

if TYPE_CHECKING:
    from aggml.models.blocks import Attention
    from aggml.models.description import Block
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    size = hp.integer("embedding_length_per_layer_input")
    net: Block = FeedForward("gelu")
    before: str | None = "ffn_norm"
    if hp.integer("expert_count", 0):
        experts = experts_of(hp, activation="gelu", sum_to_one=True, scale=1.0)
        net, before = BesideExperts(FeedForward("gelu"), experts), None  # it has norms of its own
    mixers = _mixers(hp)
    return description_of(
        hp,
        [
            normed_after(mixer, net, before_feed_forward=before, ending=LayerEnd(i, size))
            for i, mixer in enumerate(mixers)
        ],
        embedding_scale=math.sqrt(hp.integer("embedding_length", least=1)),
        logit_soft_cap=hp.number("final_logit_softcapping", 0.0, least=0.0),
        layer_embedding=size,
        entire=size > 0 or any(mixer.borrows is not None for mixer in mixers),
    )


def _mixers(hp: Hyperparameters) -> list[Attention]:
    """The attention of each layer.

    Raises:
        ModelError: the file does not say which layers have a window; too many layers shall use the
            keys and values of others.
    """
    layers, head = layers_of(hp), head_length(hp)
    if hp.get("attention.sliding_window_pattern") is None:
        raise ModelError(
            f"the file has no {hp.architecture}.attention.sliding_window_pattern, which this "
            "architecture needs: convert the model again"
        )
    local = windowed(hp, layers, 6)
    window = hp.integer("attention.sliding_window", least=1)
    near = hp.integer("attention.key_length_swa", head, least=1)
    rope = rope_of(hp, "neox")
    everywhere = replace(rope, stretched=True)
    nearby = replace(
        rope,
        dims=hp.integer("rope.dimension_count_swa", rope.dims, least=2, most=near),
        base=hp.number("rope.freq_base_swa", 10000.0, above=0.0),
        scale=1.0,
        factors=None,
    )
    own = layers - hp.integer("attention.shared_kv_layers", 0, most=max(layers - 2, 0))
    lenders = {True: own - 2, False: own - 1}  # of layers with a window, and of the others
    if own < layers and [*local[own - 2 : own]] != [True, False]:
        raise ModelError(
            f"{hp.architecture}.attention.shared_kv_layers is {layers - own}, but the layers "
            f"{own - 2} and {own - 1} do not have a window and none, as the last {layers - own} "
            "layers need"
        )
    return [
        attention_of(
            hp, nearby if close else everywhere, i, scale=1.0, norm="head", value_norm=True,
            key_length=near if close else head,
            value_length=hp.integer("attention.value_length_swa", near, least=1)
            if close else hp.integer("attention.value_length", head, least=1),
            window=window if close else None,
            joined=None,
            lends=own < layers and i in lenders.values(),
            borrows=None if i < own else lenders[close],
        )
        for i, close in enumerate(local)
    ]  # fmt: skip


ARCHITECTURE = Architecture(("gemma4",), describe)
