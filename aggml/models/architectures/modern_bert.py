"""modern-bert: norms before the blocks; two of three layers see a window, on both sides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import ENCODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture
from aggml.models.encoding.description import EncoderDescription, EncoderLayer
from aggml.models.reading import encoder_of, rope_of

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.encoding.description import Net
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    window = hp.integer("attention.sliding_window", 0)
    net: Net = "joined silu" if hp.get("hidden_activation") == "silu" else "joined gelu"
    everywhere = rope_of(hp, "neox")
    nearby = replace(everywhere, base=hp.number("rope.freq_base_swa", 10000.0), scale=1.0)
    period = hp.get("attention.sliding_window_pattern", 3)
    layers = []
    for i in range(hp.integer("block_count")):
        far = i % period == 0 if isinstance(period, int) else not period[i]
        whole = far or not window
        layers.append(
            EncoderLayer(
                everywhere if whole else nearby, None if whole else window, net, norms_first=True
            )
        )
    return encoder_of(hp, layers)


def _pattern(config: Config) -> int | list[bool] | None:
    """Which layers see a window; None: the usual pattern, all but every third."""
    kinds = config.get("layer_types")
    if kinds is None:
        period = config.get("global_attn_every_n_layers", default=3)
        return None if period == 3 else int(period)
    near = [kind == "sliding_attention" for kind in kinds]
    return None if near == [i % 3 != 0 for i in range(len(near))] else near


CHECKPOINT: Final = Checkpoint(
    ("modernbert",),
    {
        "token_embd": "embeddings.tok_embeddings",
        "token_embd_norm": "embeddings.norm",
        "output_norm": "final_norm",
        "blk.{i}.attn_norm": "layers.{i}.attn_norm",
        "blk.{i}.attn_qkv": "layers.{i}.attn.Wqkv",
        "blk.{i}.attn_output": "layers.{i}.attn.Wo",
        "blk.{i}.ffn_norm": "layers.{i}.mlp_norm",
        "blk.{i}.ffn_up": "layers.{i}.mlp.Wi",
        "blk.{i}.ffn_down": "layers.{i}.mlp.Wo",
        "cls": "head.dense",
        "cls.norm": "head.norm",
        "cls.output": "classifier",
    },
    ENCODER_KEYS | {
        "attention.sliding_window": "local_attention",
        "attention.sliding_window_pattern": _pattern,
        "hidden_activation": "hidden_activation",
    },
    ignored=(r"^decoder\.",),
    expects={"hidden_activation": ("gelu", "silu")},
)  # fmt: skip


ARCHITECTURE = Architecture(("modern-bert",), describe, (CHECKPOINT,))
