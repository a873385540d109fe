"""bert: also sentence-transformers, bge, e5 and xlm-roberta, whose files name this architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.checkpoints.keys import ENCODER_KEYS
from aggml.models.checkpoints.recipes import Checkpoint, without_first
from aggml.models.description import Architecture
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.reading import (
    encoder_of,
    layers_of,
)

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Rule
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDescription:
    """A model of this architecture."""
    layers = [EncoderLayer(None, None, "gelu")] * layers_of(hp)
    return encoder_of(hp, layers, positions=True)


_BERT: Final[dict[str, Rule]] = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.{i}.attn_q": "encoder.layer.{i}.attention.self.query",
    "blk.{i}.attn_k": "encoder.layer.{i}.attention.self.key",
    "blk.{i}.attn_v": "encoder.layer.{i}.attention.self.value",
    "blk.{i}.attn_output": "encoder.layer.{i}.attention.output.dense",
    "blk.{i}.attn_output_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "blk.{i}.ffn_up": "encoder.layer.{i}.intermediate.dense",
    "blk.{i}.ffn_down": "encoder.layer.{i}.output.dense",
    "blk.{i}.layer_output_norm": "encoder.layer.{i}.output.LayerNorm",
}
_DISTIL: Final[dict[str, Rule]] = {
    "blk.{i}.attn_q": "transformer.layer.{i}.attention.q_lin",
    "blk.{i}.attn_k": "transformer.layer.{i}.attention.k_lin",
    "blk.{i}.attn_v": "transformer.layer.{i}.attention.v_lin",
    "blk.{i}.attn_output": "transformer.layer.{i}.attention.out_lin",
    "blk.{i}.attn_output_norm": "transformer.layer.{i}.sa_layer_norm",
    "blk.{i}.ffn_up": "transformer.layer.{i}.ffn.lin1",
    "blk.{i}.ffn_down": "transformer.layer.{i}.ffn.lin2",
    "blk.{i}.layer_output_norm": "transformer.layer.{i}.output_layer_norm",
}
#: Heads that predict masked words: SPLADE's weights of words are made of them.
_WORDS: Final[dict[str, Rule]] = {
    "mlm.dense": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "mlm.output": ("cls.predictions.decoder", "cls.predictions"),
}
_ROBERTA_WORDS: Final[dict[str, Rule]] = {
    "mlm.dense": "lm_head.dense",
    "mlm.norm": "lm_head.layer_norm",
    "mlm.output": ("lm_head.decoder", "lm_head"),
}
_DISTIL_WORDS: Final[dict[str, Rule]] = {
    "mlm.dense": "vocab_transform",
    "mlm.norm": "vocab_layer_norm",
    "mlm.output": "vocab_projector",
}
#: Heads of bge-m3: a weight and a vector of each token. The vectors of ColBERT have a matrix, too.
_TOKENS: Final[dict[str, Rule]] = {
    "sparse": "sparse_linear", "multi": ("colbert_linear", "linear"),
}  # fmt: skip
_GUESSES: Final = (r"^cls\.", r"^lm_head\.", r"^vocab_")  # heads that predict masked words; unused


def _before_first(config: Config) -> int:
    """Rows of the position table before the first one used: RoBERTa skips up to the padding id."""
    return int(config.get("pad_token_id", default=1)) + 1


def _roberta_context(config: Config) -> int:
    return int(config.need("max_position_embeddings")) - _before_first(config)


_XLM_ROBERTA: Final[dict[str, Rule]] = _BERT | _TOKENS | {
    "position_embd": without_first("embeddings.position_embeddings", _before_first),
}  # fmt: skip
_ABSOLUTE: Final = {"hidden_act": ("gelu",), "position_embedding_type": ("absolute",)}
_ROBERTAS: Final = ("xlm-roberta", "roberta", "camembert")


CHECKPOINTS: Final = (
    Checkpoint(
        ("bert",), _BERT | _WORDS | _TOKENS, ENCODER_KEYS, prefixes=("bert.",),
        ignored=(r"^cls\.", r"^pooler\."), classes=("BertForMaskedLM",), expects=_ABSOLUTE,
    ),
    Checkpoint(
        _ROBERTAS, _XLM_ROBERTA | _ROBERTA_WORDS,
        ENCODER_KEYS | {"context_length": _roberta_context},
        prefixes=("roberta.",), ignored=(*_GUESSES, r"^pooler\."), expects=_ABSOLUTE,
        classes=("XLMRobertaForMaskedLM", "RobertaForMaskedLM", "CamembertForMaskedLM"),
    ),
    Checkpoint(
        ("distilbert",), _BERT | _DISTIL | _DISTIL_WORDS,
        ENCODER_KEYS | {"feed_forward_length": "hidden_dim"}, prefixes=("distilbert.",),
        classes=("DistilBertForMaskedLM",), expects={"activation": ("gelu",)},
    ),
    Checkpoint(
        ("bert",), _BERT | {"cls": "pooler.dense", "cls.output": "classifier"}, ENCODER_KEYS,
        prefixes=("bert.",), ignored=_GUESSES, classes=("BertForSequenceClassification",),
        expects=_ABSOLUTE,
    ),
    Checkpoint(
        ("bert",), _BERT | _TOKENS, ENCODER_KEYS, prefixes=("bert.",),
        ignored=(*_GUESSES, r"^pooler\."), expects=_ABSOLUTE,
    ),
    Checkpoint(
        _ROBERTAS,
        _XLM_ROBERTA | {"cls": "classifier.dense", "cls.output": "classifier.out_proj"},
        ENCODER_KEYS | {"context_length": _roberta_context},
        prefixes=("roberta.",), ignored=(*_GUESSES, r"^pooler\."),
        expects=_ABSOLUTE,
    ),
    Checkpoint(
        ("distilbert",), _BERT | _DISTIL, ENCODER_KEYS | {"feed_forward_length": "hidden_dim"},
        prefixes=("distilbert.",), ignored=_GUESSES, expects={"activation": ("gelu",)},
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("bert",), describe, CHECKPOINTS)
