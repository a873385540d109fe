"""t5 and t5encoder: an encoder reads a text, a decoder writes another one.

Attention has no positions of its own: a bias of each head depends on how far two tokens are apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.models.description import Architecture
from aggml.models.encoder_decoder import EncoderDecoderDescription
from aggml.models.hyperparameters import MOST_LAYERS
from aggml.models.reading import LARGEST_EPS, head_length, layers_of, pooling_of

if TYPE_CHECKING:
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


ARCHITECTURE = Architecture(("t5", "t5encoder"), describe)
