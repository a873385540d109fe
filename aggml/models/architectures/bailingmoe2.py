"""bailingmoe2: Ling 2; queries, keys and values in one matrix, groups of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import (
    DECODER,
    DECODER_KEYS,
    EXPERT_KEYS,
    EXPERTS,
    UNUSED_WINDOW,
    number,
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
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox")
    nets = nets_of(hp, routed_experts_of(hp, shared=FeedForward(suffix="_shexp")))
    mixers = (attention_of(hp, rope, i, norm="head", joined=True) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)])


def _rotary_size(config: Config) -> int:
    """How many elements of each head have rotary positions.

    Raises:
        ModelError: two settings contradict each other.
    """
    share = DECODER_KEYS["rope.dimension_count"]
    assert callable(share)
    found = int(share(config))
    if config.get("rotary_dim", default=found) != found:
        raise ModelError(
            f"config.json has rotary_dim = {config.get('rotary_dim')}, but partial_rotary_factor "
            f"gives {found}"
        )
    return found


_AT: Final = "layers.{i}."
CHECKPOINT: Final = Checkpoint(
    ("bailing_moe", "bailing_moe_v2"),
    {
        **{x: y for x, y in DECODER.items() if not x.startswith("blk.{i}.attn")}, **EXPERTS,
        "token_embd": "word_embeddings",
        "blk.{i}.attn_norm": f"{_AT}input_layernorm",
        "blk.{i}.attn_qkv": f"{_AT}attention.query_key_value",
        "blk.{i}.attn_q_norm": f"{_AT}attention.query_layernorm",
        "blk.{i}.attn_k_norm": f"{_AT}attention.key_layernorm",
        "blk.{i}.attn_output": f"{_AT}attention.dense",
        "blk.{i}.exp_probs_b.bias": f"{_AT}mlp.gate.expert_bias",
        "blk.{i}.ffn_gate_shexp": f"{_AT}mlp.shared_experts.gate_proj",
        "blk.{i}.ffn_up_shexp": f"{_AT}mlp.shared_experts.up_proj",
        "blk.{i}.ffn_down_shexp": f"{_AT}mlp.shared_experts.down_proj",
    },
    {
        **DECODER_KEYS,
        **EXPERT_KEYS,
        "rope.dimension_count": _rotary_size,
        "expert_shared_count": "num_shared_experts",
        "expert_shared_feed_forward_length": lambda config: int(
            config.get("moe_shared_expert_intermediate_size")
            or config.need("moe_intermediate_size") * config.need("num_shared_experts")
        ),
        "expert_gating_func": lambda _: 2,
        "expert_weights_norm": "norm_topk_prob",
        "expert_weights_scale": number("routed_scaling_factor"),
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
        "leading_dense_block_count": "first_k_dense_replace",
    },
    classes=("BailingMoeV2",),
    harmless={
        **UNUSED_WINDOW,
        **dict.fromkeys(
            ("moe_router_enable_expert_bias", "use_qk_norm", "router_dtype"),
            "the names of the tensors say the same, or how it is computed",
        ),
        **dict.fromkeys(
            ("mtp_loss_scaling_factor", "output_dropout", "embedding_dropout"), "it is for training"
        ),
    },
    expects={
        "hidden_act": ("silu",), "score_function": ("sigmoid",), "use_bias": (False,),
        "use_rmsnorm": (True,), "use_sliding_window": (False,), "use_qk_norm": (True,),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("bailingmoe2",), describe, (CHECKPOINT,))
