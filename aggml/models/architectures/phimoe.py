"""phimoe: LayerNorms with biases, LongRoPE factors, two experts chosen by SparseMixer.

What the published model computes, and transformers with it. llama.cpp has RMS norms and the softmax
of all experts instead, so its results differ; its files of this architecture are read here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    EXPERT_KEYS,
    longrope_factors,
    window_of_folder,
)
from aggml.models.checkpoints.recipes import Checkpoint, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    LARGEST_EPS,
    attention_of,
    description_of,
    experts_of,
    layers_of,
    rope_of,
    window_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: each token uses another number of experts than two.
    """
    net = experts_of(hp, weights="sparse mixer")
    if net.used != 2:
        raise ModelError(f"phimoe.expert_used_count is {net.used}; SparseMixer chooses 2 experts")
    rope = rope_of(
        hp,
        "neox",
        factors="rope_factors_short.weight",
        long_factors="rope_factors_long.weight",
        stretched=hp.get("rope.scaling.type") == "longrope",
    )
    window = window_of(hp)
    mixers = (attention_of(hp, rope, i, window=window) for i in range(layers_of(hp)))
    eps = hp.number("attention.layer_norm_rms_epsilon", least=0.0, most=LARGEST_EPS)
    return description_of(hp, [Layer(mixer, net) for mixer in mixers], eps=eps, centred=True)


def _window(config: Config) -> int:
    """The window; 0: there is none. llama.cpp needs the number in any case."""
    return window_of_folder()(config) or 0


_MOE: Final = "layers.{i}.block_sparse_moe"
CHECKPOINT: Final = Checkpoint(
    ("phimoe",),
    DECODER | {
        "blk.{i}.ffn_gate_inp": f"{_MOE}.gate",
        "blk.{i}.ffn_gate_exps": stack(f"{_MOE}.experts.{{e}}.w1"),
        "blk.{i}.ffn_down_exps": stack(f"{_MOE}.experts.{{e}}.w2"),
        "blk.{i}.ffn_up_exps": stack(f"{_MOE}.experts.{{e}}.w3"),
        "rope_factors_short.weight": longrope_factors("short_factor"),
        "rope_factors_long.weight": longrope_factors("long_factor"),
    },
    DECODER_KEYS | EXPERT_KEYS | {
        "expert_feed_forward_length": "intermediate_size",
        "attention.sliding_window": _window,
    },
    harmless={
        "lm_head_bias": "the folder has the bias or has it not",
        "input_jitter_noise": "it is for training",
    },
    # half of the share by which a logit may be below the best one and still counts
    expects={"hidden_act": ("silu",), "router_jitter_noise": (0.01,), "num_experts_per_tok": (2,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("phimoe",), describe, (CHECKPOINT,))
