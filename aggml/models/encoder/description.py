"""How an encoder is built, as values.

Here: the dataclasses. Not here: the graph (graph.py), the architectures (../architectures/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from aggml.models.forms import FormContext, TensorForm, demand, has_biased_norms, linear, norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.blocks.experts import Experts
    from aggml.models.blocks.rope import Rope

__all__ = ["EncoderDescription", "EncoderLayer", "Net", "Pooling", "TermPooling"]

Pooling = Literal["mean", "cls", "last", "none"]
TermPooling = Literal["max", "sum"]
Net = Literal["gelu", "gated gelu", "gated tanh", "gated silu", "joined gelu", "joined silu"]


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """Attention among all tokens of a text, then a feed-forward net.

    Attributes:
        rope: rotary positions; None: none.
        window: a token sees tokens at a distance of at most half of this; None: all tokens.
        net: the activation of the net, and whether it has a gate: "gated" with a matrix of its own,
            "joined" with gate and values as the halves of ``ffn_up``. "tanh" is gelu by tanh.
        norms_first: whether norms come before the blocks (modernbert), not after the residual sums
            (BERT).
        bare: whether the file may lack the norm before attention, as ModernBERT has it in its first
            layer.
        norms_after: whether there are norms after the blocks, too, before the residual sums.
        head_norms: whether each head of queries and keys is normalised.
        experts: instead of the net; None: there are none.
    """

    rope: Rope | None
    window: int | None
    net: Net
    norms_first: bool = False
    bare: bool = False
    norms_after: bool = False
    head_norms: bool = False
    experts: Experts | None = None

    def needs(self) -> list[str]:
        """Names of the tensors without which it cannot be built, as in "ffn_up.weight"."""
        parts = ["attn_output"]
        if self.experts is None:
            parts += ["ffn_up", "ffn_down"]
            parts += ["ffn_gate"] if self.net.startswith("gated") else []
        parts += ["ffn_norm"] if self.norms_first else ["attn_output_norm", "layer_output_norm"]
        parts += ["attn_norm"] if self.norms_first and not self.bare else []
        parts += ["post_attention_norm", "post_ffw_norm"] if self.norms_after else []
        parts += ["attn_q_norm", "attn_k_norm"] if self.head_norms else []
        names = [f"{part}.weight" for part in parts]
        return names if self.experts is None else [*names, *self.experts.needs()]

    def forms(self, of: FormContext, heads: tuple[int, int, int]) -> dict[str, TensorForm]:
        """The forms of all tensors that it reads, optional ones included.

        Args:
            of: the layer.
            heads: how many heads of queries, how many of keys and values, elements of a head.
        """
        n, found = of.width, dict[str, TensorForm]()
        rows, keys, head = heads[0] * heads[2], heads[1] * heads[2], heads[2]
        if of.find("attn_qkv.weight") is not None:
            found |= linear("attn_qkv", n, rows + 2 * keys)
        else:
            for part, wide in (("q", rows), ("k", keys), ("v", keys)):
                found |= linear(f"attn_{part}", n, wide)
            for part, wide in (("q", rows), ("k", keys)):
                found |= norm(
                    f"attn_{part}_norm", head if self.head_norms else wide, centred=of.centred,
                    optional=not self.head_norms,
                )  # fmt: skip
        found |= linear("attn_output", rows, n) | self._net_forms(of)
        if self.norms_after:
            for name in ("post_attention_norm", "post_ffw_norm"):
                found |= norm(name, n, centred=of.centred)
        if self.norms_first:
            found |= norm("attn_norm", n, centred=of.centred, optional=self.bare)
            return found | norm("ffn_norm", n, centred=of.centred)
        for name in ("attn_output_norm", "layer_output_norm"):
            found |= norm(name, n, centred=of.centred)
        return found | norm("attn_norm_2", n, centred=of.centred, optional=True)

    def _net_forms(self, of: FormContext) -> dict[str, TensorForm]:
        n = of.width
        if self.experts is not None:
            return self.experts.forms(of)
        found = linear("ffn_down", "inner", n)
        if self.net.startswith("joined"):
            down = of.find("ffn_down.weight")
            found |= linear("ffn_up", n, "2 inner" if down is None else 2 * down.ne[0])
        else:
            found |= linear("ffn_up", n, "inner")
        return found | linear("ffn_gate", n, "inner") if self.net.startswith("gated") else found


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
        kv_heads: heads of keys and values; 0: as many as of queries.
        head_length: elements of a head; 0: those of the width, divided among the heads.
        rms: whether norms are RMS norms, which do not subtract the mean.
        embedding_norm: whether embeddings are normalised (``token_embd_norm``).
        embedding_scale: embeddings are multiplied by it.
        last_norm: the name of the norm after the last layer, if norms come before the blocks.
        term_pooling: how a head that predicts masked words (``mlm``) makes one weight of a word
            of those of all tokens.
        term_logs: how often log(1 + x) is taken of such a weight.
        multi_left_out: how many first tokens of a text have no vector of their own, in models with
            a head for such vectors (``multi``).
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
    kv_heads: int = 0
    head_length: int = 0
    rms: bool = False
    embedding_norm: bool = True
    embedding_scale: float = 1.0
    last_norm: str = "output_norm"
    term_pooling: TermPooling = "max"
    term_logs: int = 1
    multi_left_out: int = 0

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.head_length or self.width // self.heads

    @property
    def keys(self) -> int:
        """How many heads of keys and values there are."""
        return self.kv_heads or self.heads

    @property
    def ordered(self) -> bool:
        """Whether the graph has positions as input, for embeddings or rotary positions."""
        return self.positions or any(layer.rope is not None for layer in self.layers)

    def needs(self) -> list[str]:
        """Names of the tensors that the file must have."""
        names = ["token_embd.weight"]
        if self.embedding_norm:
            names.append("token_embd_norm.weight")
        if self.positions:
            names.append("position_embd.weight")
        for i, layer in enumerate(self.layers):
            names += [f"blk.{i}.{name}" for name in layer.needs()]
        if self.layers and self.layers[-1].norms_first:
            names.append(f"{self.last_norm}.weight")
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
        }
        centred = not self.rms
        if self.embedding_norm:
            found |= norm("token_embd_norm", width, centred=centred)
        if self.positions:
            found["position_embd.weight"] = TensorForm((width, self.context_length))
        if self.layers and self.layers[-1].norms_first:
            found |= norm(self.last_norm, width, centred=centred)
        for name, form in (
            linear("dense_2", width, "dense") | linear("dense_3", "dense", width)
        ).items():
            found[name] = replace(form, optional=True)
        if has_biased_norms(tensors):
            found |= demand(found, "output_norm.bias", "token_embd_norm.bias")
        found |= norm("cls.norm", width, centred=True, optional=True)
        ranks = "ranks"
        if "cls.output.weight" in tensors:
            found |= linear("cls", width, width) | linear("cls.output", width, ranks)
        else:
            found |= linear("cls", width, ranks)
        found["cls.weight"] = TensorForm(found["cls.weight"].ne, optional=True)
        found |= linear("sparse", width, 1)
        found["sparse.weight"] = TensorForm((width, 1), optional=True)
        found |= linear("multi", width, "vectors of tokens")
        found["multi.weight"] = replace(found["multi.weight"], optional=True)
        if "mlm.dense.weight" in tensors:
            found |= linear("mlm.dense", width, width) | norm("mlm.norm", width, centred=True)
            found |= linear("mlm.output", width, "vocabulary")
            found["mlm.output.weight"] = replace(found["mlm.output.weight"], optional=True)
        for rope in (layer.rope for layer in self.layers if layer.rope is not None):
            if rope.factors is not None:
                found[rope.factors] = TensorForm((rope.dims // 2,), optional=True, vector=True)
        return found | self.layer_forms(tensors, "")

    def layer_forms(self, tensors: Mapping[str, Tensor], prefix: str) -> dict[str, TensorForm]:
        """The forms of the tensors of all layers, whose names begin with ``prefix``."""
        found: dict[str, TensorForm] = {}
        for i, layer in enumerate(self.layers):
            at = f"{prefix}blk.{i}."
            heads = self.heads, self.keys, self.head
            of = layer.forms(FormContext(self.width, not self.rms, tensors, at), heads)
            found |= {at + name: form for name, form in of.items()}
        return found
