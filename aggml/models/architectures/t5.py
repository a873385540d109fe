"""t5 and t5encoder: an encoder reads a text, a decoder writes another one.

Attention has no positions of its own: a bias of each head depends on how far two tokens are apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aggml.models.checkpoints.keys import number
from aggml.models.checkpoints.recipes import Checkpoint, scale
from aggml.models.description import Architecture
from aggml.models.encoder_decoder import FURTHEST, EncoderDecoderDescription
from aggml.models.hyperparameters import MOST_LAYERS
from aggml.models.reading import LARGEST_EPS, head_length, layers_of, pooling_of

if TYPE_CHECKING:
    from aggml.models.checkpoints.config import Config
    from aggml.models.checkpoints.recipes import Key, Rule
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> EncoderDecoderDescription:
    """A model of this architecture."""
    layers = layers_of(hp)
    decodes = hp.architecture == "t5"
    kind, pooling = pooling_of(hp)
    return EncoderDecoderDescription(
        architecture=hp.architecture,
        width=hp.integer("embedding_length", least=1),
        context_length=hp.integer("context_length", least=1),
        heads=hp.integer("attention.head_count", least=1),
        head=head_length(hp),
        eps=hp.number("attention.layer_norm_rms_epsilon", least=0.0, most=LARGEST_EPS),
        buckets=hp.integer("attention.relative_buckets_count", least=4),
        layers=layers,
        decoder_layers=hp.integer("decoder_block_count", layers, least=1, most=MOST_LAYERS)
        if decodes
        else 0,
        start=hp.integer("decoder_start_token_id", 0, least=0),
        pooling="none" if kind == 0 else pooling,
    )


TYPES: Final = ("t5", "mt5", "umt5")
#: Nets without a gate have ReLU, those with one GELU.
NETS: Final = ("relu", "gated-gelu")


def _layer(to: str, at: str, *, cross: bool) -> dict[str, Rule]:
    """The tensors of each layer of the encoder or of the decoder.

    Args:
        to: the prefix of their names in GGUF.
        at: that of their names in the folder.
        cross: whether there is attention to the encoder's results, too.
    """
    found: dict[str, Rule] = {}
    mixers = {"attn": "SelfAttention"} | ({"cross_attn": "EncDecAttention"} if cross else {})
    for i, (part, name) in enumerate(mixers.items()):
        found[f"{to}{part}_norm"] = f"{at}layer.{i}.layer_norm"
        found |= {f"{to}{part}_{x}": f"{at}layer.{i}.{name}.{x}" for x in "qkvo"}
    found[f"{to}attn_rel_b"] = f"{at}layer.0.SelfAttention.relative_attention_bias"
    net = f"{at}layer.{len(mixers)}."
    return found | {
        f"{to}ffn_norm": f"{net}layer_norm",
        f"{to}ffn_gate": f"{net}DenseReluDense.wi_0",
        f"{to}ffn_up": (f"{net}DenseReluDense.wi_1", f"{net}DenseReluDense.wi"),
        f"{to}ffn_down": f"{net}DenseReluDense.wo",
    }


def _scale(config: Config) -> float:
    """By what logits are multiplied, for which GGUF has no key.

    Folders say it by ``tie_word_embeddings``: a matrix of logits of its own may still be there.
    """
    tied = config.get("tie_word_embeddings", default=True)
    told = config.get("scale_decoder_outputs", default=tied)
    if not told or config.model_type == "mt5":
        return 1.0
    return float(int(config.need("d_model")) ** -0.5)


_ENCODER: Final[dict[str, Rule]] = {
    "token_embd": ("shared", "encoder.embed_tokens"),
    "enc.output_norm": "encoder.final_layer_norm",
    **_layer("enc.blk.{i}.", "encoder.block.{i}.", cross=False),
}
_KEYS: Final[dict[str, Key]] = {
    "context_length": lambda config: config.get("n_positions", default=512),
    "embedding_length": "d_model",
    "feed_forward_length": "d_ff",
    "block_count": "num_layers",
    "attention.head_count": "num_heads",
    "attention.key_length": "d_kv",
    "attention.value_length": "d_kv",
    "attention.layer_norm_rms_epsilon": number("layer_norm_epsilon", default=1e-6),
    "attention.layer_norm_epsilon": number("layer_norm_epsilon", default=1e-6),
    "attention.relative_buckets_count": lambda config: config.get(
        "relative_attention_num_buckets", default=32
    ),
    "vocab_size": "vocab_size",
}
_COMMON: Final[dict[str, Any]] = {
    "prefixes": (),
    "expects": {
        "feed_forward_proj": NETS, "relative_attention_max_distance": (FURTHEST,),
        "dense_act_fn": ("relu", "gelu_new"),
    },
    "harmless": dict.fromkeys(
        ("dropout_rate", "is_gated_act", "is_encoder_decoder", "is_decoder", "num_decoder_layers",
         "use_cache", "output_past", "max_position_embeddings", "scale_decoder_outputs"),
        "it follows from the others, or is for training",
    ),
}  # fmt: skip
CHECKPOINTS: Final = (
    Checkpoint(
        TYPES, _ENCODER, _KEYS, "t5encoder",
        classes=("T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel"),
        ignored=(r"^encoder\.embed_tokens\.",), **_COMMON,
    ),
    Checkpoint(
        TYPES,
        {
            **_ENCODER, **_layer("dec.blk.{i}.", "decoder.block.{i}.", cross=True),
            "dec.output_norm": "decoder.final_layer_norm",
            "output.weight": (
                scale("lm_head.weight", _scale), scale("shared.weight", _scale),
            ),
        },
        {
            **_KEYS,
            "decoder_block_count": ("num_decoder_layers", "num_layers"),
            "decoder_start_token_id": lambda config: config.get(
                "decoder_start_token_id", default=config.get("pad_token_id", default=0)
            ),
        },
        "t5", ignored=(r"^(encoder|decoder)\.embed_tokens\.",
                       r"EncDecAttention\.relative_attention_bias"),
        **_COMMON,
    ),
)  # fmt: skip


ARCHITECTURE = Architecture(("t5", "t5encoder"), describe, CHECKPOINTS)
