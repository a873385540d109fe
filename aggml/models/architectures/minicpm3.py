"""minicpm3: latent attention with the scales of minicpm, whose values no file says."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from aggml.models.architectures import minicpm
from aggml.models.blocks import FeedForward, LatentAttention
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, longrope_factors
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.errors import ModelError
from aggml.models.reading import description_of, layers_of, rope_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.models.checkpoints.config import Config
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

EMBEDDINGS: Final = 12.0  # by which they are multiplied
DEPTH: Final = 1.4  # divided by the root of the layers, of residual sums


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture.

    Raises:
        ModelError: no elements of a head are left without rotary positions.
    """
    layers, width = layers_of(hp), hp.integer("embedding_length", least=1)
    heads = hp.each_layer("attention.head_count", 1, least=1)[0]
    head = hp.integer("attention.key_length", width // heads, least=1)
    turned = hp.integer("rope.dimension_count", head, least=2)
    if turned >= head:
        raise ModelError(
            f"minicpm3.rope.dimension_count is {turned}, expected was less than a whole head, "
            f"minicpm3.attention.key_length = {head}"
        )
    rope = rope_of(
        hp, "neox", dims=turned, factors="rope_factors_short.weight",
        long_factors="rope_factors_long.weight",
    )  # fmt: skip
    mixer = LatentAttention(
        heads=heads,
        rank=hp.integer("attention.kv_lora_rank", least=1),
        plain=head - turned,
        turned=turned,
        value_length=hp.integer("attention.value_length", width // heads, least=1),
        rope=rope,
        scale=1 / math.sqrt(head),
        query_rank=hp.integer("attention.q_lora_rank", least=1),
        folded=False,
    )
    layer = Layer(mixer, FeedForward(), residual_scale=DEPTH / math.sqrt(layers))
    return description_of(
        hp, [layer] * layers, embedding_scale=EMBEDDINGS, logit_scale=minicpm.BASE / width
    )


def _only(name: str, value: float) -> Callable[[Config], None]:
    """Refuses another scale than the published one, because GGUF has no key for it."""

    def read(config: Config) -> None:
        told = config.get(name, default=value)
        if told != value:
            raise ModelError(f"config.json has {name} = {told}; only {value} is supported")

    return read


CHECKPOINT: Final = Checkpoint(
    ("minicpm3",),
    {
        **{x: y for x, y in DECODER.items() if x[8:] not in ("attn_q", "attn_k", "attn_v")},
        "blk.{i}.attn_q_a": "layers.{i}.self_attn.q_a_proj",
        "blk.{i}.attn_q_a_norm": "layers.{i}.self_attn.q_a_layernorm",
        "blk.{i}.attn_q_b": "layers.{i}.self_attn.q_b_proj",
        "blk.{i}.attn_kv_a_mqa": "layers.{i}.self_attn.kv_a_proj_with_mqa",
        "blk.{i}.attn_kv_a_norm": "layers.{i}.self_attn.kv_a_layernorm",
        "blk.{i}.attn_kv_b": "layers.{i}.self_attn.kv_b_proj",
        "rope_factors_short.weight": longrope_factors("short_factor"),
        "rope_factors_long.weight": longrope_factors("long_factor"),
    },
    DECODER_KEYS | {
        "attention.key_length": lambda config: int(
            config.need("qk_nope_head_dim") + config.need("qk_rope_head_dim")
        ),
        "attention.value_length": "v_head_dim",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.q_lora_rank": "q_lora_rank",
        "rope.dimension_count": "qk_rope_head_dim",
        "scale_emb": _only("scale_emb", EMBEDDINGS),
        "scale_depth": _only("scale_depth", DEPTH),
        "dim_model_base": _only("dim_model_base", minicpm.BASE),
    },
    expects={"hidden_act": ("silu",), "attention_bias": (False,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("minicpm3",), describe, (CHECKPOINT,))
