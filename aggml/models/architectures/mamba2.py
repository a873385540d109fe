"""mamba2: no attention and no feed-forward nets, a selective scan in every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import (
    UNBOUNDED,
    decay_rates,
    kernels,
    number,
    steps_without_limit,
)
from aggml.models.checkpoints.recipes import Checkpoint, reshape
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    description_of,
    layers_of,
    mamba2_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Recipe, Rule, Shape
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe", "scan_tensors"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    return description_of(hp, [Layer(mamba2_of(hp), None)] * layers_of(hp))


def _by_group(source: str, groups: str) -> Recipe:
    """A weight with a number for each element, as a matrix with a row for each group."""

    def shape(shapes: Sequence[Shape], config: Config) -> Shape:
        n = int(config.need(groups))
        return n, shapes[0][0] // n

    return reshape(source, shape)


def scan_tensors(at: str, groups: str) -> dict[str, Rule]:
    """The tensors of the scan of each layer.

    Args:
        at: the prefix of their names in the folder, such as "layers.{i}.mixer.".
        groups: the key of config.json that gives the number of groups.
    """
    return {
        "blk.{i}.ssm_in": f"{at}in_proj",
        "blk.{i}.ssm_conv1d": kernels(f"{at}conv1d"),
        "blk.{i}.ssm_dt.bias": f"{at}dt_bias",
        "blk.{i}.ssm_a": decay_rates(f"{at}A_log", columns=True),
        "blk.{i}.ssm_d": reshape(f"{at}D", lambda shapes, _: (shapes[0][0], 1)),
        "blk.{i}.ssm_norm": _by_group(f"{at}norm", groups),
        "blk.{i}.ssm_out": f"{at}out_proj",
    }


CHECKPOINT: Final = Checkpoint(
    ("mamba2",),
    {
        "token_embd": "embeddings",
        "output_norm": "norm_f",
        "output": "lm_head",
        "blk.{i}.attn_norm": "layers.{i}.norm",
        **scan_tensors("layers.{i}.mixer.", "n_groups"),
    },
    {
        "context_length": lambda config: config.get("max_position_embeddings", default=UNBOUNDED),
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": lambda _: 0,
        "attention.head_count": lambda _: 0,
        "attention.head_count_kv": lambda _: 0,
        "attention.layer_norm_rms_epsilon": number("layer_norm_epsilon", default=1e-5),
        "ssm.conv_kernel": "conv_kernel",
        "ssm.inner_size": lambda config: int(config.need("expand") * config.need("hidden_size")),
        "ssm.state_size": "state_size",
        "ssm.time_step_rank": "num_heads",
        "ssm.group_count": "n_groups",
        "ssm.time_step_limit": steps_without_limit,
        "vocab_size": "vocab_size",
    },
    prefixes=("backbone.",),
    harmless={"num_attention_heads": "there is no attention"},
    expects={"hidden_act": ("silu",), "use_bias": (False,)},
)


ARCHITECTURE = Architecture(("mamba2",), describe, (CHECKPOINT,))
