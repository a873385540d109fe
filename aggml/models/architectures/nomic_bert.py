"""nomic-bert: BERT with rotary positions, a gated net, and one matrix for queries, keys, values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import ENCODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import (
    encoder_of,
    layers_of,
    rope_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layer = EncoderLayer(rope_of(hp, "neox"), None, "gated silu")
    return encoder_of(hp, [layer] * layers_of(hp))


CHECKPOINT: Final = Checkpoint(
    ("nomic_bert",),
    {
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "emb_ln",
        "blk.{i}.attn_qkv": "encoder.layers.{i}.attn.Wqkv",
        "blk.{i}.attn_output": "encoder.layers.{i}.attn.out_proj",
        "blk.{i}.attn_output_norm": "encoder.layers.{i}.norm1",
        "blk.{i}.ffn_up": "encoder.layers.{i}.mlp.fc11",
        "blk.{i}.ffn_gate": "encoder.layers.{i}.mlp.fc12",
        "blk.{i}.ffn_down": "encoder.layers.{i}.mlp.fc2",
        "blk.{i}.layer_output_norm": "encoder.layers.{i}.norm2",
    },
    ENCODER_KEYS,
    prefixes=("bert.",),
    expects={"activation_function": ("swiglu",), "hidden_act": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("nomic-bert",), describe, (CHECKPOINT,))
