"""RWKV 6: TimeMix6 mixes tokens, ChannelMix6 mixes channels; both use the previous token.

Here: these two parts of a layer (Peng et al. 2024), and the halving of every so many layers'
output. Not here: where states lie (../kv/caches.py).
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

__all__ = ["ChannelMix6", "Halved", "TimeMix6"]

NORM_EPS: Final = 64e-5  # of the norm of each head
BLENDS: Final = "wkvrg"  # what needs a blend of its own of a token with the previous one


@dataclass(frozen=True, slots=True)
class TimeMix6:
    """Each head has a matrix as its state: it decays, and each token adds to it.

    How much of the previous token is blended in depends on the token itself, and so does the decay.

    Attributes:
        width: elements of all heads together.
        head: elements of a head.
    """

    width: int
    head: int

    def needs(self) -> Iterable[str]:
        """The matrices and vectors; the shares of the blends have one of two sets of names."""
        names = [
            "w1", "w2", "lerp_x", "first", "decay", "decay_w1", "decay_w2", "key", "value",
            "receptance", "gate", "ln", "output",
        ]  # fmt: skip
        return [*(f"time_mix_{name}.weight" for name in names), "time_mix_ln.bias"]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices, and the vectors of shares and biases."""
        n, blends = self.width, len(BLENDS)
        found = {
            f"time_mix_{name}.weight": TensorForm((n,), vector=True, flat=True)
            for name in ("lerp_x", "first", "decay", "ln")
        }
        found["time_mix_ln.bias"] = TensorForm((n,), vector=True)
        if of.find("time_mix_lerp_fused.weight") is not None:
            form = TensorForm((blends * n,), vector=True, flat=True)
            found["time_mix_lerp_fused.weight"] = form
        else:
            form = TensorForm((n,), vector=True, flat=True)
            found |= {f"time_mix_lerp_{name}.weight": form for name in BLENDS}
        middle = of.find("time_mix_w2.weight")
        rank: int | str = "rank of blends" if middle is None else middle.ne[0]
        whole = f"{blends} {rank}" if isinstance(rank, str) else blends * rank
        found["time_mix_w1.weight"] = TensorForm((n, whole))
        found["time_mix_w2.weight"] = TensorForm((rank, n, blends))
        found["time_mix_decay_w1.weight"] = TensorForm((n, "rank of the decay"))
        found["time_mix_decay_w2.weight"] = TensorForm(("rank of the decay", n))
        for name in ("key", "value", "receptance", "gate", "output"):
            found |= linear(f"time_mix_{name}", n, n)
        return found

    def caches(self) -> Mapping[str, State]:
        """Descriptions of the states: the last token, and the matrices of all heads."""
        return {"token": State(self.width), "matrix": State(self.width * self.head)}

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [width, tokens]."""
        w, k, v, r, g = self._blend(at, x)
        w = ops.tanh(ops.mul_mat(at.weight("time_mix_decay_w1.weight"), w))
        w = ops.mul_mat(at.weight("time_mix_decay_w2.weight"), w)
        w = ops.add(w, self._vector(at, "decay"))
        w = ops.exp(ops.neg(ops.exp(w)))
        k, v, r = (
            at.linear(f"time_mix_{name}", each)
            for name, each in (("key", k), ("value", v), ("receptance", r))
        )
        y = self._recur(at, (self._heads(k), self._heads(v), self._heads(r), self._heads(w)))
        y = ops.reshape_2d(ops.norm(self._heads(y), NORM_EPS), self.width, x.ne[1])
        y = ops.add(ops.mul(y, self._vector(at, "ln")), at.weight("time_mix_ln.bias"))
        return ops.mul(y, ops.silu(at.linear("time_mix_gate", g)))

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[width, n] -> [width, n]."""
        return at.linear("time_mix_output", y)

    def _heads(self, x: Tensor) -> Tensor:
        """[head, heads, tokens]."""
        return ops.reshape_3d(x, self.head, self.width // self.head, x.nelements // self.width)

    def _vector(self, at: Scope, name: str) -> Tensor:
        return ops.reshape_1d(at.weight(f"time_mix_{name}.weight"), self.width)

    def _blend(self, at: Scope, x: Tensor) -> list[Tensor]:
        """Each token blended with the previous one in the ways `BLENDS`."""
        tokens, n = x.ne[1], len(BLENDS)
        change = ops.sub(previous(at, "token", x), x)
        first = ops.add(ops.mul(change, self._vector(at, "lerp_x")), x)
        low = ops.tanh(ops.mul_mat(at.weight("time_mix_w1.weight"), first))
        low = ops.reshape_3d(low, low.ne[0] // n, n, tokens)  # [rank, BLENDS, tokens]
        low = ops.cont(ops.permute(low, 0, 2, 1, 3))
        own = ops.mul_mat(at.weight("time_mix_w2.weight"), low)  # [width, tokens, BLENDS]
        together = at.find("time_mix_lerp_fused.weight")
        found = []
        for i, name in enumerate(BLENDS):
            if together is None:
                share = self._vector(at, f"lerp_{name}")
            else:
                share = ops.view_1d(together, self.width, i * self.width * together.nb[0])
            each = ops.view_2d(own, self.width, tokens, own.nb[1], i * own.nb[2])
            found.append(ops.add(ops.mul(ops.add(each, share), change), x))
        return found

    def _recur(self, at: Scope, taken: tuple[Tensor, ...]) -> Tensor:
        """The output of the recurrence for each token: [width, tokens]."""
        bonus = at.weight("time_mix_first.weight")
        bonus = ops.reshape_2d(bonus, self.head, self.width // self.head)

        def step(now: list[Tensor], states: Tensor) -> Tensor:
            k, v, r, w = now
            return ops.rwkv_wkv6(k, v, r, bonus, w, states)

        return run_recurrence(at, "matrix", taken, step)


@dataclass(frozen=True, slots=True)
class ChannelMix6:
    """The feed-forward net, with ReLU squared and a gate, of tokens blended with the previous ones.

    Attributes:
        width: elements of a token.
    """

    width: int

    def needs(self) -> Iterable[str]:
        """The matrices."""
        names = ("lerp_k", "lerp_r", "key", "value", "receptance")
        return [f"channel_mix_{name}.weight" for name in names]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices, and the shares of the previous token."""
        share = TensorForm((of.width,), vector=True, flat=True)
        return {
            "channel_mix_lerp_k.weight": share,
            "channel_mix_lerp_r.weight": replace(share),
            **linear("channel_mix_key", of.width, "inner"),
            **linear("channel_mix_value", "inner", of.width),
            **linear("channel_mix_receptance", of.width, of.width),
        }

    def caches(self) -> Mapping[str, State]:
        """Description of the state: the last token."""
        return {"token_of_net": State(self.width)}

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [2 * width, tokens]: the blend of the net, and that of the gate."""
        change = ops.sub(previous(at, "token_of_net", x), x)
        net, gate = (
            ops.reshape_1d(at.weight(f"channel_mix_lerp_{name}.weight"), self.width)
            for name in "kr"
        )
        return ops.concat(ops.add(ops.mul(change, net), x), ops.add(ops.mul(change, gate), x), 0)

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[2 * width, n] -> [width, n]."""
        row, size = y.nb[1], self.width * y.nb[0]
        k, r = (ops.cont(ops.view_2d(y, self.width, y.ne[1], row, i * size)) for i in (0, 1))
        inner = ops.sqr(ops.relu(at.linear("channel_mix_key", k)))
        gate = ops.sigmoid(at.linear("channel_mix_receptance", r))
        return ops.mul(gate, at.linear("channel_mix_value", inner))


@dataclass(frozen=True, slots=True)
class Halved:
    """Halves the output of a layer, so that it stays in the range of f16 in deep models."""

    def needs(self) -> Iterable[str]:
        """Nothing."""
        return ()

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """Nothing."""
        return {}

    def build(self, at: Scope, x: Tensor, last: Tensor | None) -> Tensor:
        """[width, n] -> [width, n]."""
        return ops.scale(x, 0.5)
