"""lfm2 and lfm2moe: most layers are short convolutions, those with heads of keys are attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward, ShortConv
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, kernels, number
from aggml.models.checkpoints.recipes import Checkpoint, stack
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import (
    attention_of,
    description_of,
    layers_of,
    nets_of,
    rope_of,
    routed_experts_of,
    window_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.description import Block
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    layers, rope = layers_of(hp), rope_of(hp, "neox")
    conv = ShortConv(
        hp.integer("embedding_length", least=1), hp.integer("shortconv.l_cache", least=2)
    )
    heads = hp.each_layer("attention.head_count_kv", layers)
    nets: list[Block] = [FeedForward()] * layers
    if hp.architecture == "lfm2moe":
        nets = nets_of(hp, routed_experts_of(hp, sum_to_one=True))
    window = window_of(hp)
    mixers = (
        attention_of(hp, rope, i, norm="head", window=window) if n else conv
        for i, n in enumerate(heads)
    )
    return description_of(
        hp,
        [Layer(mixer, net) for mixer, net in zip(mixers, nets, strict=True)],
        last_norm="token_embd_norm",  # the wrong name that the first files had
    )


def _kv_heads(config: Config) -> list[int]:
    """Heads of keys of each layer; convolutions have 0."""
    heads = int(config.need("num_key_value_heads"))
    return [heads if kind == "full_attention" else 0 for kind in config.need("layer_types")]


def _inner(config: Config) -> int:
    """Elements between the matrices of the net."""
    inner = int(config.need("block_ff_dim", "intermediate_size"))
    if not config.get("block_auto_adjust_ff_dim", default=True):
        return inner
    inner = int(int(2 * inner / 3) * float(config.get("block_ffn_dim_multiplier", default=1.0)))
    step = int(config.get("block_multiple_of", default=256))
    return -(-inner // step) * step


_TENSORS: Final = {
    **{x: y for x, y in DECODER.items() if x in ("token_embd", "output")},
    "token_embd_norm": "embedding_norm",
    "blk.{i}.attn_norm": "layers.{i}.operator_norm",
    "blk.{i}.ffn_norm": "layers.{i}.ffn_norm",
    "blk.{i}.attn_q": "layers.{i}.self_attn.q_proj",
    "blk.{i}.attn_k": "layers.{i}.self_attn.k_proj",
    "blk.{i}.attn_v": "layers.{i}.self_attn.v_proj",
    "blk.{i}.attn_output": "layers.{i}.self_attn.out_proj",
    "blk.{i}.attn_q_norm": "layers.{i}.self_attn.q_layernorm",
    "blk.{i}.attn_k_norm": "layers.{i}.self_attn.k_layernorm",
    "blk.{i}.ffn_gate": "layers.{i}.feed_forward.w1",
    "blk.{i}.ffn_down": "layers.{i}.feed_forward.w2",
    "blk.{i}.ffn_up": "layers.{i}.feed_forward.w3",
    "blk.{i}.shortconv.in_proj": "layers.{i}.conv.in_proj",
    "blk.{i}.shortconv.conv": kernels("layers.{i}.conv.conv"),
    "blk.{i}.shortconv.out_proj": "layers.{i}.conv.out_proj",
}
_KEYS: Final = {
    **DECODER_KEYS,
    "attention.head_count_kv": _kv_heads,
    "attention.layer_norm_rms_epsilon": number("norm_eps"),
    "shortconv.l_cache": "conv_L_cache",
}
CHECKPOINTS: Final = (
    Checkpoint(
        ("lfm2",), _TENSORS, {**_KEYS, "feed_forward_length": _inner}, "lfm2",
        harmless={"full_attn_idxs": "layer_types says the same"},
        expects={"conv_bias": (False,)},
    ),
    Checkpoint(
        ("lfm2_moe",),
        {
            **_TENSORS,
            "blk.{i}.ffn_gate_inp": "layers.{i}.feed_forward.gate",
            "blk.{i}.exp_probs_b.bias": "layers.{i}.feed_forward.expert_bias",
            "blk.{i}.ffn_gate_exps": stack("layers.{i}.feed_forward.experts.{e}.w1"),
            "blk.{i}.ffn_down_exps": stack("layers.{i}.feed_forward.experts.{e}.w2"),
            "blk.{i}.ffn_up_exps": stack("layers.{i}.feed_forward.experts.{e}.w3"),
        },
        {
            **_KEYS,
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_gating_func": lambda _: 2,
            "leading_dense_block_count": "num_dense_layers",
        },
        "lfm2moe",
        expects={
            "conv_bias": (False,), "norm_topk_prob": (True,), "routed_scaling_factor": (1.0,),
            "use_expert_bias": (True,),
        },
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("lfm2", "lfm2moe"), describe, CHECKPOINTS)
