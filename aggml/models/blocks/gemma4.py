"""Blocks of gemma4: the end of a layer, and a net beside experts with norms of their own.

The end adds what the token's own embedding for this layer gives, and scales the layer's output. Not
here: these embeddings themselves (../decoder/step.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import ops
from aggml.models.forms import FormContext, TensorForm, linear, norm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.experts import Experts
    from aggml.models.blocks.feed_forward import FeedForward
    from aggml.models.blocks.scope import Scope

__all__ = ["BesideExperts", "LayerEnd"]


@dataclass(frozen=True, slots=True)
class LayerEnd:
    """What a layer does to its output.

    Attributes:
        layer: its number.
        size: elements of the embedding that each token has for this layer; 0: there is none.
    """

    layer: int
    size: int

    def needs(self) -> Iterable[str]:
        """The matrices and the norm."""
        names = ("inp_gate", "proj", "post_norm") if self.size else ()
        return [f"{name}.weight" for name in names]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices, the norm and the scale."""
        found = {"layer_output_scale.weight": TensorForm((1,), optional=True, vector=True)}
        if self.size:
            found |= linear("inp_gate", of.width, self.size) | linear("proj", self.size, of.width)
            found |= norm("post_norm", of.width, centred=of.centred)
        return found

    def build(self, at: Scope, x: Tensor, last: Tensor | None) -> Tensor:
        """[width, n] -> [width, n]; ``last`` is which tokens of the step these are, None: all."""
        if self.size:
            every = at.passed["embeddings of layers"]
            own = ops.view_2d(every, self.size, every.ne[1], every.nb[1], self.layer * every.nb[2])
            own = own if last is None else ops.get_rows(own, last)
            y = ops.mul(ops.gelu(at.linear("inp_gate", x)), own)
            x = ops.add(x, at.norm("post_norm", at.linear("proj", y)))
        scale = at.find("layer_output_scale.weight")
        return x if scale is None else ops.mul(x, scale)


@dataclass(frozen=True, slots=True)
class BesideExperts:
    """A net and experts, each with a norm before and after it; both outputs are added.

    Experts are chosen by the input itself, normalised and scaled (``ffn_gate_inp.scale``).

    Attributes:
        net: of all tokens.
        experts: of some.
    """

    net: FeedForward
    experts: Experts

    def needs(self) -> Iterable[str]:
        """The tensors of both, and their norms."""
        norms = ("ffn_norm", "post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")
        names = [f"{name}.weight" for name in norms]
        return [*names, "ffn_gate_inp.scale", *self.net.needs(), *self.experts.needs()]

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """The tensors of both, and their norms."""
        found = {**self.net.forms(of), **self.experts.forms(of)}
        for name in ("ffn_norm", "post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
            found |= norm(name, of.width, centred=of.centred)
        found["ffn_gate_inp.scale"] = TensorForm((of.width,), vector=True)
        return found

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, n] -> [width, n]."""
        y = at.norm("post_ffw_norm_1", self.net.build(at, at.norm("ffn_norm", x)))
        routed = ops.scale(ops.rms_norm(x, at.eps), x.ne[0] ** -0.5)
        routed = ops.mul(routed, at.weight("ffn_gate_inp.scale"))
        found = self.experts.build(at, at.norm("pre_ffw_norm_2", x), routed)
        return ops.add(y, at.norm("post_ffw_norm_2", found))
