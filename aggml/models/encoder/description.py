"""How an encoder is built, as values.

Here: the dataclasses. Not here: the graph (graph.py), the architectures (../architectures/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aggml.models.forms import FormContext, TensorForm, demand, has_biased_norms, linear, norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.blocks.attention import Rope

__all__ = ["EncoderDescription", "EncoderLayer", "Net", "Pooling"]

Pooling = Literal["mean", "cls", "last", "none"]
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

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The forms of all tensors that it reads, optional ones included."""
        n, found = of.width, dict[str, TensorForm]()
        if of.find("attn_qkv.weight") is not None:
            found |= linear("attn_qkv", n, 3 * n)
        else:
            for part in "qkv":
                found |= linear(f"attn_{part}", n, n)
            for part in "qk":
                found |= norm(f"attn_{part}_norm", n, centred=True, optional=True)
        found |= linear("attn_output", n, n) | linear("ffn_down", "inner", n)
        if self.net.startswith("joined"):
            down = of.find("ffn_down.weight")
            found |= linear("ffn_up", n, "2 inner" if down is None else 2 * down.ne[0])
        else:
            found |= linear("ffn_up", n, "inner")
        if self.net.startswith("gated"):
            found |= linear("ffn_gate", n, "inner")
        if self.norms_first:
            found |= norm("attn_norm", n, centred=True, optional=True)
            return found | norm("ffn_norm", n, centred=True)
        for name in ("attn_output_norm", "layer_output_norm"):
            found |= norm(name, n, centred=True)
        return found | norm("attn_norm_2", n, centred=True, optional=True)


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
        pooling: how the vectors of all tokens become one vector; "none": they do not.
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

    def forms(self, tensors: Mapping[str, Tensor]) -> dict[str, TensorForm]:
        """The forms of all tensors that it reads, optional ones included.

        Args:
            tensors: of the file, by name.
        """
        width = self.width
        found = {
            "token_embd.weight": TensorForm((width, "vocabulary")),
            "token_types.weight": TensorForm(
                (width, "types of tokens"), optional=True, vector=True
            ),
            **norm("token_embd_norm", width, centred=True),
        }
        if self.positions:
            found["position_embd.weight"] = TensorForm((width, self.context_length))
        if self.layers and self.layers[-1].norms_first:
            found |= norm("output_norm", width, centred=True)
        if has_biased_norms(tensors):
            found |= demand(found, "output_norm.bias", "token_embd_norm.bias")
        found |= norm("cls.norm", width, centred=True, optional=True)
        ranks = "ranks"
        if "cls.output.weight" in tensors:
            found |= linear("cls", width, width) | linear("cls.output", width, ranks)
        else:
            found |= linear("cls", width, ranks)
        found["cls.weight"] = TensorForm(found["cls.weight"].ne, optional=True)
        return found | self.layer_forms(tensors, "")

    def layer_forms(self, tensors: Mapping[str, Tensor], prefix: str) -> dict[str, TensorForm]:
        """The forms of the tensors of all layers, whose names begin with ``prefix``."""
        found: dict[str, TensorForm] = {}
        for i, layer in enumerate(self.layers):
            at = f"{prefix}blk.{i}."
            of = layer.forms(FormContext(self.width, True, tensors, at))
            found |= {at + name: form for name, form in of.items()}
        return found
