"""mistral3: llama whose attention gets sharper at late positions (Ministral 3)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward, Temperature
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, NEIGHBOURS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import attention_of, description_of, experts_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    multiplier = hp.number("rope.scaling.yarn_log_multiplier", 0.0, least=0.0)
    rope = rope_of(hp, "normal")
    if rope.extrapolation and multiplier and rope.scale < 1:
        stretched = 1.0 - 0.1 * multiplier * math.log(rope.scale)
        rope = replace(rope, attention_factor=rope.attention_factor / stretched)
    share = hp.number("attention.temperature_scale", 0.0)
    temperature = Temperature(share, rope.original_context) if share else None
    net = experts_of(hp, sum_to_one=True) if hp.integer("expert_count", 0) else FeedForward()
    mixers = (attention_of(hp, rope, i, temperature=temperature) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


def _share(config: Config) -> float | None:
    told = config.rope().get("llama_4_scaling_beta")
    return None if told is None else float(told)


def _multiplier(config: Config) -> float | None:
    """YaRN's factor is divided by the same with this multiplier."""
    rope = config.rope()
    told = rope.get("mscale_all_dim")
    if told is not None and rope.get("mscale") not in (1, None):
        raise ModelError(f"config.json has mscale = {rope['mscale']}; only 1 is supported")
    return None if told is None else float(told)


CHECKPOINT: Final = Checkpoint(
    ("ministral3",), DECODER | NEIGHBOURS,
    DECODER_KEYS | {
        "attention.temperature_scale": _share,
        "rope.scaling.yarn_log_multiplier": _multiplier,
    },
    prefixes=("language_model.model.", "model.language_model.", "language_model.", "model."),
    ignored=(r"vision_tower\.", r"multi_modal_projector\."),
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("mistral3",), describe, (CHECKPOINT,))
