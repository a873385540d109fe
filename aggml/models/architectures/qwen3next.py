"""qwen3next: three of four layers use the gated delta rule, the fourth is gated attention.

Every layer has experts, and a shared net that is multiplied by a sigmoid gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.blocks import DeltaNet, Experts, FeedForward
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    decay_rates,
    kernels,
)
from aggml.models.checkpoints.recipes import Checkpoint, Recipe, add_one, flatten
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import (
    add_prediction_head,
    attention_of,
    description_of,
    divides,
    experts_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Shape
    from aggml.models.description import Block, Mixer
    from aggml.models.hyperparameters import Hyperparameters

__all__ = [
    "ARCHITECTURE", "CHECKPOINT", "describe", "gated_experts", "of_delta_nets", "period_of_folder",
    "values_of_folder",
]  # fmt: skip


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    return of_delta_nets(hp, gated_experts(hp))


def gated_experts(hp: Hyperparameters) -> Experts:
    """Experts beside a shared net that is multiplied by a gate."""
    return experts_of(hp, sum_to_one=True, shared=FeedForward(suffix="_shexp"), shared_gate=True)


def of_delta_nets(hp: Hyperparameters, net: Block, *, tiled: bool = False) -> Description:
    """A model whose layers are mostly `DeltaNet`, the others gated attention.

    Args:
        hp: of the file.
        net: of every layer.
        tiled: as `DeltaNet` has it.

    Raises:
        ModelError: the file does not say of each layer what it is.
    """
    linear = DeltaNet(
        key_heads=hp.integer("ssm.group_count", least=1),
        value_heads=hp.integer("ssm.time_step_rank", least=1),
        head=hp.integer("ssm.state_size", least=1),
        kernel=hp.integer("ssm.conv_kernel", least=2),
        tiled=tiled,
    )
    divides(hp, "ssm.group_count", linear.key_heads, "ssm.time_step_rank", linear.value_heads)
    rope, layers = rope_of(hp, "neox"), layers_of(hp)
    period = hp.integer("full_attention_interval", 4, least=1)
    told = hp.get("attention.recurrent_layers")
    if told is not None and (len(told) < layers or not all(x in (0, 1) for x in told)):
        raise ModelError(
            f"{hp.architecture}.attention.recurrent_layers has {len(told)} values for {layers} "
            "layers; expected was true or false for each"
        )
    recurrent = [bool((i + 1) % period if told is None else told[i]) for i in range(layers)]
    attention = [attention_of(hp, rope, i, norm="head", gated=True) for i in range(layers)]
    mixers: list[Mixer] = [linear if x else y for x, y in zip(recurrent, attention, strict=True)]
    model = description_of(
        hp, [Layer(mixer, net, before_feed_forward="post_attention_norm") for mixer in mixers]
    )
    last = max((i for i, x in enumerate(recurrent) if not x), default=0)
    head = Layer(attention[last], net, before_feed_forward="post_attention_norm")
    return add_prediction_head(hp, model, head)


def _sizes(config: Config) -> tuple[int, int, int]:
    """Heads of keys; for each of them the rows of queries or keys, and the rows of values."""
    heads, head = (int(config.need(f"linear_{x}")) for x in ("num_key_heads", "key_head_dim"))
    values = int(config.need("linear_num_value_heads")) // heads
    return heads, head, values * head


def _split_projection(gates: bool) -> Recipe:
    """All queries, keys and values, or all gates; the folder groups rows by heads of keys."""

    def make(arrays: Sequence[Array], config: Config) -> Array:
        heads, head, wide = _sizes(config)
        each = arrays[0].reshape(heads, -1, arrays[0].shape[-1])
        ends = np.cumsum([head, head, wide])
        parts = [x.reshape(-1, x.shape[-1]) for x in np.split(each, ends, axis=1)]
        return parts[3] if gates else np.concatenate(parts[:3])

    def shape(shapes: Sequence[Shape], config: Config) -> Shape:
        heads, head, wide = _sizes(config)
        return heads * (wide if gates else 2 * head + wide), shapes[0][1]

    return Recipe(("layers.{i}.linear_attn.in_proj_qkvz",), make, shape)


def period_of_folder(config: Config) -> int:
    """The period n: every n-th layer has attention.

    Raises:
        ModelError: the layers with attention are not the last ones of each period.
    """
    kinds = config.get("layer_types")
    period = int(config.get("full_attention_interval", default=4))
    if kinds is not None and "full_attention" in kinds:
        period = kinds.index("full_attention") + 1
    usual = [
        "linear_attention" if (i + 1) % period else "full_attention"
        for i in range(int(config.need("num_hidden_layers")))
    ]
    if kinds is not None and kinds != usual:
        raise ModelError(
            f"config.json has layer_types other than full_attention in every {period}th layer and "
            "linear_attention in the others"
        )
    return period


def values_of_folder(config: Config) -> int:
    """Elements of all heads of values together.

    Raises:
        ModelError: heads of keys and heads of values have different lengths.
    """
    head = int(config.need("linear_value_head_dim"))
    if head != config.need("linear_key_head_dim"):
        raise ModelError("linear_key_head_dim and linear_value_head_dim of config.json differ")
    return head * int(config.need("linear_num_value_heads"))


CHECKPOINT: Final = Checkpoint(
    ("qwen3_next",),
    {
        **DECODER,
        **EXPERTS,
        **dict.fromkeys([f"blk.{{i}}.ffn_{x}" for x in ("norm", "gate", "up", "down")]),
        "output_norm": add_one("norm"),
        "blk.{i}.attn_norm": add_one("layers.{i}.input_layernorm"),
        "blk.{i}.post_attention_norm": add_one("layers.{i}.post_attention_layernorm"),
        "blk.{i}.attn_q_norm": add_one("layers.{i}.self_attn.q_norm"),
        "blk.{i}.attn_k_norm": add_one("layers.{i}.self_attn.k_norm"),
        "blk.{i}.attn_qkv": _split_projection(gates=False),
        "blk.{i}.attn_gate": _split_projection(gates=True),
        "blk.{i}.ssm_ba": "layers.{i}.linear_attn.in_proj_ba",
        "blk.{i}.ssm_conv1d": kernels("layers.{i}.linear_attn.conv1d"),
        "blk.{i}.ssm_dt.bias": "layers.{i}.linear_attn.dt_bias",
        "blk.{i}.ssm_a": decay_rates("layers.{i}.linear_attn.A_log"),
        "blk.{i}.ssm_norm": "layers.{i}.linear_attn.norm",
        "blk.{i}.ssm_out": "layers.{i}.linear_attn.out_proj",
        "blk.{i}.ffn_gate_shexp": "layers.{i}.mlp.shared_expert.gate_proj",
        "blk.{i}.ffn_up_shexp": "layers.{i}.mlp.shared_expert.up_proj",
        "blk.{i}.ffn_down_shexp": "layers.{i}.mlp.shared_expert.down_proj",
        "blk.{i}.ffn_gate_inp_shexp": flatten("layers.{i}.mlp.shared_expert_gate"),
    },
    {
        **DECODER_KEYS,
        **EXPERT_KEYS,
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "full_attention_interval": period_of_folder,
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.inner_size": values_of_folder,
        "ssm.state_size": "linear_key_head_dim",
        "ssm.time_step_rank": "linear_num_value_heads",
        "ssm.group_count": "linear_num_key_heads",
    },
    ignored=(r"^mtp\.",),  # layers that predict further tokens
    expects={
        "hidden_act": ("silu",), "norm_topk_prob": (True,), "decoder_sparse_step": (1,),
        "mlp_only_layers": ([],), "attention_bias": (False,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("qwen3next",), describe, (CHECKPOINT,))
