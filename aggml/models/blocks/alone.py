"""Alone: a block in the place of a mixer; OneMatrix, the smallest of such blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml.models.forms import linear

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope
    from aggml.models.description import Block
    from aggml.models.forms import FormContext, TensorForm
    from aggml.models.kv.room import State

__all__ = ["Alone", "OneMatrix"]


@dataclass(frozen=True, slots=True)
class Alone:
    """A block that works on each token by itself.

    Attributes:
        net: the block.
    """

    net: Block

    def needs(self) -> Iterable[str]:
        """The tensors of the block."""
        return self.net.needs()

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """The forms of the block's tensors."""
        return self.net.forms(of)

    def caches(self) -> Mapping[str, State]:
        """It keeps nothing."""
        return {}

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens], as given."""
        return x

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[width, n] -> [width, n]."""
        return self.net.build(at, y)


@dataclass(frozen=True, slots=True)
class OneMatrix:
    """A linear map of each token, of which the width stays the same.

    Attributes:
        name: of the matrix.
    """

    name: str

    def needs(self) -> Iterable[str]:
        """The matrix."""
        return (f"{self.name}.weight",)

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """The form of the matrix, and of a bias."""
        return linear(self.name, of.width, of.width)

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, n] -> [width, n]."""
        return at.linear(self.name, x)
