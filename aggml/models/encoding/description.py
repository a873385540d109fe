"""How an encoder is built, as values.

Here: the dataclasses. Not here: the graph (graph.py), the architectures (../architectures/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from aggml.models.blocks.attention import Rope

__all__ = ["EncoderDescription", "EncoderLayer", "Net", "Pooling"]

Pooling = Literal["mean", "cls", "last"]
Net = Literal["gelu", "gated gelu", "gated silu", "joined gelu", "joined silu"]


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """Attention among all tokens of a text, then a feed-forward net.

    Attributes:
        rope: rotary positions; None: none.
        window: a token sees tokens at a distance of at most half of this; None: all tokens.
        net: the activation of the net, and whether it has a gate: "gated" with a matrix of its own,
            "joined" with gate and values as the halves of ``ffn_up``.
        norms_first: whether norms come before the blocks (modernbert), not after the residual sums
            (BERT).
    """

    rope: Rope | None
    window: int | None
    net: Net
    norms_first: bool = False


@dataclass(frozen=True, slots=True)
class EncoderDescription:
    """A model that makes a vector of a text.

    Attributes:
        architecture: its name in the file.
        width: elements of a token's vector between layers, and of a text's vector.
        context_length: tokens that a text may have.
        heads: of attention.
        eps: of all norms.
        layers: in order.
        pooling: how the vectors of all tokens become one vector.
        normalize: whether vectors have length 1 if the caller does not say.
        positions: whether each position has an embedding (``position_embd``).
        distance_bias: ``max_bias`` of `ops.flash_attn_ext`, from which each head's ALiBi slope
            follows; 0: no ALiBi.
    """

    architecture: str
    width: int
    context_length: int
    heads: int
    eps: float
    layers: tuple[EncoderLayer, ...]
    pooling: Pooling = "mean"
    normalize: bool = True
    positions: bool = False
    distance_bias: float = 0.0

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.width // self.heads

    @property
    def ordered(self) -> bool:
        """Whether the graph has positions as input, for embeddings or rotary positions."""
        return self.positions or any(layer.rope is not None for layer in self.layers)

    def needs(self) -> list[str]:
        """Names of the tensors that the file must have."""
        names = ["token_embd.weight", "token_embd_norm.weight"]
        if self.positions:
            names.append("position_embd.weight")
        for i, layer in enumerate(self.layers):
            parts = ["attn_output", "ffn_up", "ffn_down"]
            parts += ["ffn_gate"] if layer.net.startswith("gated") else []
            parts += (
                ["ffn_norm"] if layer.norms_first else ["attn_output_norm", "layer_output_norm"]
            )
            names += [f"blk.{i}.{part}.weight" for part in parts]
        if self.layers and self.layers[-1].norms_first:
            names.append("output_norm.weight")
        return names
