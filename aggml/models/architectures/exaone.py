"""exaone: built as llama, with rotary positions of mode "neox"; EXAONE 3 and 3.5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, number, scaled_frequencies
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope = rope_of(hp, "neox")
    mixers = (attention_of(hp, rope, i) for i in range(layers_of(hp)))
    return description_of(hp, [Layer(mixer, FeedForward()) for mixer in mixers])


_AT: Final = "h.{i}."
CHECKPOINT: Final = Checkpoint(
    ("exaone",),
    DECODER | {
        "token_embd": "wte",
        "output_norm": "ln_f",
        "blk.{i}.attn_norm": f"{_AT}ln_1",
        **{f"blk.{{i}}.attn_{x}": f"{_AT}attn.attention.{x}_proj" for x in "qkv"},
        "blk.{i}.attn_output": f"{_AT}attn.attention.out_proj",
        "blk.{i}.ffn_norm": f"{_AT}ln_2",
        "blk.{i}.ffn_gate": f"{_AT}mlp.c_fc_0",
        "blk.{i}.ffn_up": f"{_AT}mlp.c_fc_1",
        "blk.{i}.ffn_down": f"{_AT}mlp.c_proj",
        "rope_freqs.weight": scaled_frequencies,
    },
    DECODER_KEYS | {
        "block_count": ("num_hidden_layers", "num_layers"),
        "attention.layer_norm_rms_epsilon": number("rms_norm_eps", "layer_norm_epsilon"),
    },
    prefixes=("transformer.",),
    ignored=(r"attn\.attention\.rotary\.inv_freq$",),
    expects={"hidden_act": ("silu",), "activation_function": ("silu",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("exaone",), describe, (CHECKPOINT,))
