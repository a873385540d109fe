"""mellum: Mellum 2; qwen3moe in which layers with a window have rotary positions of their own.

Those are never stretched. Their base is the file's, as in transformers; llama.cpp takes the base of
the other layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    window_of_some_layers,
    window_pattern,
)
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    experts_of,
    layers_of,
    rope_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

PERIOD: Final = 4


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, net = layers_of(hp), experts_of(hp, sum_to_one=True)
    window = hp.integer("attention.sliding_window", 0)
    everywhere = rope_of(hp, "neox", factors=None)
    nearby = replace(
        everywhere, base=hp.number("rope.freq_base_swa", everywhere.base, above=0.0), scale=1.0,
        extrapolation=0.0, attention_factor=1.0,
    )  # fmt: skip
    local = sliding_layers(hp, layers, PERIOD) if window else (False,) * layers
    mixers = (
        attention_of(
            hp, nearby if near else everywhere, i, norm="head", window=window if near else None
        )
        for i, near in enumerate(local)
    )
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


def _all_have_experts(config: Config) -> None:
    """Refuses layers with one net: llama.cpp's files of this architecture have experts everywhere.

    Raises:
        ModelError: a layer has one net.
    """
    kinds = config.get("mlp_layer_types", default=())
    if any(kind != "sparse" for kind in kinds):
        raise ModelError(
            f"config.json has mlp_layer_types = {kinds!r:.60}; only sparse ones are supported"
        )


CHECKPOINT: Final = Checkpoint(
    ("mellum",), DECODER | HEAD_NORMS | EXPERTS,
    DECODER_KEYS | EXPERT_KEYS | {
        "attention.sliding_window": window_of_some_layers,
        "attention.sliding_window_pattern": window_pattern(PERIOD),
        "mlp_layer_types": _all_have_experts,
    },
    ignored=(r"^mtp\.",),
    harmless=dict.fromkeys(
        ("num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types"),
        "layers that predict further tokens are left out",
    ) | {"max_window_layers": "layer_types says which layers have the window"},
    expects={
        "hidden_act": ("silu",), "norm_topk_prob": (True,), "use_sliding_window": (True,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("mellum",), describe, (CHECKPOINT,))
