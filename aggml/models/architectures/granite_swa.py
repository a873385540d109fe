"""granite_swa: granite whose heads have sinks, and most of whose layers see a window.

Layers may have no rotary positions. The nets are dense, or experts and perhaps a shared net.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.architectures import granite
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import EXPERT_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    each_flag,
    experts_of,
    layers_of,
    rope_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.description import Block
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

PERIOD: Final = 4  # of layers, the first of which sees all positions, if a folder does not say it


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, window = layers_of(hp), hp.integer("attention.sliding_window", least=1)
    net: Block = FeedForward()
    if hp.integer("expert_count", 0):
        shared = FeedForward(joined=True, suffix="_shexp")
        beside = shared if hp.integer("expert_shared_feed_forward_length", 0) else None
        net = experts_of(hp, sum_to_one=True, shared=beside)
    rope = rope_of(hp, "normal")
    turned = each_flag(hp, "attention.rope_pattern", layers, default=True)
    scale = hp.number("attention.scale", 0.0) or None
    residual = hp.number("residual_scale", 1.0) or 1.0
    mixers = (
        attention_of(
            hp, rope if turned[i] else None, i, scale=scale, sinks=True,
            window=window if near else None,
        )
        for i, near in enumerate(sliding_layers(hp, layers, PERIOD))
    )  # fmt: skip
    return description_of(
        hp,
        [Layer(mixer, net, residual_scale=residual) for mixer in mixers],
        embedding_scale=hp.number("embedding_scale", 1.0) or 1.0,
        logit_scale=1.0 / hp.number("logit_scale", above=0.0),
    )


def _near(config: Config) -> list[bool]:
    """Which layers see a window only.

    Raises:
        ModelError: an unknown kind of layer, or not one for each layer.
    """
    layers = int(config.need("num_hidden_layers"))
    kinds = config.get("layer_types")
    if kinds is None:
        return [i % PERIOD > 0 for i in range(layers)]
    if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise ModelError(
            f"config.json has layer_types = {kinds!r:.60} for {layers} layers; expected was "
            "sliding_attention or full_attention for each"
        )
    return [kind == "sliding_attention" for kind in kinds]


def _turned(config: Config) -> list[bool] | None:
    """Which layers have rotary positions; None: all have them.

    Raises:
        ModelError: layers have different bases, for which GGUF has no key.
    """
    bases = config.get("layer_rope_theta")
    if bases is None:
        return None
    base = config.rope().get("rope_theta", 10000.0)
    if set(bases) - {0, base} or len(bases) != config.need("num_hidden_layers"):
        raise ModelError(
            f"config.json has layer_rope_theta = {bases!r:.60}; only 0 and rope_theta = {base} "
            "are supported, one for each layer"
        )
    return None if 0 not in bases else [x > 0 for x in bases]


_DENSE: Final = granite.CHECKPOINTS[0]
_AT: Final = "layers.{i}.block_sparse_moe."
_KEYS: Final = {
    **_DENSE.keys,
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": _near,
    "attention.rope_pattern": _turned,
}
_SINKS: Final = {"blk.{i}.attn_sinks.weight": "layers.{i}.self_attn.sinks"}
CHECKPOINTS: Final = (
    Checkpoint(
        ("granite_swa",), {**_DENSE.tensors, **_SINKS}, _KEYS, expects={"hidden_act": ("silu",)}
    ),
    Checkpoint(
        ("granitemoe_swa",),
        {
            **_DENSE.tensors, **_SINKS,
            "blk.{i}.ffn_gate_inp": (f"{_AT}router", f"{_AT}router.layer"),
            "blk.{i}.ffn_gate_up_exps.weight": (
                f"{_AT}experts.gate_up_proj", f"{_AT}input_linear.weight",
            ),
            "blk.{i}.ffn_down_exps.weight": (
                f"{_AT}experts.down_proj", f"{_AT}output_linear.weight",
            ),
            "blk.{i}.ffn_up_shexp": "layers.{i}.shared_mlp.input_linear",
            "blk.{i}.ffn_down_shexp": "layers.{i}.shared_mlp.output_linear",
        },
        _KEYS | EXPERT_KEYS | {
            "expert_feed_forward_length": "intermediate_size",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        expects={"hidden_act": ("silu",)},
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("granite_swa",), describe, CHECKPOINTS)
