"""mamba: the selective scan of Mamba 1, also of Falcon Mamba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import Mamba
from aggml.models.checkpoints.keys import UNBOUNDED, decay_rates, kernels, number
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import description_of, layers_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    scan = Mamba(
        inner=hp.integer("ssm.inner_size", least=1),
        state=hp.integer("ssm.state_size", least=1),
        rank=hp.integer("ssm.time_step_rank", least=1),
        kernel=hp.integer("ssm.conv_kernel", least=2),
        normed=hp.flag("ssm.dt_b_c_rms", False),
    )
    return description_of(hp, [Layer(scan, None)] * layers_of(hp))


CHECKPOINT: Final = Checkpoint(
    ("mamba",),
    {
        "token_embd": "embeddings",
        "output_norm": "norm_f",
        "output": "lm_head",
        "blk.{i}.attn_norm": "layers.{i}.norm",
        "blk.{i}.ssm_in": "layers.{i}.mixer.in_proj",
        "blk.{i}.ssm_conv1d": kernels("layers.{i}.mixer.conv1d"),
        "blk.{i}.ssm_x": "layers.{i}.mixer.x_proj",
        "blk.{i}.ssm_dt": "layers.{i}.mixer.dt_proj",
        "blk.{i}.ssm_a": decay_rates("layers.{i}.mixer.A_log"),
        "blk.{i}.ssm_d": "layers.{i}.mixer.D",
        "blk.{i}.ssm_out": "layers.{i}.mixer.out_proj",
    },
    {
        "context_length": lambda config: config.get("max_position_embeddings", default=UNBOUNDED),
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": lambda _: 0,
        "attention.head_count": lambda _: 0,
        "attention.layer_norm_rms_epsilon": number("layer_norm_epsilon", default=1e-5),
        "ssm.conv_kernel": "conv_kernel",
        "ssm.inner_size": "intermediate_size",
        "ssm.state_size": "state_size",
        "ssm.time_step_rank": "time_step_rank",
        "vocab_size": "vocab_size",
    },
    prefixes=("backbone.",),
    harmless=dict.fromkeys(
        (
            "expand", "rescale_prenorm_residual", "time_step_floor", "time_step_init_scheme",
            "time_step_max", "time_step_min", "time_step_scale", "use_associative_scan",
            "num_attention_heads",
        ),
        "it matters to training, or to how it is computed, or the tensors say the same",
    ),
    expects={"hidden_act": ("silu",), "use_bias": (False,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("mamba",), describe, (CHECKPOINT,))
