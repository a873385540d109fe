"""nomic-bert-moe: BERT with rotary positions, and experts in some layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.architectures import nomic_bert
from aggml.models.checkpoints.keys import ENCODER_KEYS, number
from aggml.models.checkpoints.recipes import Checkpoint, Recipe
from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import encoder_of, experts_of, layers_of, rope_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Shape
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    period = hp.integer("moe_every_n_layers", 0)
    rope = rope_of(hp, "neox")
    experts = None
    if period:
        experts = experts_of(hp, activation="gelu_erf", gated=False)
    layers = [
        EncoderLayer(rope, None, "gelu", experts=experts if period and i % period == 1 else None)
        for i in range(layers_of(hp))
    ]
    return encoder_of(hp, layers)


def _has_experts(config: Config) -> bool:
    return bool(config.get("moe_every_n_layers", default=0))


def _by_expert(name: str, *, turned: bool) -> Recipe:
    """Rows of all experts as a matrix for each; ``turned``: their columns become rows."""

    def shape(shapes: Sequence[Shape], config: Config) -> Shape:
        experts, width = int(config.need("num_experts")), shapes[0][1]
        inner = shapes[0][0] // experts
        return (experts, width, inner) if turned else (experts, inner, width)

    def make(arrays: Sequence[Array], config: Config) -> Array:
        whole = arrays[0].reshape(int(config.need("num_experts")), -1, arrays[0].shape[1])
        return whole.swapaxes(1, 2) if turned else whole

    return Recipe((f"encoder.layers.{{i}}.mlp.experts.mlp.{name}",), make, shape)


CHECKPOINT: Final = Checkpoint(
    nomic_bert.CHECKPOINT.model_types,
    {
        **{x: y for x, y in nomic_bert.CHECKPOINT.tensors.items() if "ffn" not in x},
        "blk.{i}.ffn_up": "encoder.layers.{i}.mlp.fc1",
        "blk.{i}.ffn_down": "encoder.layers.{i}.mlp.fc2",
        "blk.{i}.ffn_gate_inp": "encoder.layers.{i}.mlp.router.layer",
        "blk.{i}.ffn_up_exps.weight": _by_expert("w1", turned=False),
        "blk.{i}.ffn_down_exps.weight": _by_expert("w2", turned=True),
        "blk.{i}.ffn_exps.bias": "encoder.layers.{i}.mlp.experts.bias",
    },
    {
        **ENCODER_KEYS,
        "expert_count": "num_experts",
        "expert_used_count": "moe_top_k",
        "moe_every_n_layers": "moe_every_n_layers",
        "rope.freq_base": number("rotary_emb_base", default=10000.0),
    },
    prefixes=("bert.",),
    condition=_has_experts,
    expects={
        "activation_function": ("gelu",), "causal": (False,), "prenorm": (False,),
        "moe_normalize_expert_weights": (False,), "expert_choice_router": (False,),
        "num_shared_experts": (0,), "ffn_div": (1,), "rotary_emb_fraction": (1, 1.0),
        "rotary_emb_interleaved": (False,), "use_rms_norm": (False,),
        "rotary_scaling_factor": (None,), "parallel_block": (False,),
    },
    harmless=dict.fromkeys(
        ("moe_impl", "moe_resid_pdrop", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias",
         "pad_vocab_size_multiple", "max_trained_positions", "scale_attn_weights",
         "scale_attn_by_inverse_layer_idx", "parallel_block_tied_norm", "moe_every_n_layers",
         "num_experts", "moe_top_k", "attn_pdrop", "embd_pdrop", "resid_pdrop",
         "use_pre_activation", "rotary_emb_scale_base"),
        "the names of the tensors say the same, or it is for training",
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("nomic-bert-moe",), describe, (CHECKPOINT,))
