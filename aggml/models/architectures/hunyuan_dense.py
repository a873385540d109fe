"""hunyuan-dense: llama with norms of each head's queries and keys, after rotary positions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    head_length,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, alpha, head = (
        rope_of(hp, "neox"),
        hp.number("rope.scaling.alpha", 0.0, least=0.0),
        head_length(hp),
    )
    if alpha > 0:
        rope = replace(rope, base=rope.base * alpha ** (head / (head - 2)))
    mixers = (attention_of(hp, rope, i, norm="turned head") for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, FeedForward()) for mixer in mixers])


def _base(config: Config) -> float | None:
    """The base of frequencies, multiplied if the folder names an "alpha"; None: as it stands."""
    rope = config.rope()
    base, alpha = rope.get("rope_theta"), rope.get("alpha")
    if base is None or not alpha:
        return None
    found: float = float(base) * float(alpha) ** (config.head / (config.head - 2))
    return found


CHECKPOINT: Final = Checkpoint(
    ("hunyuan_v1_dense",),
    DECODER | {
        "blk.{i}.attn_q_norm": "layers.{i}.self_attn.query_layernorm",
        "blk.{i}.attn_k_norm": "layers.{i}.self_attn.key_layernorm",
    },
    DECODER_KEYS | {"rope.freq_base": _base},
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("hunyuan-dense",), describe, (CHECKPOINT,))
