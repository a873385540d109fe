"""jina-bert-v3: BERT with rotary positions instead of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import ENCODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import encoder_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layer = EncoderLayer(rope_of(hp, "neox"), None, "gelu")
    return encoder_of(hp, [layer] * layers_of(hp))


_AT: Final = "encoder.layers.{i}."
CHECKPOINT: Final = Checkpoint(
    ("jina_embeddings_v3",),
    {
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "emb_ln",
        "blk.{i}.attn_qkv": f"{_AT}mixer.Wqkv",
        "blk.{i}.attn_output": f"{_AT}mixer.out_proj",
        "blk.{i}.attn_output_norm": f"{_AT}norm1",
        "blk.{i}.ffn_up": f"{_AT}mlp.fc1",
        "blk.{i}.ffn_down": f"{_AT}mlp.fc2",
        "blk.{i}.layer_output_norm": f"{_AT}norm2",
    },
    ENCODER_KEYS,
    prefixes=("roberta.",),
    ignored=(r"^pooler\.", r"^lm_head\."),
    expects={"hidden_act": ("gelu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("jina-bert-v3",), describe, (CHECKPOINT,))
