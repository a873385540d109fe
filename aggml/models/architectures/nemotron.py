"""nemotron: LayerNorm, and nets with ReLU squared and no gate; Nemotron 4 and Minitron."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aggml.models.blocks import FeedForward
from aggml.models.checkpoints.keys import CENTRED_KEYS, DECODER, number
from aggml.models.checkpoints.recipes import Checkpoint, Rule, add_one
from aggml.models.description import Architecture, Description, Layer
from aggml.models.reading import attention_of, layer_norm_description_of, layers_of, rope_of

if TYPE_CHECKING:
    from aggml.models.hyperparameters import Hyperparameters

__all__ = ["ARCHITECTURE", "describe"]


def describe(hp: Hyperparameters) -> Description:
    """A model of this architecture."""
    rope, net = rope_of(hp, "neox", factors=None), FeedForward("relu_sqr", gated=False)
    mixers = (attention_of(hp, rope, i) for i in range(layers_of(hp)))
    return layer_norm_description_of(hp, [Layer(mixer, net) for mixer in mixers])


def _norm(to: str, source: str) -> dict[str, Rule]:
    """A norm of which the folder has the difference from 1, and a bias."""
    return {f"{to}.weight": add_one(f"{source}.weight"), f"{to}.bias": f"{source}.bias"}


_UNUSED: Final = ("blk.{i}.ffn_gate", "output_norm", "blk.{i}.attn_norm", "blk.{i}.ffn_norm")
CHECKPOINT: Final = Checkpoint(
    ("nemotron",),
    {
        **{x: y for x, y in DECODER.items() if x not in _UNUSED},
        **_norm("output_norm", "norm"),
        **_norm("blk.{i}.attn_norm", "layers.{i}.input_layernorm"),
        **_norm("blk.{i}.ffn_norm", "layers.{i}.post_attention_layernorm"),
    },
    CENTRED_KEYS | {"attention.layer_norm_epsilon": number("norm_eps", default=1e-5)},
    expects={"hidden_act": ("relu2",)},
)  # fmt: skip


ARCHITECTURE = Architecture(("nemotron",), describe, (CHECKPOINT,))
