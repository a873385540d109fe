"""RWKV 7: TimeMix mixes tokens, ChannelMix mixes channels; both use the previous token.

Here: these two parts of a layer (Peng et al. 2025). Not here: where states lie
(../kv/caches.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from aggml import ops
from aggml.models.blocks.recurrent import previous, run_recurrence
from aggml.models.forms import FormContext, TensorForm, linear
from aggml.models.kv.room import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["ChannelMix", "TimeMix"]

DECAY: Final = -0.606531  # -exp(-1/2): no element of a state loses more than 46 % in a token
NORM_EPS: Final = 64e-5  # of the norm of each head
UNIT_EPS: Final = 1e-12
BLENDS: Final = 6  # blends of a token with the previous one: for r, w, k, v, a and g


@dataclass(frozen=True, slots=True)
class TimeMix:
    """Each head has a matrix as its state: it decays, forgets along one direction, adds each token.

    The values of the first layer are mixed into those of all other layers.

    Attributes:
        width: elements of all heads together.
        head: elements of a head.
        first: whether this is the first layer.
        gated: whether the output is multiplied by a gate.
    """

    width: int
    head: int
    first: bool
    gated: bool = True

    def needs(self) -> Iterable[str]:
        """The matrices."""
        names = [
            "w0", "w1", "w2", "a0", "a1", "a2", "lerp_fused", "k_k", "k_a", "r_k", "key", "value",
            "receptance", "ln", "output",
        ]  # fmt: skip
        names += [] if self.first else ["v0", "v1", "v2"]
        names += ["g1", "g2"] if self.gated else []
        return [*(f"time_mix_{name}.weight" for name in names), "time_mix_ln.bias"]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices, and the vectors of shares and biases."""
        n = self.width
        found = {
            f"time_mix_{name}.weight": TensorForm((n,), vector=True, flat=True)
            for name in ("w0", "a0", "k_k", "k_a", "r_k", "ln")
        }
        found["time_mix_ln.bias"] = TensorForm((n,), vector=True)
        found["time_mix_lerp_fused.weight"] = TensorForm((n, 1, 1, BLENDS), vector=True)
        for name in "wag" if self.gated else "wa":
            found |= self._low_rank_forms(name)
        values = self._low_rank_forms("v") | {
            "time_mix_v0.weight": TensorForm((n,), vector=True, flat=True)
        }
        # llama.cpp demands these in the first layer, too, which does not use them
        found |= {name: replace(x, optional=self.first) for name, x in values.items()}
        for name in ("key", "value", "receptance", "output"):
            found |= linear(f"time_mix_{name}", n, n)
        return found

    def _low_rank_forms(self, name: str) -> dict[str, TensorForm]:
        """The forms of two matrices of low rank."""
        return {
            f"time_mix_{name}1.weight": TensorForm((self.width, f"rank of {name}")),
            f"time_mix_{name}2.weight": TensorForm((f"rank of {name}", self.width)),
        }

    def caches(self) -> Mapping[str, State]:
        """Descriptions of the states: the last token, and the matrices of all heads."""
        return {"token": State(self.width), "matrix": State(self.width * self.head)}

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [width, tokens]."""
        r, w, k, v, a, g = self._blend(at, x)
        r = at.linear("time_mix_receptance", r)
        w = ops.sigmoid(_low_rank(at, "w", w, "tanh"))
        w = ops.exp(ops.scale(w, DECAY))
        k = at.linear("time_mix_key", k)
        v = self._values(at, v)
        a = ops.sigmoid(_low_rank(at, "a", a))
        unit = ops.l2_norm(self._heads(ops.mul(k, at.weight("time_mix_k_k.weight"))), UNIT_EPS)
        scaled = ops.mul(k, at.weight("time_mix_k_a.weight"))
        k = ops.add(k, ops.sub(ops.mul(a, scaled), scaled))
        r, w, k, v, a = (self._heads(each) for each in (r, w, k, v, a))
        taken = (r, w, k, v, ops.neg(unit), ops.mul(unit, a))
        y = run_recurrence(at, "matrix", taken, _step)
        y = ops.norm(self._heads(y), NORM_EPS)
        y = ops.reshape_2d(y, self.width, x.ne[1])
        y = ops.mul(y, at.weight("time_mix_ln.weight"))
        y = ops.add(y, at.weight("time_mix_ln.bias"))
        bonus = ops.reshape_2d(at.weight("time_mix_r_k.weight"), self.head, r.ne[1])
        own = ops.mul(v, ops.sum_rows(ops.mul(ops.mul(k, r), bonus)))
        y = ops.add(y, ops.reshape_2d(own, self.width, x.ne[1]))
        return ops.mul(y, self._gate(at, g)) if self.gated else y

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[width, n] -> [width, n]."""
        return at.linear("time_mix_output", y)

    def _heads(self, x: Tensor) -> Tensor:
        """[head, heads, tokens]."""
        return ops.reshape_3d(x, self.head, self.width // self.head, x.nelements // self.width)

    def _blend(self, at: Scope, x: Tensor) -> list[Tensor]:
        """Each token blended with the previous one in BLENDS ways: r, w, k, v, a and g."""
        tokens = x.ne[1]
        change = ops.sub(previous(at, "token", x), x)
        change = ops.repeat_4d(change, self.width, tokens, 1, BLENDS)
        share = at.weight("time_mix_lerp_fused.weight")
        share = ops.reshape_4d(share, self.width, 1, 1, BLENDS)
        all_of = ops.add(ops.mul(change, share), x)
        row, size = all_of.nb[1], all_of.nb[3]
        return [ops.view_2d(all_of, self.width, tokens, row, i * size) for i in range(BLENDS)]

    def _values(self, at: Scope, x: Tensor) -> Tensor:
        """Values [width, tokens], mixed with those of the first layer."""
        v = at.linear("time_mix_value", x)
        if self.first:
            at.passed["first_values"] = v
            return v
        share = ops.sigmoid(_low_rank(at, "v", x))
        return ops.add(v, ops.mul(ops.sub(at.passed["first_values"], v), share))

    def _gate(self, at: Scope, x: Tensor) -> Tensor:
        inner = ops.sigmoid(ops.mul_mat(at.weight("time_mix_g1.weight"), x))
        return ops.mul_mat(at.weight("time_mix_g2.weight"), inner)


def _step(taken: list[Tensor], states: Tensor) -> Tensor:
    r, w, k, v, a, b = taken
    return ops.rwkv_wkv7(r, w, k, v, a, b, states)


def _low_rank(at: Scope, name: str, x: Tensor, between: str | None = None) -> Tensor:
    """Two matrices of low rank, with tanh or nothing between them, and a bias."""
    y = ops.mul_mat(at.weight(f"time_mix_{name}1.weight"), x)
    y = ops.tanh(y) if between == "tanh" else y
    y = ops.mul_mat(at.weight(f"time_mix_{name}2.weight"), y)
    return ops.add(y, at.weight(f"time_mix_{name}0.weight"))


@dataclass(frozen=True, slots=True)
class ChannelMix:
    """The feed-forward net, with ReLU squared; its input is a token blended with the previous one.

    Attributes:
        width: elements of a token.
    """

    width: int

    def needs(self) -> Iterable[str]:
        """The matrices."""
        return [f"channel_mix_{name}.weight" for name in ("lerp_k", "key", "value")]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices, and the share of the previous token."""
        return {
            "channel_mix_lerp_k.weight": TensorForm((of.width,), vector=True, flat=True),
            **linear("channel_mix_key", of.width, "inner"),
            **linear("channel_mix_value", "inner", of.width),
        }

    def caches(self) -> Mapping[str, State]:
        """Description of the state: the last token."""
        return {"token_of_net": State(self.width)}

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [width, tokens], blended."""
        change = ops.sub(previous(at, "token_of_net", x), x)
        share = ops.reshape_1d(at.weight("channel_mix_lerp_k.weight"), self.width)
        return ops.add(ops.mul(change, share), x)

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[width, n] -> [width, n]."""
        inner = ops.sqr(ops.relu(at.linear("channel_mix_key", y)))
        return at.linear("channel_mix_value", inner)
