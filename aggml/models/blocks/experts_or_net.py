"""ExpertsOrNet: experts in layers that have a router, one net in the others (Jamba).

The file's tensors say which, because its metadata do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aggml import Tensor
    from aggml.models.blocks.experts import Experts
    from aggml.models.blocks.feed_forward import FeedForward
    from aggml.models.blocks.scope import Scope
    from aggml.models.forms import FormContext, TensorForm

__all__ = ["ExpertsOrNet"]

ROUTER = "ffn_gate_inp.weight"


@dataclass(frozen=True, slots=True)
class ExpertsOrNet:
    """One of two blocks.

    Attributes:
        experts: of layers with a router.
        net: of the others.
    """

    experts: Experts
    net: FeedForward

    def needs(self) -> Iterable[str]:
        """Nothing by name: the forms say what a layer with or without a router must have."""
        return ()

    def forms(self, of: FormContext) -> Mapping[str, TensorForm]:
        """The forms of the tensors of the one that the layer has."""
        return self.net.forms(of) if of.find(ROUTER) is None else self.experts.forms(of)

    def build(self, at: Scope, x: Tensor) -> Tensor:
        """[width, n] -> [width, n]."""
        block = self.net if at.find(ROUTER) is None else self.experts
        return block.build(at, x)
