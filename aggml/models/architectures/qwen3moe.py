"""qwen3moe: qwen3 with experts, whose weights sum to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_NORMS,
    UNUSED_WINDOW,
)
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    deepstack_of,
    description_of,
    experts_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox"), experts_of(hp, sum_to_one=True)
    layers = range(layers_of(hp))
    attention = (attention_of(hp, rope, i, norm="head") for i in layers)
    return description_of(
        hp, [Layer(mixer, net) for mixer in attention], deepstack=deepstack_of(hp)
    )


CHECKPOINT: Final = Checkpoint(
    ("qwen3_moe",), DECODER | HEAD_NORMS | EXPERTS, DECODER_KEYS | EXPERT_KEYS,
    harmless=UNUSED_WINDOW,
    expects={
        "hidden_act": ("silu",), "use_sliding_window": (False,), "norm_topk_prob": (True,),
        "decoder_sparse_step": (1,), "mlp_only_layers": ([],),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("qwen3moe", "qwen3vlmoe"), describe, (CHECKPOINT,))
