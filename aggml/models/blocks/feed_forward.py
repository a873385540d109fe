"""FeedForward: two or three linear maps with an activation between them.

Here: gated nets, with gate and values in one tensor or in two; nets without a gate. Not here:
experts (experts.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from aggml import Unsupported, ops
from aggml.models.forms import FormContext, TensorForm, linear, norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["ALONE", "JOINED", "SPLIT", "Activation", "FeedForward", "Ungated", "bounded_swiglu"]

Activation = Literal["silu", "gelu", "gelu_erf", "relu", "swiglu_oai"]
Ungated = Literal["silu", "gelu", "gelu_erf", "relu", "relu_sqr"]

#: ``activation(gate) * up``: SPLIT takes two tensors, JOINED the two halves of each row of one.
SPLIT: Final[dict[Activation, Callable[[Tensor, Tensor], Tensor]]] = {
    "silu": ops.swiglu_split,
    "gelu": ops.geglu_split,
    "gelu_erf": ops.geglu_erf_split,
    "relu": ops.reglu_split,
    "swiglu_oai": ops.swiglu_oai,
}
JOINED: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "silu": ops.swiglu,
    "gelu": ops.geglu,
    "gelu_erf": ops.geglu_erf,
    "relu": ops.reglu,
    "swiglu_oai": ops.swiglu_oai,
}
#: Activations without a gate.
ALONE: Final[dict[Ungated, Callable[[Tensor], Tensor]]] = {
    "silu": ops.silu,
    "gelu": ops.gelu,
    "gelu_erf": ops.gelu_erf,
    "relu": ops.relu,
    "relu_sqr": lambda x: ops.sqr(ops.relu(x)),
}


@dataclass(frozen=True, slots=True)
class FeedForward:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))).

    Attributes:
        activation: of the gate; without a gate, of up(x). "relu_sqr" is for nets without a gate,
            "swiglu_oai", which bounds its operands at 7, for nets with one.
        joined: ``ffn_up`` has the rows of the gate first, then its own.
        suffix: of the tensors' names: "_shexp" for a shared expert.
        gated: whether there is a gate.
        xielu: the parameters of `aggml.ops.xielu`, which is the activation instead, of a net
            without a gate; None: it is not.
        cutoff: of each token's values of the gate, those less than so many standard deviations
            above their mean count as 0, and others by what they exceed that; None: all count.
        limit: c bounds the activation of the gate at c, and up(x) at -c and c; 0: nothing does.
            It is for "silu".
        inner_norm: the name of a norm before ``ffn_down``, of a net with a gate or without; None:
            there is none.
    """

    activation: Activation | Literal["relu_sqr"] = "silu"
    joined: bool = False
    suffix: str = ""
    gated: bool = True
    xielu: tuple[float, float, float, float] | None = None
    cutoff: float | None = None
    limit: float = 0.0
    inner_norm: str | None = None

    def needs(self) -> Iterable[str]:
        """The matrices, and the norm before the last one."""
        parts = ("up", "down") if self.joined or not self.gated else ("gate", "up", "down")
        names = [f"ffn_{part}{self.suffix}.weight" for part in parts]
        return names if self.inner_norm is None else [*names, f"{self.inner_norm}.weight"]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices, whose inner size only the file gives."""
        name = f"inner{self.suffix}"
        found = linear(f"ffn_down{self.suffix}", name, of.width)
        if self.inner_norm is not None:
            found |= norm(self.inner_norm, name, centred=of.centred)
        if self.joined:
            down = of.find(f"ffn_down{self.suffix}.weight")
            return found | linear(
                f"ffn_up{self.suffix}", of.width, f"2 {name}" if down is None else 2 * down.ne[0]
            )
        found |= linear(f"ffn_up{self.suffix}", of.width, name)
        return found | linear(f"ffn_gate{self.suffix}", of.width, name) if self.gated else found

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, n] -> [width, n]."""
        up = at.linear(f"ffn_up{self.suffix}", x)
        if self.xielu is not None:
            inner = ops.xielu(up, *self.xielu)
        elif not self.gated:
            if self.activation == "swiglu_oai":
                raise Unsupported(f"[FeedForward] {self.activation} is for nets with a gate")
            inner = ALONE[self.activation](up)
        elif self.activation == "relu_sqr":
            raise Unsupported(f"[FeedForward] {self.activation} is for nets without a gate")
        elif self.joined:
            inner = JOINED[self.activation](up)
        else:
            gate = at.linear(f"ffn_gate{self.suffix}", x)
            gate = gate if self.cutoff is None else _cut(gate, self.cutoff)
            if self.limit:
                inner = bounded_swiglu(gate, up, self.limit)
            else:
                inner = SPLIT[self.activation](gate, up)
        inner = inner if self.inner_norm is None else at.norm(self.inner_norm, inner)
        return at.linear(f"ffn_down{self.suffix}", inner)


def bounded_swiglu(gate: Tensor, up: Tensor, limit: float, *, before: bool = False) -> Tensor:
    """The silu of ``gate``, at most ``limit``, times ``up`` within -``limit`` and ``limit``.

    With ``before`` it is ``gate`` that is at most ``limit``, before its silu is taken.
    """
    least = float("-inf")
    if before:
        opened = ops.silu(ops.clamp(gate, least, limit))
    else:
        opened = ops.clamp(ops.silu(gate), least, limit)
    return ops.mul(opened, ops.clamp(up, -limit, limit))


def _cut(x: Tensor, deviations: float) -> Tensor:
    """What the values of each row exceed their mean plus so many standard deviations; 0 below."""
    x = ops.sub(x, ops.mean(x))
    deviation = ops.sqrt(ops.mean(ops.sqr(x)))  # of all values, not an estimate from a sample
    return ops.relu(ops.sub(x, ops.scale(deviation, deviations)))
