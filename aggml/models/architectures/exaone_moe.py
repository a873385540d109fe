"""exaone-moe: K-EXAONE; exaone4 with norms before the blocks, experts and a shared net.

Three of four layers see a window; every fourth sees all and has no rotary positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.architectures import glm4moe
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import (
    DECODER,
    EXPERT_KEYS,
    HEAD_NORMS,
    scaled_frequencies,
    window_pattern,
)
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    nets_of,
    rope_of,
    routed_experts_of,
    sliding_layers,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "dense_layers", "describe"]

PERIOD: Final = 4


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, layers = rope_of(hp, "neox"), layers_of(hp)
    hp.get("rope.freq_base_swa")  # other programs do not use it, either
    window, near = (
        hp.integer("attention.sliding_window", least=1),
        sliding_layers(hp, layers, PERIOD),
    )
    nets = nets_of(hp, routed_experts_of(hp, shared=FeedForward(suffix="_shexp")))
    mixers = (
        attention_of(
            hp, rope if near[i] else None, i, norm="head", window=window if near[i] else None
        )
        for i in range(layers)
    )
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


def dense_layers(config: Config) -> int:
    """How many first layers have one net.

    Raises:
        ModelError: a layer behind one with experts has one net, too.
    """
    kinds = config.get("mlp_layer_types", default=())
    told = config.get("is_moe_layer", "moe_layer_freq", default=())
    experts = [x == "sparse" for x in kinds] or [x in (1, True) for x in told]
    dense = int(config.get("first_k_dense_replace", default=len(experts) - sum(experts)))
    if experts and experts != [i >= dense for i in range(len(experts))]:
        raise ModelError(
            f"config.json has experts in the layers {[i for i, x in enumerate(experts) if x]}; "
            f"expected was all layers from {dense} on"
        )
    return dense


CHECKPOINT: Final = Checkpoint(
    ("exaone_moe",),
    {
        **DECODER, **HEAD_NORMS,
        **{
            name: rule for name, rule in glm4moe.CHECKPOINT.tensors.items()
            if "exp" in name or "gate_inp" in name
        },
        "blk.{i}.exp_probs_b.bias": "layers.{i}.mlp.e_score_correction_bias",
        "rope_freqs.weight": scaled_frequencies,
    },
    {
        **glm4moe.CHECKPOINT.keys,
        **EXPERT_KEYS,
        "expert_shared_count": "num_shared_experts",
        "leading_dense_block_count": dense_layers,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern(PERIOD),
    },
    ignored=(r"^mtp\.",),
    expects={"hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("exaone-moe",), describe, (CHECKPOINT,))
