"""Tokens drawn by the device: so no more than they are brought to the host.

Here: the numbers that a draw takes, and the nodes at the end of a step's graph. Not here: what the
numbers are made of (sampling.py, adjusting.py), the draw itself (`ops.sample`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import aggml
from aggml import DType, Tensor, ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.models.decoding.adjusting import Adjuster
    from aggml.models.decoding.batch import Shape
    from aggml.models.decoding.sampling import Sampler

__all__ = ["Drawing", "Draws"]

LEAST = 64  # tokens whose logits may change: a step has room for 64, 128, 256, ...


@dataclass(frozen=True, slots=True)
class Draws:
    """The numbers of one step.

    Attributes:
        among: how many of the best tokens may be drawn.
        how: of each draw the five numbers of `ops.sample`, (draws, 5).
        changing, changes: what `ops.penalize` takes before that, (draws, m) and (draws, 5, m).
    """

    among: int
    how: npt.NDArray[np.float64]
    changing: npt.NDArray[np.int32] | None = None
    changes: npt.NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls,
        samplers: Sequence[Sampler | None],
        among: int,
        adjusters: Sequence[Adjuster | None] = (),
    ) -> Draws:
        """What these samplers would draw next; a row without one gets the best token."""
        none = (0.0, 0.0, 1.0, 0.0, 0.0)
        how = np.array([none if x is None else x.numbers() for x in samplers], np.float64)
        most = max((x.changing for x in adjusters if x is not None), default=0)
        if not any(x is not None for x in adjusters):
            return cls(among, how)
        m = max(LEAST, 1 << (most - 1).bit_length())
        changing = np.full((len(how), m), -1, np.int32)
        changes = np.zeros((len(how), 5, m), np.float32)
        for i, adjuster in enumerate(adjusters):
            if adjuster is not None:
                changing[i], changes[i] = adjuster.numbers(m)
        return cls(among, how, changing, changes)

    def shaped(self, shape: Shape) -> Shape:
        """The shape of a step that draws so."""
        changed = 0 if self.changing is None else self.changing.shape[1]
        return replace(shape, best=0, drawn=self.among, changed=changed)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The inputs of a step's graph for these numbers."""

    among: int
    how: Tensor  # f64 [5, draws]
    changing: Tensor | None  # i32 [m, draws]
    changes: Tensor | None  # f32 [m, 5, draws]

    @classmethod
    def of(cls, shape: Shape) -> Drawing | None:
        """None: the step draws nothing."""
        n, m = shape.logits, shape.changed
        if not shape.drawn:
            return None
        how = aggml.new_tensor(DType.F64, ne=(5, n), name="how").set_input()
        if not m:
            return cls(shape.drawn, how, None, None)
        changing = aggml.new_tensor(DType.I32, ne=(m, n), name="changing").set_input()
        changes = aggml.new_tensor(DType.F32, ne=(m, 5, n), name="changes").set_input()
        return cls(shape.drawn, how, changing, changes)

    def tokens(self, logits: Tensor) -> Tensor:
        """[vocabulary, draws] -> i32 [draws]."""
        if self.changing is not None and self.changes is not None:
            logits = ops.penalize(logits, self.changing, self.changes)
        return ops.sample(logits, ops.top_k(logits, self.among), self.how)

    def inputs(self, draws: Draws) -> dict[Tensor, Any]:
        """The arrays, each for its tensor."""
        found: dict[Tensor, Any] = {self.how: draws.how}
        if self.changing is not None and self.changes is not None:
            found |= {self.changing: draws.changing, self.changes: draws.changes}
        return found
