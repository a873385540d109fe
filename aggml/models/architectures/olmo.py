"""olmo: the first OLMo; llama with LayerNorms without weights, and bounded queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS, DECODER, NEIGHBOURS, number
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.forms import PLAIN_NORM
from aggml.models.reading import attention_of, layer_norm_description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "EPS", "describe"]

EPS: Final = 1e-5  # of all norms of published models, whose config.json does not say it


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, clamp = (
        rope_of(hp, "normal", factors=None),
        hp.number("attention.clamp_kqv", 0.0, least=0.0),
    )
    return layer_norm_description_of(
        hp,
        [
            Layer(
                attention_of(hp, rope, i, clamp=clamp), FeedForward(),
                before_mixer=PLAIN_NORM, before_feed_forward=PLAIN_NORM,
            )
            for i in range(layers_of(hp))
        ],
        last_norm=PLAIN_NORM,
    )  # fmt: skip


CHECKPOINT: Final = Checkpoint(
    ("olmo",),
    {
        name: rule for name, rule in (DECODER | NEIGHBOURS).items() if "norm" not in name
    },
    {
        **CENTRED_KEYS,
        "attention.layer_norm_epsilon": lambda _: EPS,
        "attention.clamp_kqv": number("clip_qkv"),
    },
    expects={"hidden_act": ("silu",), "attention_bias": (False,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("olmo",), describe, (CHECKPOINT,))
