"""SideBySide: two mixers of one layer with the same input, whose outputs are added (Falcon-H1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml import ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope
    from aggml.models.description import Mixer
    from aggml.models.forms import FormContext, TensorForm
    from aggml.models.kv.room import Kept

__all__ = ["SideBySide"]


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The sum of two mixers.

    Attributes:
        first, second: mixers whose tensors, caches and states have different names.
        inner: elements that ``first`` gives for each token before its output matrix.
    """

    first: Mixer
    second: Mixer
    inner: int

    def needs(self) -> Iterable[str]:
        """The tensors of both."""
        return [*self.first.needs(), *self.second.needs()]

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """The forms of the tensors of both."""
        return {**self.first.forms(of), **self.second.forms(of)}

    def caches(self) -> Mapping[str, Kept]:
        """The caches and states of both."""
        return {**self.first.caches(), **self.second.caches()}

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [any, tokens]: the results of both, one after the other."""
        return ops.concat(self.first.build(at, x), self.second.build(at, x), 0)

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[any, n] -> [width, n]."""
        rest, row = y.ne[0] - self.inner, y.nb[1]
        one = ops.cont(ops.view_2d(y, self.inner, y.ne[1], row, 0))
        two = ops.cont(ops.view_2d(y, rest, y.ne[1], row, self.inner * y.nb[0]))
        return ops.add(self.first.output(at, one), self.second.output(at, two))
