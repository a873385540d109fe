"""jamba: scans of Mamba 1, some layers of attention without positions, experts in some layers.

Jamba, Jamba 2 and Jamba Reasoning. Time steps and the vectors of the scan have norms.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import ExpertsOrNet, FeedForward, Mamba
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, decay_rates, kernels
from aggml.models.checkpoints.recipes import Checkpoint, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, experts_of, layers_of

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.description import Block
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers = layers_of(hp)
    scan = Mamba(
        inner=hp.integer("ssm.inner_size", least=1),
        state=hp.integer("ssm.state_size", least=1),
        rank=hp.integer("ssm.time_step_rank", least=1),
        kernel=hp.integer("ssm.conv_kernel", least=2),
        norms=True,
    )
    net: Block = FeedForward()
    hp.get("expert_used_count")  # files of one net in every layer have 1 of 1
    if hp.integer("expert_count", 0) > 1:
        net = ExpertsOrNet(experts_of(hp), FeedForward())
    heads = hp.each_layer("attention.head_count_kv", layers)
    mixers = (attention_of(hp, None, i) if n else scan for i, n in enumerate(heads))
    return description_of(hp, [Layer(mixer, net) for mixer in mixers])


def _kv_heads(config: Config) -> list[int]:
    """Heads of keys of each layer; scans have 0."""
    heads = int(config.need("num_key_value_heads", "num_attention_heads"))
    period = int(config.get("attn_layer_period", default=8))
    offset = int(config.get("attn_layer_offset", default=4))
    layers = int(config.need("num_hidden_layers"))
    return [heads if i % period == offset else 0 for i in range(layers)]


def _rank(config: Config) -> int:
    """Elements from which the time steps are computed."""
    told = config.get("mamba_dt_rank", default="auto")
    return math.ceil(config.need("hidden_size") / 16) if told == "auto" else int(told)


_AT: Final = "layers.{i}."
CHECKPOINT: Final = Checkpoint(
    ("jamba",),
    {
        **{name: rule for name, rule in DECODER.items() if "ffn" not in name},
        "output_norm": "final_layernorm",
        "blk.{i}.ssm_in": f"{_AT}mamba.in_proj",
        "blk.{i}.ssm_conv1d": kernels(f"{_AT}mamba.conv1d"),
        "blk.{i}.ssm_x": f"{_AT}mamba.x_proj",
        "blk.{i}.ssm_dt": f"{_AT}mamba.dt_proj",
        "blk.{i}.ssm_dt_norm": f"{_AT}mamba.dt_layernorm",
        "blk.{i}.ssm_b_norm": f"{_AT}mamba.b_layernorm",
        "blk.{i}.ssm_c_norm": f"{_AT}mamba.c_layernorm",
        "blk.{i}.ssm_a": decay_rates(f"{_AT}mamba.A_log"),
        "blk.{i}.ssm_d": f"{_AT}mamba.D",
        "blk.{i}.ssm_out": f"{_AT}mamba.out_proj",
        "blk.{i}.ffn_norm": f"{_AT}pre_ff_layernorm",
        "blk.{i}.ffn_gate_inp": f"{_AT}feed_forward.router",
        **{f"blk.{{i}}.ffn_{x}": f"{_AT}feed_forward.{x}_proj" for x in ("gate", "up", "down")},
        **{
            f"blk.{{i}}.ffn_{x}_exps": stack(f"{_AT}feed_forward.experts.{{e}}.{x}_proj")
            for x in ("gate", "up", "down")
        },
    },
    DECODER_KEYS | {
        "attention.head_count_kv": _kv_heads,
        "rope.dimension_count": lambda _: None,
        "expert_count": ("num_experts", "num_local_experts"),
        "expert_used_count": "num_experts_per_tok",
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.inner_size": lambda config: int(
            config.get("mamba_expand", default=2) * config.need("hidden_size")
        ),
        "ssm.state_size": "mamba_d_state",
        "ssm.time_step_rank": _rank,
    },
    harmless=dict.fromkeys(
        (
            "expert_layer_period", "expert_layer_offset", "use_mamba_kernels",
            "use_associative_scan", "num_logits_to_keep",
        ),
        "the names of the tensors say the same, or how it is computed",
    ),
    expects={"hidden_act": ("silu",), "mamba_proj_bias": (False,), "sliding_window": (None,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("jamba",), describe, (CHECKPOINT,))
