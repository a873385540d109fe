"""granitehybrid: granite in which layers without key heads are Mamba 2 instead of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from aggml.models.architectures import granite
from aggml.models.architectures.mamba2 import scan_tensors
from aggml.models.checkpoints.keys import steps_without_limit
from aggml.models.checkpoints.recipes import Checkpoint, Recipe, half, when
from aggml.models.description import Architecture, Description
from aggml.models.reading import mamba2_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    of_attention, scan = granite.describe(hp), mamba2_of(hp)
    heads = hp.each_layer("attention.head_count_kv", len(of_attention.layers))
    layers = (
        layer if n else replace(layer, mixer=scan)
        for layer, n in zip(of_attention.layers, heads, strict=True)
    )
    return replace(of_attention, layers=tuple(layers))


def _kv_heads(config: Config) -> list[int]:
    """Heads of keys of each layer; layers of Mamba 2 have 0."""
    kinds: list[str] = config.need("layer_types", "layers_block_type")
    heads = int(config.need("num_key_value_heads", "num_attention_heads"))
    return [heads if kind in ("attention", "full_attention") else 0 for kind in kinds]


def _dense(config: Config) -> bool:
    """Whether there are no experts, only the net that other models have beside them."""
    return not config.get("num_local_experts", default=0)


def _inner(config: Config) -> Any:  # noqa: ANN401 as the file has it
    """Elements between the matrices of the net; of an expert if there are experts."""
    return config.need("shared_intermediate_size" if _dense(config) else "intermediate_size")


def _of_experts(name: str) -> Callable[[Config], Any]:
    """A number that only folders with experts have."""
    return lambda config: None if _dense(config) else config.get(name)


def _not_dense(config: Config) -> bool:
    return not _dense(config)


_NET: Final[dict[str, str | Recipe]] = {
    "ffn_gate": half("layers.{i}.shared_mlp.input_linear", 0),
    "ffn_up": half("layers.{i}.shared_mlp.input_linear", 1),
    "ffn_down": "layers.{i}.shared_mlp.output_linear",
}
_MOE: Final = granite.CHECKPOINTS[1]
CHECKPOINT: Final = Checkpoint(
    ("granitemoehybrid",),
    {
        **_MOE.tensors,
        **scan_tensors("layers.{i}.mamba.", "mamba_n_groups"),
        **{
            f"blk.{{i}}.{name}{end}": when(condition, rule)
            for name, rule in _NET.items()
            for end, condition in {"": _dense, "_shexp": _not_dense}.items()
        },
    },
    {
        **_MOE.keys,
        "attention.head_count_kv": _kv_heads,
        "feed_forward_length": _inner,
        **{
            key: _of_experts(name)
            for key, name in {
                "expert_count": "num_local_experts",
                "expert_used_count": "num_experts_per_tok",
                "expert_feed_forward_length": "intermediate_size",
                "expert_shared_feed_forward_length": "shared_intermediate_size",
            }.items()
        },
        "rope.scaling.finetuned": lambda config: config.get("position_embedding_type") == "rope",
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.inner_size": lambda config: int(
            config.need("mamba_expand") * config.need("hidden_size")
        ),
        "ssm.state_size": "mamba_d_state",
        "ssm.time_step_rank": "mamba_n_heads",
        "ssm.group_count": "mamba_n_groups",
        "ssm.time_step_limit": steps_without_limit,
    },
    harmless={"num_experts_per_tok": "it is read if there are experts"},
    expects={"hidden_act": ("silu",), "mamba_proj_bias": (False,)},
)


ARCHITECTURE = Architecture(("granitehybrid",), describe, (CHECKPOINT,))
