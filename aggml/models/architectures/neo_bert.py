"""neo-bert: RMS norms before each block, rotary positions, gate and up in one matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import ENCODER_KEYS, number
from aggml.models.checkpoints.recipes import Checkpoint, Recipe
from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import layers_of, rms_encoder_of, rope_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Array
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layer = EncoderLayer(rope_of(hp, "normal"), None, "joined silu", norms_first=True)
    return rms_encoder_of(hp, [layer] * layers_of(hp), last_norm="enc.output_norm")


def _split_heads(source: str) -> Recipe:
    """All queries, then all keys, then all values; the folder has them head by head."""

    def make(arrays: Sequence[Array], config: Config) -> Array:
        (x,), heads = arrays, int(config.need("num_attention_heads"))
        return x.reshape(heads, 3, -1, x.shape[1]).swapaxes(0, 1).reshape(x.shape)

    return Recipe((source,), make, lambda shapes, _: shapes[0])


_AT: Final = "transformer_encoder.{i}."
CHECKPOINT: Final = Checkpoint(
    ("neobert",),
    {
        "token_embd": "encoder",
        "blk.{i}.attn_norm": f"{_AT}attention_norm",
        "blk.{i}.attn_qkv": _split_heads(f"{_AT}qkv"),
        "blk.{i}.attn_output": f"{_AT}wo",
        "blk.{i}.ffn_norm": f"{_AT}ffn_norm",
        "blk.{i}.ffn_up": f"{_AT}ffn.w12",
        "blk.{i}.ffn_down": f"{_AT}ffn.w3",
        "enc.output_norm": "layer_norm",
    },
    {
        **{x: y for x, y in ENCODER_KEYS.items() if x != "attention.layer_norm_epsilon"},
        "context_length": "max_length",
        "feed_forward_length": lambda config: 2 * int(config.need("intermediate_size")) // 3,
        "attention.layer_norm_rms_epsilon": number("norm_eps", default=1e-6),
        "rope.freq_base": lambda _: 10000.0,
    },
    ignored=(r"^decoder\.", r"^freqs_cis$"),
    expects={"hidden_act": ("SwiGLU", "swiglu"), "rms_norm": (True,), "rope": (True,),
             "ngpt": (False,)},
    harmless={
        **dict.fromkeys(
            ("dim_head", "decoder_init_range", "embedding_init_range", "kwargs", "flash_attention",
             "base_scale", "max_length"),
            "it follows from the others, or is for training",
        ),
    },
)  # fmt: skip


ARCHITECTURE = Architecture(("neo-bert",), describe, (CHECKPOINT,))
