"""olmoe: norms of whole queries and keys; experts whose weights do not sum to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, EXPERT_KEYS, EXPERTS, HEAD_NORMS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, experts_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), experts_of(hp)
    mixers = (attention_of(hp, rope, i, norm="width") for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


CHECKPOINT: Final = Checkpoint(
    ("olmoe",), DECODER | HEAD_NORMS | EXPERTS,
    {**DECODER_KEYS, **EXPERT_KEYS, "expert_feed_forward_length": lambda _: None},
    expects={"hidden_act": ("silu",), "norm_topk_prob": (False,), "attention_bias": (False,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("olmoe",), describe, (CHECKPOINT,))
