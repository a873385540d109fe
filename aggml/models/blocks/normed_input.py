"""NormedInput: a mixer whose input is normalised by the first of several norms that a file has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml.models.forms import norm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.scope import Scope
    from aggml.models.description import Mixer
    from aggml.models.forms import FormContext, TensorForm
    from aggml.models.kv.room import Kept

__all__ = ["NormedInput"]


@dataclass(frozen=True, slots=True)
class NormedInput:
    """A mixer behind a norm.

    Attributes:
        mixer: takes what is normalised.
        norms: their names, the preferred one first. The last one every file has.
    """

    mixer: Mixer
    norms: tuple[str, ...]

    def needs(self) -> Iterable[str]:
        """The tensors of the mixer, and the last norm."""
        return [f"{self.norms[-1]}.weight", *self.mixer.needs()]

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """The forms of the mixer's tensors, and of all norms."""
        found = dict(self.mixer.forms(of))
        for name in self.norms:
            optional = name != self.norms[-1]
            found |= norm(name, of.width, centred=of.centred, optional=optional)
        return found

    def caches(self) -> Mapping[str, Kept]:
        """Those of the mixer."""
        return self.mixer.caches()

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, tokens] -> [any, tokens]."""
        there = (name for name in self.norms if at.find(f"{name}.weight") is not None)
        return self.mixer.build(at, at.norm(next(there), x))

    def output(self, at: Scope, y: Tensor) -> Tensor:
        """[any, n] -> [width, n]."""
        return self.mixer.output(at, y)
