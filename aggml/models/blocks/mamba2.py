"""Mamba2: each head has a state that decays and to which every token adds (Dao and Gu 2024).

Here: the mixer. Not here: the convolution before it (recurrent.py), where states lie
(../kv/caches.py).
"""

from __future__ import annotations

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

__all__ = ["Mamba2"]


@dataclass(frozen=True, slots=True)
class Mamba2:
    """The selective scan of Mamba 2.

    Attributes:
        inner: elements of all heads together.
        heads: how many there are.
        groups: how many groups of heads; the heads of a group share B and C, the vectors with which
            the state is written and read.
        state: elements of the state for each element of a head.
        kernel: how many tokens the convolution uses.
        norm_optional: whether some files have no norm after the scan.
    """

    inner: int
    heads: int
    groups: int
    state: int
    kernel: int
    norm_optional: bool = False

    @property
    def _channels(self) -> int:
        """Channels of the convolution: the input of the scan, B and C."""
        return self.inner + 2 * self.groups * self.state

    def needs(self) -> Iterable[str]:
        """The matrices, kernels, rates and the norm."""
        norms = () if self.norm_optional else ("ssm_norm.weight",)
        return (
            "ssm_in.weight", "ssm_conv1d.weight", "ssm_dt.bias", "ssm_a", "ssm_d", *norms,
            "ssm_out.weight",
        )  # fmt: skip

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices, kernels, rates and the norm."""
        n, heads = self._channels, self.heads
        return {
            **linear("ssm_in", of.width, self.inner + n + heads),
            "ssm_conv1d.weight": TensorForm((self.kernel, n), vector=True),
            "ssm_conv1d.bias": TensorForm((n,), optional=True, vector=True),
            "ssm_dt.bias": TensorForm((heads,), vector=True),
            "ssm_a": TensorForm((1, heads), vector=True),
            "ssm_d": TensorForm((1, heads), vector=True),
            "ssm_norm.weight": TensorForm(
                (self.inner // self.groups, self.groups), optional=self.norm_optional, vector=True
            ),
            **linear("ssm_out", self.inner, of.width),
        }

    def caches(self) -> Mapping[str, State]:
        """Descriptions of the states: the convolution's last tokens, and the state of the scan."""
        return {
            "conv": State((self.kernel - 1) * self._channels),
            "scan": State(self.state * self.inner),
        }

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [inner, tokens]."""
        both = at.linear("ssm_in", x)
        return join_parts([self._part(at, both, part) for part in parts_of(at)])

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[inner, n] -> [width, n]."""
        return at.linear("ssm_out", y)

    def _part(self, at: Scope, both: Tensor, part: tuple[int, int, int, int]) -> Tensor:
        """One part of a step: [inner, tokens]."""
        i, _, tokens, sequences = part
        head, numbers = self.inner // self.heads, self.groups * self.state
        gate = ops.cont(columns(both, self.inner, 0, part))
        mixed = convolve(at, i, columns(both, self._channels, self.inner, part))
        step = columns(both, self.heads, self.inner + self._channels, part)
        step = ops.add(ops.cont(step), at.weight("ssm_dt.bias"))

        def of(size: int, count: int, offset: int) -> Tensor:
            return ops.view_4d(
                mixed, size, count, tokens, sequences,
                size * mixed.nb[0], mixed.nb[1], mixed.nb[2], offset * mixed.nb[0],
            )  # fmt: skip

        into = of(head, self.heads, 0)
        states, row = at.caches["scan"], self.state * self.inner
        found = ops.ssm_scan(
            ops.reshape_4d(states, self.state, head, self.heads, states.ne[1]),
            into,
            step,
            at.weight("ssm_a"),
            of(self.state, self.groups, self.inner),
            of(self.state, self.groups, self.inner + numbers),
            at.turns.reads[i],
            at.history(i),
        )
        n = self.inner * tokens * sequences
        size = row * sequences * at.history(i)
        new = ops.view_1d(found, size, n * found.nb[0])
        at.keep("scan", i, new, read=True, latest_first=True)
        y = ops.reshape_4d(ops.view_1d(found, n, 0), head, self.heads, tokens, sequences)
        y = ops.add(y, ops.mul(into, at.weight("ssm_d")))
        y = ops.reshape_3d(y, self.inner, tokens, sequences)
        y = ops.swiglu_split(gate, y)
        if at.find("ssm_norm.weight") is not None:
            y = ops.reshape_4d(y, self.inner // self.groups, self.groups, tokens, sequences)
            y = at.rms_norm("ssm_norm", y)
        return ops.reshape_2d(y, self.inner, tokens * sequences)
