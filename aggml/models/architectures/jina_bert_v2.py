"""jina-bert-v2: BERT with a bias by distance (ALiBi) instead of positions, and a gated net."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import ENCODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, half
from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import (
    encoder_of,
    layers_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.recipes import Rule
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layer = EncoderLayer(None, None, "gated gelu")
    return encoder_of(hp, [layer] * layers_of(hp), distance_bias=8.0)


_TENSORS: Final[dict[str, Rule]] = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.{i}.attn_q": "encoder.layer.{i}.attention.self.query",
    "blk.{i}.attn_q_norm": "encoder.layer.{i}.attention.self.layer_norm_q",
    "blk.{i}.attn_k": "encoder.layer.{i}.attention.self.key",
    "blk.{i}.attn_k_norm": "encoder.layer.{i}.attention.self.layer_norm_k",
    "blk.{i}.attn_v": "encoder.layer.{i}.attention.self.value",
    "blk.{i}.attn_output": "encoder.layer.{i}.attention.output.dense",
    "blk.{i}.attn_output_norm": (
        "encoder.layer.{i}.attention.output.LayerNorm",
        "encoder.layer.{i}.layer_norm_1",
    ),
    "blk.{i}.ffn_gate.weight": half("encoder.layer.{i}.mlp.gated_layers.weight", 0),
    "blk.{i}.ffn_up.weight": half("encoder.layer.{i}.mlp.gated_layers.weight", 1),
    "blk.{i}.ffn_down": "encoder.layer.{i}.mlp.wo",
    "blk.{i}.layer_output_norm": (
        "encoder.layer.{i}.mlp.layernorm",
        "encoder.layer.{i}.layer_norm_2",
    ),
}
_EXPECTS: Final = {"position_embedding_type": ("alibi",), "feed_forward_type": ("geglu",)}
CHECKPOINTS: Final = (
    Checkpoint(
        ("bert",), _TENSORS | {"cls": "pooler.dense", "cls.output": "classifier"}, ENCODER_KEYS,
        prefixes=("bert.",), ignored=(r"^cls\.",), classes=("JinaBertForSequenceClassification",),
        expects=_EXPECTS,
    ),
    Checkpoint(
        ("bert",), _TENSORS, ENCODER_KEYS, prefixes=("bert.",), ignored=(r"^cls\.", r"^pooler\."),
        classes=("JinaBert",), expects=_EXPECTS,
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("jina-bert-v2",), describe, CHECKPOINTS)
