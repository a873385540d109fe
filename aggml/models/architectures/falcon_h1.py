"""falcon-h1: attention and a scan of Mamba 2 side by side in each layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from aggml.models.architectures.mamba2 import scan_tensors
from aggml.models.blocks import FeedForward, SideBySide
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, steps_without_limit
from aggml.models.checkpoints.recipes import Checkpoint, output_of, scale
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import attention_of, description_of, layers_of, mamba2_of, rope_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, scan = rope_of(hp, "neox"), replace(mamba2_of(hp), norm_optional=True)
    layers = []
    for i in range(layers_of(hp)):
        attention = attention_of(hp, rope, i)
        mixer = SideBySide(attention, scan, attention.heads * attention.value_length)
        layers.append(Layer(mixer, FeedForward(), bare=("ffn_norm",)))
    return description_of(hp, layers)


def _times(*names: str, at: int | None = None) -> Callable[[Config], float]:
    """The product of some multipliers of config.json; ``at`` is the place in a list."""

    def read(config: Config) -> float:
        found = 1.0
        for name in names:
            told = config.get(name, default=1.0 if at is None else [1.0, 1.0])
            found *= float(told if at is None else told[at])
        return found

    return read


def _inner_size(config: Config) -> int:
    """Elements of all heads of the scan together."""
    told = config.get("mamba_d_ssm")
    usual = config.get("mamba_expand", default=2) * config.need("hidden_size")
    return int(usual if told is None else told)


def _scan_factors(config: Config) -> Array:
    """A factor for each row of the matrix before the scan.

    Raises:
        ModelError: there is not a multiplier for each of the five parts.
    """
    state = int(config.need("mamba_n_groups")) * int(config.need("mamba_d_state"))
    sizes = (
        _inner_size(config),
        _inner_size(config),
        state,
        state,
        int(config.need("mamba_n_heads")),
    )
    told = config.get("ssm_multipliers", default=[1.0] * 5)
    if len(told) != len(sizes):
        raise ModelError(f"config.json has ssm_multipliers = {told!r:.60}, expected were five")
    return np.repeat(np.float32(told), sizes) * np.float32(_times("ssm_in_multiplier")(config))


def _check_norm(config: Config) -> None:
    """Refuses a norm of the scan that comes before its gate.

    Raises:
        ModelError: config.json has it.
    """
    before = config.get("mamba_norm_before_gate", default=True)
    if config.get("mamba_rms_norm", default=False) and before:
        raise ModelError("config.json has mamba_norm_before_gate = true, which is not carried out")


def _ties_embeddings(config: Config) -> bool:
    return bool(config.get("tie_word_embeddings", default=False))


_AT: Final = "layers.{i}."
_SCAN: Final = scan_tensors(f"{_AT}mamba.", "mamba_n_groups")
CHECKPOINT: Final = Checkpoint(
    ("falcon_h1",),
    {
        **{x: y for x, y in DECODER.items() if x not in ("output", "blk.{i}.ffn_norm")},
        **_SCAN,
        "token_embd": scale("embed_tokens", _times("embedding_multiplier")),
        "output.weight": output_of(
            "embed_tokens", _ties_embeddings,
            _times("lm_head_multiplier"), _times("lm_head_multiplier"),
        ),
        "output_norm": "final_layernorm",
        "blk.{i}.ffn_norm": f"{_AT}pre_ff_layernorm.weight",
        "blk.{i}.attn_q": scale(f"{_AT}self_attn.q_proj", _times("attention_in_multiplier")),
        "blk.{i}.attn_k": scale(
            f"{_AT}self_attn.k_proj", _times("attention_in_multiplier", "key_multiplier")
        ),
        "blk.{i}.attn_v": scale(f"{_AT}self_attn.v_proj", _times("attention_in_multiplier")),
        "blk.{i}.attn_output": scale(f"{_AT}self_attn.o_proj", _times("attention_out_multiplier")),
        "blk.{i}.ffn_gate": scale(f"{_AT}feed_forward.gate_proj", _times("mlp_multipliers", at=0)),
        "blk.{i}.ffn_up": f"{_AT}feed_forward.up_proj",
        "blk.{i}.ffn_down": scale(f"{_AT}feed_forward.down_proj", _times("mlp_multipliers", at=1)),
        "blk.{i}.ssm_in": scale(f"{_AT}mamba.in_proj", _scan_factors),
        "blk.{i}.ssm_out": scale(f"{_AT}mamba.out_proj", _times("ssm_out_multiplier")),
    },
    DECODER_KEYS | {
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.inner_size": _inner_size,
        "ssm.state_size": "mamba_d_state",
        "ssm.time_step_rank": "mamba_n_heads",
        "ssm.group_count": "mamba_n_groups",
        "ssm.time_step_limit": steps_without_limit,
        "ssm.norm_before_gate": _check_norm,
    },
    harmless=dict.fromkeys(
        ("num_logits_to_keep", "mamba_use_mlp", "mlp_expansion_factor", "attn_layer_indices"),
        "it says how results are computed, or the shapes of the tensors say the same",
    ),
    expects={
        "hidden_act": ("silu",), "projectors_bias": (False,), "attention_bias": (False,),
        "mlp_bias": (False,), "mamba_proj_bias": (False,), "attn_layer_indices": (None, []),
        "mamba_use_mlp": (True,),
    },
    bare=("blk.{i}.ffn_norm",),
)  # fmt: skip


ARCHITECTURE = Architecture(("falcon-h1",), describe, (CHECKPOINT,))
