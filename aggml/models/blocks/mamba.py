"""Mamba: the selective scan of Mamba 1, in which each channel has a state (Gu and Dao 2023).

Not here: the convolution before it (recurrent.py), where states lie (../kv/caches.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import ops
from aggml.models.blocks.recurrent import columns, convolve, join_parts, parts_of
from aggml.models.forms import FormContext, TensorForm, linear, norm
from aggml.models.kv.room import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["Mamba"]


@dataclass(frozen=True, slots=True)
class Mamba:
    """The selective scan of Mamba 1.

    Attributes:
        inner: channels.
        state: elements of the state of each channel.
        rank: elements from which the time steps of all channels are computed.
        kernel: how many tokens the convolution uses.
        normed: whether time steps and the vectors with which states are written and read are
            normalised, without weights (Falcon Mamba).
        norms: whether they are normalised, with weights (Jamba).
    """

    inner: int
    state: int
    rank: int
    kernel: int
    normed: bool = False
    norms: bool = False

    def needs(self) -> Iterable[str]:
        """The matrices, kernels, rates and norms."""
        norms = [f"ssm_{part}_norm.weight" for part in ("dt", "b", "c")]
        return (
            "ssm_in.weight", "ssm_conv1d.weight", "ssm_x.weight", "ssm_dt.weight", "ssm_dt.bias",
            "ssm_a", "ssm_d", "ssm_out.weight", *(norms if self.norms else ()),
        )  # fmt: skip

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices, kernels, rates and norms."""
        sizes = {"dt": self.rank, "b": self.state, "c": self.state} if self.norms else {}
        norms = [norm(f"ssm_{part}_norm", n, centred=False) for part, n in sizes.items()]
        return {
            **{name: form for each in norms for name, form in each.items()},
            **linear("ssm_in", of.width, 2 * self.inner),
            "ssm_conv1d.weight": TensorForm((self.kernel, self.inner), vector=True),
            "ssm_conv1d.bias": TensorForm((self.inner,), optional=True, vector=True),
            "ssm_x.weight": TensorForm((self.inner, self.rank + 2 * self.state)),
            "ssm_dt.weight": TensorForm((self.rank, self.inner)),
            "ssm_dt.bias": TensorForm((self.inner,), vector=True),
            "ssm_a": TensorForm((self.state, self.inner), vector=True),
            "ssm_d": TensorForm((self.inner,), vector=True),
            **linear("ssm_out", self.inner, of.width),
        }

    def caches(self) -> Mapping[str, State]:
        """Descriptions of the states: the convolution's last tokens, and the state of the scan."""
        return {
            "conv": State((self.kernel - 1) * self.inner),
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
        into = convolve(at, i, columns(both, self.inner, 0, part))
        gate = ops.cont(columns(both, self.inner, self.inner, part))
        found = ops.mul_mat(at.weight("ssm_x.weight"), into)

        def of(part: str, size: int, offset: int) -> Tensor:
            view = ops.view_4d(
                found, size, 1, tokens, sequences,
                size * found.nb[0], found.nb[1], found.nb[2], offset * found.nb[0],
            )  # fmt: skip
            if self.norms:
                return at.rms_norm(f"ssm_{part}_norm", view)
            return ops.rms_norm(view, at.eps) if self.normed else view

        step = ops.cont_3d(of("dt", self.rank, 0), self.rank, tokens, sequences)
        step = ops.add(ops.mul_mat(at.weight("ssm_dt.weight"), step), at.weight("ssm_dt.bias"))
        states, row = at.caches["scan"], self.state * self.inner
        scanned = ops.ssm_scan(
            ops.reshape_4d(states, self.state, 1, self.inner, states.ne[1]),
            ops.reshape_4d(into, 1, self.inner, tokens, sequences),
            step,
            at.weight("ssm_a"),
            of("b", self.state, self.rank),
            of("c", self.state, self.rank + self.state),
            at.turns.reads[i],
            at.history(i),
        )
        n = self.inner * tokens * sequences
        size = row * sequences * at.history(i)
        new = ops.view_1d(scanned, size, n * scanned.nb[0])
        at.keep("scan", i, new, read=True, latest_first=True)
        y = ops.reshape_3d(ops.view_1d(scanned, n, 0), self.inner, tokens, sequences)
        y = ops.add(y, ops.mul(into, at.weight("ssm_d")))
        return ops.reshape_2d(ops.swiglu_split(gate, y), self.inner, tokens * sequences)
