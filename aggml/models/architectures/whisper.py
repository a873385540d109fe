"""whisper: speech to text. An encoder takes 30 s of audio, a decoder writes what was said.

Names of tensors follow GGUF's names of other models: "enc.blk.0.attn_q" is the encoder's,
"blk.0.attn_q" attends to the text and "blk.0.cross_attn_q" to the audio. llama.cpp has no files of
this form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import CrossAttention, FeedForward
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Layer, SpeechDescription
from aggml.models.encoder.description import EncoderDescription, EncoderLayer
from aggml.models.hyperparameters import MOST_LAYERS
from aggml.models.reading import (
    LARGEST_EPS,
    attention_of,
    divides,
    layer_norm_description_of,
    layers_of,
)

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> SpeechDescription:
    """A model of this architecture."""
    width, heads = (hp.integer(x, least=1) for x in ("embedding_length", "attention.head_count"))
    frames = hp.integer("encoder.context_length", least=1)
    layer = Layer(
        attention_of(hp, None),
        FeedForward("gelu_erf", gated=False),
        cross=CrossAttention(heads, width // heads, frames),
    )
    text = layer_norm_description_of(hp, [layer] * layers_of(hp), position_table=True)
    audio_layer = EncoderLayer(None, None, "gelu", norms_first=True)
    audio_heads = hp.integer("encoder.attention.head_count", least=1)
    divides(hp, "encoder.attention.head_count", audio_heads, "embedding_length", width)
    audio = EncoderDescription(
        architecture=hp.architecture,
        width=width,
        context_length=frames,
        heads=audio_heads,
        eps=hp.number("attention.layer_norm_epsilon", least=0.0, most=LARGEST_EPS),
        layers=(audio_layer,) * hp.integer("encoder.block_count", least=1, most=MOST_LAYERS),
    )
    return SpeechDescription(audio, text, bands=hp.integer("encoder.mel_bands", least=1))


CHECKPOINT: Final = Checkpoint(
    ("whisper",),
    {
        "enc.conv1": "encoder.conv1",
        "enc.conv2": "encoder.conv2",
        "enc.position_embd": "encoder.embed_positions",
        "enc.output_norm": "encoder.layer_norm",
        "enc.blk.{i}.attn_norm": "encoder.layers.{i}.self_attn_layer_norm",
        "enc.blk.{i}.attn_q": "encoder.layers.{i}.self_attn.q_proj",
        "enc.blk.{i}.attn_k": "encoder.layers.{i}.self_attn.k_proj",
        "enc.blk.{i}.attn_v": "encoder.layers.{i}.self_attn.v_proj",
        "enc.blk.{i}.attn_output": "encoder.layers.{i}.self_attn.out_proj",
        "enc.blk.{i}.ffn_norm": "encoder.layers.{i}.final_layer_norm",
        "enc.blk.{i}.ffn_up": "encoder.layers.{i}.fc1",
        "enc.blk.{i}.ffn_down": "encoder.layers.{i}.fc2",
        "token_embd": "decoder.embed_tokens",
        "position_embd": "decoder.embed_positions",
        "output_norm": "decoder.layer_norm",
        "blk.{i}.attn_norm": "decoder.layers.{i}.self_attn_layer_norm",
        "blk.{i}.attn_q": "decoder.layers.{i}.self_attn.q_proj",
        "blk.{i}.attn_k": "decoder.layers.{i}.self_attn.k_proj",
        "blk.{i}.attn_v": "decoder.layers.{i}.self_attn.v_proj",
        "blk.{i}.attn_output": "decoder.layers.{i}.self_attn.out_proj",
        "blk.{i}.cross_attn_norm": "decoder.layers.{i}.encoder_attn_layer_norm",
        "blk.{i}.cross_attn_q": "decoder.layers.{i}.encoder_attn.q_proj",
        "blk.{i}.cross_attn_k": "decoder.layers.{i}.encoder_attn.k_proj",
        "blk.{i}.cross_attn_v": "decoder.layers.{i}.encoder_attn.v_proj",
        "blk.{i}.cross_attn_output": "decoder.layers.{i}.encoder_attn.out_proj",
        "blk.{i}.ffn_norm": "decoder.layers.{i}.final_layer_norm",
        "blk.{i}.ffn_up": "decoder.layers.{i}.fc1",
        "blk.{i}.ffn_down": "decoder.layers.{i}.fc2",
    },
    {
        "context_length": "max_target_positions",
        "embedding_length": "d_model",
        "block_count": "decoder_layers",
        "feed_forward_length": "decoder_ffn_dim",
        "attention.head_count": "decoder_attention_heads",
        "attention.layer_norm_epsilon": lambda _: 1e-5,
        "encoder.block_count": "encoder_layers",
        "encoder.context_length": "max_source_positions",
        "encoder.attention.head_count": "encoder_attention_heads",
        "encoder.mel_bands": "num_mel_bins",
        "vocab_size": "vocab_size",
    },
    ignored=(r"^proj_out\.",),  # equal to the embeddings
    expects={"activation_function": ("gelu",), "scale_embedding": (False,)},
)


ARCHITECTURE = Architecture(("whisper",), describe, (CHECKPOINT,))
