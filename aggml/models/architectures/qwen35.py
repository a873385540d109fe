"""qwen35 and qwen35moe: Qwen3.5, which is qwen3next with other matrices in its delta nets.

A net, or experts. Files may have a last layer that predicts further tokens; it is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aggml.models.architectures import qwen3next
from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, decay_rates
from aggml.models.checkpoints.recipes import Checkpoint, Recipe, add_one, half, stack
from aggml.models.description import Architecture, Description

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Key, Rule, Shape
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    of_experts = hp.architecture == "qwen35moe"
    net = qwen3next.gated_experts(hp) if of_experts else FeedForward()
    return qwen3next.of_delta_nets(hp, net, tiled=True)


def _number(name: str) -> Callable[[Config], int]:
    return lambda config: int(config.need(f"linear_{name}"))


_KEY_HEADS, _VALUE_HEADS = _number("num_key_heads"), _number("num_value_heads")
_HEAD: Final = _number("value_head_dim")


def _tile_heads(
    source: str, head: Callable[[Config], int], *, first: bool = False, axis: int = 0
) -> Recipe:
    """Orders heads of values: the first one of each key head, then the second ones, ...

    The folder has all heads of the first key head first.

    Args:
        source: name in the folder.
        head: rows of each head.
        first: whether rows of queries and keys come before.
        axis: of the rows.
    """

    def make(arrays: Sequence[Array], config: Config) -> Array:
        x = np.moveaxis(arrays[0], axis, 0)
        n, keys = _VALUE_HEADS(config) * head(config), _KEY_HEADS(config)
        values = x[len(x) - n :].reshape(keys, -1, head(config), *x.shape[1:]).swapaxes(0, 1)
        values = values.reshape(n, *x.shape[1:])
        whole = np.concatenate([x[: len(x) - n], values]) if first else values
        whole = np.moveaxis(whole, 0, axis)
        return whole[:, 0] if whole.ndim == 3 else whole  # the kernels of a convolution

    def shape(shapes: Sequence[Shape], _: Config) -> Shape:
        found = shapes[0]
        return (found[0], found[2]) if len(found) == 3 else found

    return Recipe((source,), make, shape)


def _one(_: Config) -> int:
    return 1


def _decay(source: str) -> Recipe:
    """The rate of decay of each head, in the order of `_tile_heads`."""
    order, rates = _tile_heads(source, _one), decay_rates(source)
    return Recipe(
        (source,),
        lambda arrays, config: rates.make([order.make(arrays, config)], config),  # type: ignore[list-item]
        rates.shape,
    )


def _sections(config: Config) -> list[int]:
    """How many rotated pairs belong to time, height and width of pictures."""
    told = config.rope().get("mrope_section", [11, 11, 10])
    return [*told, *[0] * (4 - len(told))]


_DELTA: Final = "layers.{i}.linear_attn."
_TENSORS: Final[dict[str, Rule]] = {
    "token_embd": "embed_tokens",
    "output": "lm_head",
    "output_norm": add_one("norm"),
    "blk.{i}.attn_norm": add_one("layers.{i}.input_layernorm"),
    "blk.{i}.post_attention_norm": add_one("layers.{i}.post_attention_layernorm"),
    **{name: rule for name, rule in DECODER.items() if name.startswith("blk.{i}.attn_")
       and not name.endswith("norm")},
    "blk.{i}.attn_q_norm": add_one("layers.{i}.self_attn.q_norm"),
    "blk.{i}.attn_k_norm": add_one("layers.{i}.self_attn.k_norm"),
    "blk.{i}.attn_qkv": _tile_heads(f"{_DELTA}in_proj_qkv", _HEAD, first=True),
    "blk.{i}.attn_gate": _tile_heads(f"{_DELTA}in_proj_z", _HEAD),
    "blk.{i}.ssm_beta": _tile_heads(f"{_DELTA}in_proj_b", _one),
    "blk.{i}.ssm_alpha": _tile_heads(f"{_DELTA}in_proj_a", _one),
    "blk.{i}.ssm_conv1d": _tile_heads(f"{_DELTA}conv1d", _HEAD, first=True),
    "blk.{i}.ssm_dt.bias": _tile_heads(f"{_DELTA}dt_bias", _one),
    "blk.{i}.ssm_a": _decay(f"{_DELTA}A_log"),
    "blk.{i}.ssm_norm": f"{_DELTA}norm",
    "blk.{i}.ssm_out": _tile_heads(f"{_DELTA}out_proj", _HEAD, axis=1),
}  # fmt: skip
_EXPERTS: Final = "layers.{i}.mlp.experts."
#: Each expert has matrices of its own, or one tensor has those of all, with gate and up together.
_OF_EXPERTS: Final[dict[str, Rule]] = {
    "blk.{i}.ffn_gate_inp": "layers.{i}.mlp.gate",
    "blk.{i}.ffn_gate_exps.weight": (
        stack(f"{_EXPERTS}{{e}}.gate_proj.weight"), half(f"{_EXPERTS}gate_up_proj", 0, axis=1),
    ),
    "blk.{i}.ffn_up_exps.weight": (
        stack(f"{_EXPERTS}{{e}}.up_proj.weight"), half(f"{_EXPERTS}gate_up_proj", 1, axis=1),
    ),
    "blk.{i}.ffn_down_exps.weight": (
        stack(f"{_EXPERTS}{{e}}.down_proj.weight"), f"{_EXPERTS}down_proj",
    ),
    **{name: rule for name, rule in qwen3next.CHECKPOINT.tensors.items() if "shexp" in name},
}  # fmt: skip
_KEYS: Final[dict[str, Key]] = {
    **DECODER_KEYS,
    **{
        name: key for name, key in qwen3next.CHECKPOINT.keys.items()
        if name.startswith("ssm.") or name == "full_attention_interval"
    },
    "rope.dimension_sections": _sections,
}  # fmt: skip
_COMMON: Final[dict[str, Any]] = {
    "prefixes": ("model.language_model.", "language_model.model.", "model."),
    "ignored": (r"^mtp\.", r"^(model\.)?visual\."),
}
CHECKPOINTS: Final = (
    Checkpoint(
        ("qwen3_5_text", "qwen3_5"),
        {**_TENSORS, **{x: r for x, r in DECODER.items() if x.startswith("blk.{i}.ffn_")
                        and x != "blk.{i}.ffn_norm"}},
        _KEYS, "qwen35",
        expects={"hidden_act": ("silu",), "attention_bias": (False,)}, **_COMMON,
    ),
    Checkpoint(
        ("qwen3_5_moe_text", "qwen3_5_moe"), _TENSORS | _OF_EXPERTS,
        _KEYS | {
            "feed_forward_length": lambda _: None,
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        "qwen35moe",
        expects={"hidden_act": ("silu",), "attention_bias": (False,)}, **_COMMON,
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("qwen35", "qwen35moe"), describe, CHECKPOINTS)
