"""KimiDelta: the delta rule with a decay for each element of a key (Kimi Delta Attention).

As Kimi Linear has it (Moonshot AI 2025). Not here: one decay for each head (delta_net.py), the
convolution (recurrent.py), where states lie (../kv/caches.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aggml import ops
from aggml.models.blocks.delta_net import unit
from aggml.models.blocks.recurrent import columns, convolution, join_parts, parts_of
from aggml.models.forms import FormContext, TensorForm, linear
from aggml.models.kv.room import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["KimiDelta"]

#: Added to the squares of lengths of queries and keys, whatever the model's norms add.
EPS: Final = 1e-6
PARTS: Final = ("q", "k", "v")


@dataclass(frozen=True, slots=True)
class KimiDelta:
    """Linear attention with the delta rule; each element of a key is forgotten at its own rate.

    Attributes:
        heads: of queries, keys and values.
        head: elements of a head.
        kernel: how many tokens the convolutions use.
    """

    heads: int
    head: int
    kernel: int

    @property
    def _inner(self) -> int:
        return self.heads * self.head

    def needs(self) -> Iterable[str]:
        """Its matrices, kernels and rates."""
        names = [f"{x}_{part}" for x in ("attn", "ssm_conv1d") for part in PARTS]
        names += ["ssm_f_a", "ssm_f_b", "ssm_g_a", "ssm_g_b", "ssm_beta", "ssm_norm", "attn_output"]
        return [*(f"{name}.weight" for name in names), "ssm_dt.bias", "ssm_a"]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """Its matrices, kernels and rates."""
        n = self._inner
        found: dict[str, TensorForm] = {}
        for part in PARTS:
            found |= linear(f"attn_{part}", of.width, n)
            found[f"ssm_conv1d_{part}.weight"] = TensorForm(
                (self.kernel, 1, n), vector=True, other=(self.kernel, n)
            )
        for gate in ("f", "g"):
            found |= linear(f"ssm_{gate}_a", of.width, self.head)
            found |= linear(f"ssm_{gate}_b", self.head, n)
        return {
            **found,
            **linear("ssm_beta", of.width, self.heads),
            "ssm_dt.bias": TensorForm((n,), vector=True),
            "ssm_a": TensorForm((1, self.heads), vector=True),
            "ssm_norm.weight": TensorForm((self.head,), vector=True),
            **linear("attn_output", n, of.width),
        }

    def caches(self) -> Mapping[str, State]:
        """Descriptions of the states: last tokens of the convolutions, a matrix of each head."""
        convolutions = {f"conv_{part}": State((self.kernel - 1) * self._inner) for part in PARTS}
        return {**convolutions, "delta": State(self.head * self._inner)}

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [head * heads, tokens]."""
        tokens = x.ne[1]
        mixed = [at.linear(f"attn_{part}", x) for part in PARTS]
        learn = ops.sigmoid(at.linear("ssm_beta", x))
        forget = ops.add(self._thin(at, "f", x), at.weight("ssm_dt.bias"))
        forget = ops.reshape_3d(ops.softplus(forget), self.head, self.heads, tokens)
        rate = ops.reshape_3d(at.weight("ssm_a"), 1, self.heads, 1)
        forget = ops.reshape_2d(ops.mul(forget, rate), self._inner, tokens)
        y = join_parts([self._part(at, mixed, learn, forget, part) for part in parts_of(at)])
        y = ops.reshape_3d(y, self.head, self.heads, tokens)
        y = ops.reshape_2d(at.rms_norm("ssm_norm", y), self._inner, tokens)
        return ops.mul(y, ops.sigmoid(self._thin(at, "g", x)))

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[head * heads, n] -> [width, n]."""
        return at.linear("attn_output", y)

    @staticmethod
    def _thin(at: Scope, gate: str, x: Tensor) -> Tensor:
        """A gate of each element, by two matrices with few elements between them."""
        return at.linear(f"ssm_{gate}_b", at.linear(f"ssm_{gate}_a", x))

    def _part(
        self,
        at: Scope,
        mixed: list[Tensor],
        learn: Tensor,
        forget: Tensor,
        part: tuple[int, int, int, int],
    ) -> Tensor:
        """One part of a step: [head * heads, tokens]."""
        i, _, tokens, sequences = part
        n, ne = self._inner, (self.head, self.heads, tokens, sequences)

        def convolve(name: str, x: Tensor) -> Tensor:
            y = convolution(
                at, i, columns(x, n, 0, part), f"ssm_conv1d_{name}.weight", f"conv_{name}"
            )
            return ops.reshape_4d(ops.silu(y), *ne)

        q, k, v = (convolve(name, x) for name, x in zip(PARTS, mixed, strict=True))
        state = ops.reshape_4d(at.recall("delta", i), self.head, self.head, self.heads, sequences)
        found = ops.gated_delta_net(
            unit(q, EPS), unit(k, EPS), v,
            ops.reshape_4d(ops.cont(columns(forget, n, 0, part)), *ne),
            ops.reshape_4d(
                ops.cont(columns(learn, self.heads, 0, part)), 1, self.heads, tokens, sequences
            ),
            state, at.history(i),
        )  # fmt: skip
        of_outputs = n * tokens * sequences
        whole = ops.reshape_1d(found, found.nelements)
        size = self.head * n * sequences * at.history(i)
        at.keep(
            "delta", i, ops.view_1d(whole, size, of_outputs * whole.nb[0]), read=True,
            latest_first=True,
        )  # fmt: skip
        return ops.reshape_2d(ops.view_1d(whole, of_outputs, 0), n, tokens * sequences)
