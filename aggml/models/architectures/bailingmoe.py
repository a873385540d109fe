"""bailingmoe: Ling-lite and Ling-plus; llama with experts and a shared net in every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.architectures import bailingmoe2
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.recipes import Checkpoint, Recipe
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    layers_of,
    nets_of,
    rope_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Shape
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    shared = FeedForward(suffix="_shexp") if hp.integer("expert_shared_count", 0) else None
    experts = experts_of(hp, sum_to_one=hp.flag("expert_weights_norm", False), shared=shared)
    rope, nets = rope_of(hp, "normal"), nets_of(hp, experts)
    mixers = (attention_of(hp, rope, i, joined=None) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


def _heads(config: Config) -> tuple[int, int, int]:
    """Heads of queries, of keys and of values."""
    heads = int(config.need("num_attention_heads"))
    kv_heads = int(config.get("num_key_value_heads", default=heads))
    return heads, kv_heads, kv_heads


def _part(which: int) -> Recipe:
    """The rows of queries (0), keys (1) or values (2) of the matrix of all three.

    Rotary positions are on halves of heads in the folder, and on pairs of neighbours here.
    """

    def make(arrays: Sequence[Array], config: Config) -> Array:
        heads, head = _heads(config), config.head
        first, n = sum(heads[:which]) * head, heads[which]
        rows = arrays[0][first : first + n * head]
        if which == 2:
            return rows
        halves = rows.reshape(n, 2, head // 2, *rows.shape[1:])
        return halves.swapaxes(1, 2).reshape(rows.shape)

    def shape(shapes: Sequence[Shape], config: Config) -> Shape:
        return _heads(config)[which] * config.head, *shapes[0][1:]

    return Recipe(("layers.{i}.attention.query_key_value.weight",), make, shape)


_NEWER: Final = bailingmoe2.CHECKPOINT
_LEFT_OUT: Final = (
    "expert_gating_func", "expert_weights_scale", "expert_group_count", "expert_group_used_count",
)  # fmt: skip
CHECKPOINT: Final = Checkpoint(
    ("bailing_moe",),
    {
        **{x: y for x, y in _NEWER.tensors.items() if x[8:11] != "exp" and "_norm" not in x[14:]},
        "blk.{i}.attn_qkv": None,
        "blk.{i}.attn_norm": "layers.{i}.input_layernorm",
        "blk.{i}.attn_q.weight": _part(0),
        "blk.{i}.attn_k.weight": _part(1),
        "blk.{i}.attn_v.weight": _part(2),
    },
    {key: x for key, x in _NEWER.keys.items() if key not in _LEFT_OUT},
    classes=("BailingMoeFor",),
    harmless=_NEWER.harmless,
    expects={
        "hidden_act": ("silu",), "use_bias": (False,), "use_qkv_bias": (False,),
        "norm_head": (False,), "norm_softmax": (False,), "first_k_dense_replace": (0,),
        "use_sliding_window": (False,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("bailingmoe",), describe, (CHECKPOINT,))
