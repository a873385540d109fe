"""DeltaNet: each head's state is a matrix; every token corrects it by the error it makes.

The gated delta rule of Yang et al. 2024, as Qwen3-Next and Qwen3.5 have it. Not here: the
convolution before it (recurrent.py), where states lie (../kv/caches.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import ops
from aggml.models.blocks.recurrent import columns, convolve, join_parts, parts_of
from aggml.models.forms import FormContext, TensorForm, linear
from aggml.models.kv.room import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["DeltaNet", "unit"]


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Linear attention with a gate and the delta rule.

    ``attn_qkv`` has the rows of queries, then keys, then values; ``attn_gate`` has those of gates.
    Older files have all of them in ``ssm_in``, grouped by heads of keys.

    Attributes:
        key_heads, value_heads: how many there are; consecutive value heads share a key head.
        head: elements of a head, of keys and of values.
        kernel: how many tokens the convolution uses.
        tiled: value head i uses key head i modulo ``key_heads`` instead, and the rates come from
            two matrices: ``ssm_beta`` and ``ssm_alpha``.
    """

    key_heads: int
    value_heads: int
    head: int
    kernel: int
    tiled: bool = False

    @property
    def _keys(self) -> int:
        return self.key_heads * self.head

    @property
    def _values(self) -> int:
        return self.value_heads * self.head

    def needs(self) -> Iterable[str]:
        """The tensors that all layouts of files have."""
        rates = ("ssm_beta.weight", "ssm_alpha.weight") if self.tiled else ("ssm_ba.weight",)
        return (
            "ssm_conv1d.weight", "ssm_dt.bias", "ssm_a", *rates, "ssm_norm.weight",
            "ssm_out.weight",
        )  # fmt: skip

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The tensors of the layout that the file has."""
        n, heads, values = 2 * self._keys + self._values, self.value_heads, self._values
        if self.tiled or of.find("attn_qkv.weight") is not None:
            found = linear("attn_qkv", of.width, n) | linear("attn_gate", of.width, values)
        else:
            found = linear("ssm_in", of.width, n + values)
        if self.tiled:
            found |= linear("ssm_beta", of.width, heads) | linear("ssm_alpha", of.width, heads)
        else:
            found |= linear("ssm_ba", of.width, 2 * heads)
        return {
            **found,
            "ssm_conv1d.weight": TensorForm((self.kernel, n), vector=True),
            "ssm_conv1d.bias": TensorForm((n,), optional=True, vector=True),
            "ssm_dt.bias": TensorForm((heads,), vector=True),
            "ssm_a": TensorForm((heads,), vector=True),
            "ssm_norm.weight": TensorForm((self.head,), vector=True),
            **linear("ssm_out", values, of.width),
        }

    def caches(self) -> Mapping[str, State]:
        """Descriptions of the states: the convolution's last tokens, and a matrix of each head."""
        return {
            "conv": State((self.kernel - 1) * (2 * self._keys + self._values)),
            "delta": State(self.head * self._values),
        }

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [head * value_heads, tokens]."""
        mixed, gate = self._products(at, x)
        names = ("ssm_beta", "ssm_alpha") if self.tiled else ("ssm_ba",)
        rates = [at.linear(name, x) for name in names]
        y = join_parts([self._part(at, mixed, rates, part) for part in parts_of(at)])
        y = ops.reshape_3d(y, self.head, self.value_heads, x.ne[1])
        y = ops.reshape_2d(at.rms_norm("ssm_norm", y), self._values, x.ne[1])
        return ops.mul(y, ops.silu(gate))

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[head * value_heads, n] -> [width, n]."""
        return at.linear("ssm_out", y)

    def _products(self, at: Scope, x: Tensor) -> tuple[Tensor, Tensor]:
        """Two tensors [elements, tokens]: queries, keys and values in one; gates in the other."""
        if at.find("attn_qkv.weight") is not None:
            return at.linear("attn_qkv", x), at.linear("attn_gate", x)
        both, tokens = at.linear("ssm_in", x), x.ne[1]
        wide = self._values // self.key_heads
        size = (2 * self.head + 2 * wide) * both.nb[0]

        def of(n: int, offset: int) -> Tensor:
            each = ops.view_3d(
                both, n, self.key_heads, tokens, size, both.nb[1], offset * both.nb[0]
            )
            return ops.cont_2d(each, n * self.key_heads, tokens)

        q, k, v = of(self.head, 0), of(self.head, self.head), of(wide, 2 * self.head)
        return ops.concat(ops.concat(q, k, 0), v, 0), of(wide, 2 * self.head + wide)

    def _part(
        self, at: Scope, mixed: Tensor, rates: list[Tensor], part: tuple[int, int, int, int]
    ) -> Tensor:
        """One part of a step: [head * value_heads, tokens]."""
        i, _, tokens, sequences = part
        learn, forget = self._rates(at, rates, part)
        mixed = convolve(at, i, columns(mixed, mixed.ne[0], 0, part))

        def of(heads: int, offset: int) -> Tensor:
            return ops.view_4d(
                mixed, self.head, heads, tokens, sequences,
                self.head * mixed.nb[0], mixed.nb[1], mixed.nb[2], offset * mixed.nb[0],
            )  # fmt: skip

        q, k = (
            self._spread(unit(of(self.key_heads, offset), at.eps)) for offset in (0, self._keys)
        )
        v = of(self.value_heads, 2 * self._keys)
        state = ops.reshape_4d(
            at.recall("delta", i), self.head, self.head, self.value_heads, sequences
        )
        found = ops.gated_delta_net(q, k, v, forget, learn, state, at.history(i))
        n = self._values * tokens * sequences
        whole = ops.reshape_1d(found, found.nelements)
        size = self.head * self._values * sequences * at.history(i)
        new = ops.view_1d(whole, size, n * whole.nb[0])
        at.keep("delta", i, new, read=True, latest_first=True)
        return ops.reshape_2d(ops.view_1d(whole, n, 0), self._values, tokens * sequences)

    def _rates(
        self, at: Scope, rates: list[Tensor], part: tuple[int, int, int, int]
    ) -> tuple[Tensor, Tensor]:
        """How much each head learns, and the logarithm of its decay: [1, heads, ...]."""
        heads = self.value_heads
        if self.tiled:
            learn, forget = (ops.cont(columns(x, heads, 0, part)) for x in rates)
        else:
            learn, forget = self._split_rates(rates[0], part)
        forget = ops.softplus(ops.add(forget, at.weight("ssm_dt.bias")))
        forget = ops.mul(forget, at.weight("ssm_a"))
        ne = 1, heads, *part[2:]
        return ops.reshape_4d(ops.sigmoid(learn), *ne), ops.reshape_4d(forget, *ne)

    def _split_rates(self, rates: Tensor, part: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
        """The two rates of each value head, which lie side by side for each key head."""
        _, first, tokens, sequences = part
        each, row = self.value_heads // self.key_heads, rates.nb[1]

        def of(offset: int) -> Tensor:
            view = ops.view_4d(
                rates, each, self.key_heads, tokens, sequences,
                2 * each * rates.nb[0], row, tokens * row, first * row + offset * rates.nb[0],
            )  # fmt: skip
            return ops.cont_3d(view, self.value_heads, tokens, sequences)

        return of(0), of(each)

    def _spread(self, x: Tensor) -> Tensor:
        """[head, key heads, ...] -> [head, value heads, ...]: repeats the heads that are shared."""
        times, (tokens, sequences) = self.value_heads // self.key_heads, x.ne[2:]
        if times == 1:
            return x
        if self.tiled:
            return ops.repeat_4d(x, self.head, self.value_heads, tokens, sequences)
        n = tokens * sequences
        x = ops.reshape_4d(x, self.head, 1, self.key_heads, n)
        x = ops.repeat_4d(x, self.head, times, self.key_heads, n)
        return ops.reshape_4d(x, self.head, self.value_heads, tokens, sequences)


def unit(x: Tensor, eps: float) -> Tensor:
    """The rows scaled to length 1; ``eps`` is added to the square of the length."""
    n = x.ne[0]
    return ops.scale(ops.rms_norm(x, eps / n), 1 / math.sqrt(n))
