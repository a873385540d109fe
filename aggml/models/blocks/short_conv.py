"""ShortConv: each channel is convolved over its last few tokens, between two gates (LFM2).

Not here: the convolution itself (recurrent.py), where its states lie (../kv/caches.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import ops
from aggml.models.blocks.recurrent import columns, convolution, join_parts, parts_of
from aggml.models.forms import FormContext, TensorForm, linear
from aggml.models.kv.room import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope

__all__ = ["ShortConv"]


@dataclass(frozen=True, slots=True)
class ShortConv:
    """after * convolution(before * x); ``shortconv.in_proj`` gives before, after and x.

    Attributes:
        width: elements of a token.
        kernel: how many tokens the convolution uses.
    """

    width: int
    kernel: int

    def needs(self) -> Iterable[str]:
        """The matrices and the kernels."""
        return [f"shortconv.{name}.weight" for name in ("in_proj", "conv", "out_proj")]

    def forms(self, of: FormContext) -> dict[str, TensorForm]:
        """The matrices and the kernels."""
        return {
            **linear("shortconv.in_proj", of.width, 3 * self.width),
            "shortconv.conv.weight": TensorForm((self.kernel, self.width), vector=True),
            **linear("shortconv.out_proj", self.width, of.width),
        }

    def caches(self) -> Mapping[str, State]:
        """Description of the state: the last tokens."""
        return {"conv": State((self.kernel - 1) * self.width)}

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [width, tokens]."""
        whole = at.linear("shortconv.in_proj", x)
        return join_parts([self._part(at, whole, part) for part in parts_of(at)])

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[width, n] -> [width, n]."""
        return at.linear("shortconv.out_proj", y)

    def _part(self, at: Scope, whole: Tensor, part: tuple[int, int, int, int]) -> Tensor:
        """One part of a step: [width, tokens]."""
        i, _, tokens, sequences = part
        before, after, x = (columns(whole, self.width, k * self.width, part) for k in range(3))
        y = ops.mul(after, convolution(at, i, ops.mul(before, x), "shortconv.conv.weight"))
        return ops.reshape_2d(y, self.width, tokens * sequences)
