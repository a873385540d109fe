"""smallthinker: experts with ReLU in each layer, chosen by the layer's input before attention.

Most layers see a window and have rotary positions; the first of four sees all positions, without
rotary ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import attention_of, description_of, layers_of, rope_of, routed_experts_of

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

WINDOW: Final = 4096  # positions; a file only says whether there is a window
PERIOD: Final = 4


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    experts = routed_experts_of(hp, activation="relu", sum_to_one=True)
    hp.get("expert_weights_norm")  # other programs do not read it, either
    rope, has_windows = rope_of(hp, "neox", factors=None), hp.integer("attention.sliding_window", 0)
    if not has_windows:
        layers = [attention_of(hp, rope, i) for i in range(layers_of(hp))]
        return description_of(hp, [Layer(x, experts, routed_early=True) for x in layers])
    near = rope_of(
        hp, "neox", factors=None, base=hp.number("rope.freq_base_swa", rope.base, above=0.0)
    )
    layers = [
        attention_of(hp, near if i % PERIOD else None, i, window=WINDOW if i % PERIOD else None)
        for i in range(layers_of(hp))
    ]
    return description_of(hp, [Layer(x, experts, routed_early=True) for x in layers])


def _window(config: Config) -> int:
    """The window, 0 if there is none.

    Raises:
        ModelError: the layers with a window, or with rotary positions, are not the usual ones.
    """
    layers = int(config.need("num_hidden_layers"))
    near = list(config.get("sliding_window_layout", default=[0] * layers))
    turned = list(config.get("rope_layout", default=[1] * layers))
    window = int(config.get("sliding_window_size", default=0)) if any(near) else 0
    config.read.add("sliding_window_size")
    usual = [int(i % PERIOD != 0) for i in range(layers)] if window else [0] * layers
    if near != usual or turned != (usual if window else [1] * layers):
        raise ModelError(
            f"config.json has sliding_window_layout = {near!r:.60} and rope_layout = "
            f"{turned!r:.60}; expected was a window, and rotary positions, in all layers but each "
            "fourth one, or no window and rotary positions in all"
        )
    if window not in (0, WINDOW):
        raise ModelError(
            f"config.json has sliding_window_size = {window}; only {WINDOW} is supported"
        )
    return window


_EXPERT: Final = "layers.{i}.block_sparse_moe.experts.{e}."
CHECKPOINT: Final = Checkpoint(
    ("smallthinker",),
    {
        **{x: y for x, y in DECODER.items() if x[8:] not in ("ffn_gate", "ffn_up", "ffn_down")},
        "blk.{i}.ffn_gate_inp": "layers.{i}.block_sparse_moe.primary_router",
        **{f"blk.{{i}}.ffn_{x}_exps": stack(_EXPERT + x) for x in ("gate", "up", "down")},
    },
    {
        **DECODER_KEYS,
        "feed_forward_length": "moe_ffn_hidden_size",
        "expert_count": "moe_num_primary_experts",
        "expert_used_count": "moe_num_active_primary_experts",
        "expert_feed_forward_length": "moe_ffn_hidden_size",
        "expert_gating_func": lambda config: 1
        if config.get("moe_primary_router_apply_softmax", default=False)
        else 2,
        "attention.sliding_window": _window,
    },
    expects={"moe_enable_early_router": (True,), "moe_enable_secondary_experts": (False,)},
    harmless=dict.fromkeys(
        ("moe_layer_layout", "moe_num_secondary_experts", "moe_secondary_expert_size",
         "model_name"),
        "the names of the tensors say the same, or it is for parts that the model does not have",
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("smallthinker",), describe, (CHECKPOINT,))
