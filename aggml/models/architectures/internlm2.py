"""internlm2: built as llama, under other names in its folders; InternLM 2 and 2.5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, Recipe
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array, Shape
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "normal", factors=None)
    mixers = (attention_of(hp, rope, i) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, FeedForward()) for mixer in mixers])


def _part(which: int) -> Recipe:
    """Queries (0), keys (1) or values (2) of a matrix that has each head of keys with its queries.

    Rotary positions are on halves of heads in the folder, and on pairs of neighbours here.
    """

    def make(arrays: Sequence[Array], config: Config) -> Array:
        (x,), kv_heads = arrays, int(config.need("num_key_value_heads", "num_attention_heads"))
        grouped = x.reshape(kv_heads, -1, config.head, x.shape[1])
        own = grouped[:, :-2] if which == 0 else grouped[:, which - 3, None]
        if which == 2:
            return own.reshape(-1, x.shape[1])
        heads = own.reshape(-1, 2, config.head // 2, x.shape[1])
        return heads.swapaxes(1, 2).reshape(-1, x.shape[1])

    def shape(_: Sequence[Shape], config: Config) -> Shape:
        queries = int(config.need("num_attention_heads"))
        heads = int(config.get("num_key_value_heads", default=queries)) if which else queries
        return heads * config.head, int(config.need("hidden_size"))

    return Recipe(("layers.{i}.attention.wqkv.weight",), make, shape)


_AT: Final = "layers.{i}."
CHECKPOINT: Final = Checkpoint(
    ("internlm2",),
    DECODER | {
        "token_embd": "tok_embeddings",
        "output": "output",
        "blk.{i}.attn_norm": f"{_AT}attention_norm",
        "blk.{i}.attn_q.weight": _part(0),
        "blk.{i}.attn_k.weight": _part(1),
        "blk.{i}.attn_v.weight": _part(2),
        "blk.{i}.attn_output": f"{_AT}attention.wo",
        "blk.{i}.ffn_norm": f"{_AT}ffn_norm",
        "blk.{i}.ffn_gate": f"{_AT}feed_forward.w1",
        "blk.{i}.ffn_up": f"{_AT}feed_forward.w3",
        "blk.{i}.ffn_down": f"{_AT}feed_forward.w2",
    },
    DECODER_KEYS,
    expects={"hidden_act": ("silu",), "bias": (False,)},
)  # fmt: skip


ARCHITECTURE = Architecture(("internlm2",), describe, (CHECKPOINT,))
