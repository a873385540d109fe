"""rwkv7: a recurrence instead of attention, LayerNorm, no positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from aggml.models.blocks import ChannelMix, TimeMix
from aggml.models.checkpoints.keys import UNBOUNDED, number
from aggml.models.checkpoints.recipes import Checkpoint, reshape
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import divides, layer_norm_description_of, layers_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: the two parts of a layer do not use one previous token each.
    """
    if hp.integer("token_shift_count", 2) != 2:
        raise ModelError(f"rwkv7.token_shift_count is {hp.integer('token_shift_count')}, not 2")
    width, head = hp.integer("embedding_length", least=1), hp.integer("wkv.head_size", least=1)
    divides(hp, "wkv.head_size", head, "embedding_length", width)
    return layer_norm_description_of(
        hp,
        [
            Layer(
                TimeMix(width, head, first=i == 0), ChannelMix(width),
                before_feed_forward="attn_norm_2",
            )
            for i in range(layers_of(hp))
        ],
        embedding_norm=True, entire=True,
    )  # fmt: skip


_AT: Final = "layers.{i}.attn."
#: Folders as flash-linear-attention saves them. llama.cpp demands the low-rank matrices "v" in the
#: first layer, too, but does not use them: there they are copies of those of "a".
CHECKPOINT: Final = Checkpoint(
    ("rwkv7",),
    {
        "token_embd": "embeddings",
        "token_embd_norm": "layers.0.pre_norm",
        "output_norm": "norm",
        "output": "lm_head",
        "blk.{i}.attn_norm": "layers.{i}.attn_norm",
        "blk.{i}.attn_norm_2": "layers.{i}.ffn_norm",
        "blk.{i}.time_mix_lerp_fused.weight": reshape(
            tuple(f"{_AT}x_{name}" for name in "rwkvag"),
            lambda shapes, _: (len(shapes), 1, 1, shapes[0][-1]),
        ),
        **{f"blk.{{i}}.time_mix_{x}0.weight": f"{_AT}{x}_lora.lora.2.bias" for x in "wa"},
        **{f"blk.{{i}}.time_mix_{x}1.weight": f"{_AT}{x}_lora.lora.0.weight" for x in "wag"},
        **{f"blk.{{i}}.time_mix_{x}2.weight": f"{_AT}{x}_lora.lora.2.weight" for x in "wag"},
        **{
            f"blk.{{i}}.time_mix_v{n}.weight": (f"{_AT}v_lora.{name}", f"{_AT}a_lora.{name}")
            for n, name in enumerate(("lora.2.bias", "lora.0.weight", "lora.2.weight"))
        },
        **{
            f"blk.{{i}}.time_mix_{x}.weight": reshape(
                f"{_AT}{x}", lambda shapes, _: (math.prod(shapes[0]),)
            )
            for x in ("k_k", "k_a", "r_k")
        },
        "blk.{i}.time_mix_ln": f"{_AT}g_norm",
        "blk.{i}.time_mix_receptance": f"{_AT}r_proj",
        "blk.{i}.time_mix_key": f"{_AT}k_proj",
        "blk.{i}.time_mix_value": f"{_AT}v_proj",
        "blk.{i}.time_mix_output": f"{_AT}o_proj",
        "blk.{i}.channel_mix_lerp_k.weight": reshape(
            "layers.{i}.ffn.x_k", lambda shapes, _: (1, 1, shapes[0][-1])
        ),
        "blk.{i}.channel_mix_key": "layers.{i}.ffn.key",
        "blk.{i}.channel_mix_value": "layers.{i}.ffn.value",
    },
    {
        "context_length": lambda config: config.get("max_position_embeddings", default=UNBOUNDED),
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": lambda config: config.get(
            "intermediate_size", default=4 * config.need("hidden_size")
        ),
        "attention.head_count": lambda _: 0,
        "attention.layer_norm_epsilon": number("norm_eps", default=1e-5),
        "attention.decay_lora_rank": "decay_low_rank_dim",
        "attention.iclr_lora_rank": "a_low_rank_dim",
        "attention.value_residual_mix_lora_rank": "v_low_rank_dim",
        "attention.gate_lora_rank": "gate_low_rank_dim",
        "wkv.head_size": "head_dim",
        "vocab_size": "vocab_size",
    },
    expects={"hidden_act": ("sqrelu",), "norm_first": (True,), "attn_mode": ("chunk",
             "fused_recurrent")},
)  # fmt: skip


ARCHITECTURE = Architecture(("rwkv7",), describe, (CHECKPOINT,))
