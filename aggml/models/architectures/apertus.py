"""apertus: norms of the queries and keys of each head; nets with xIELU and without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import DECODER, DECODER_KEYS, HEAD_NORMS, scaled_frequencies
from aggml.models.checkpoints.recipes import Checkpoint
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]

#: Parameters of xIELU; each layer has its own.
PARAMETERS: Final = ("alpha_n", "alpha_p", "beta", "eps")


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, layers = rope_of(hp, "neox"), layers_of(hp)
    alpha_n, alpha_p, beta, eps = (hp.each_number(f"xielu.{x}", layers) for x in PARAMETERS)
    scale = hp.number("attention.scale", 0.0) or None
    return description_of(
        hp,
        [
            Layer(
                attention_of(hp, rope, i, norm="head", scale=scale),
                FeedForward(gated=False, xielu=(alpha_n[i], alpha_p[i], beta[i], eps[i])),
            )
            for i in range(layers)
        ],
    )


CHECKPOINT: Final = Checkpoint(
    ("apertus",),
    {
        **{x: y for x, y in DECODER.items() if x != "blk.{i}.ffn_gate"}, **HEAD_NORMS,
        "blk.{i}.attn_norm": "layers.{i}.attention_layernorm",
        "blk.{i}.ffn_norm": "layers.{i}.feedforward_layernorm",
        "rope_freqs.weight": scaled_frequencies,
    },
    DECODER_KEYS,
    numbers={f"xielu.{x}": f"layers.{{i}}.mlp.act_fn.{x}" for x in PARAMETERS},
    expects={"hidden_act": ("xielu",)},
    harmless={"qk_norm": "the names of the tensors say the same", "post_norm": "it is false"},
)  # fmt: skip


ARCHITECTURE = Architecture(("apertus",), describe, (CHECKPOINT,))
