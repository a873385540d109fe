"""Tokens drawn by the device: only the tokens are then brought to the host, and no logits.

Here: the inputs of the draws, and the nodes at the end of a step's graph; whether a device has
these. Not here: how the inputs are computed (sampling.py, adjusting.py), the draw itself
(`ops.sample`).
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

    from aggml.models.decoder.adjusting import Adjuster
    from aggml.models.decoder.batch import Shape
    from aggml.models.decoder.sampling import Sampler
    from aggml.models.site import Site

__all__ = ["Drawing", "Draws", "can_draw"]

LEAST = 64  # a step has room for 64, 128, 256, ... changed logits of each row


@dataclass(frozen=True, slots=True)
class Draws:
    """The inputs of the draws of one step, one draw for each row of logits.

    Attributes:
        among: how many of the best tokens may be drawn.
        how: for each draw the five numbers of `ops.sample`, (draws, 5).
        changing, changes: arguments of `ops.penalize`, which changes logits before the draw:
            (draws, m) and (draws, 5, m).
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
        tokens: Sequence[int] | None = None,
    ) -> Draws:
        """The draws of these samplers; None takes the best token.

        Args:
            samplers: one for each row of logits.
            among: how many of the best tokens may be drawn.
            adjusters: change the logits before; none, or one or None for each row.
            tokens: the index of the token that each row draws; None: the next of each sampler.
        """
        none = (0.0, 0.0, 1.0, 0.0, 0.0)
        at = [None] * len(samplers) if tokens is None else tokens
        rows = [none if x is None else x.numbers(i) for x, i in zip(samplers, at, strict=True)]
        how = np.array(rows, np.float64)
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

    @property
    def room(self) -> tuple[int, int]:
        """What the graph depends on: `among`, and the room for changed logits of each row."""
        return self.among, 0 if self.changing is None else self.changing.shape[1]

    def add_to(self, shape: Shape) -> Shape:
        """Return the shape of the step with these draws at its end."""
        drawn, changed = self.room
        return replace(shape, best=0, drawn=drawn, changed=changed)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The tensors of a step's graph that take the arrays of `Draws`."""

    among: int
    how: Tensor  # f64 [5, draws]
    changing: Tensor | None  # i32 [m, draws]
    changes: Tensor | None  # f32 [m, 5, draws]

    @classmethod
    def of(cls, shape: Shape) -> Drawing | None:
        """New tensors for a step of this shape; None if it draws nothing."""
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
        """The nodes that draw: logits [vocabulary, draws] -> i32 [draws]."""
        if self.changing is not None and self.changes is not None:
            logits = ops.penalize(logits, self.changing, self.changes)
        return ops.sample(logits, ops.top_k(logits, self.among), self.how)

    def inputs(self, draws: Draws) -> dict[Tensor, Any]:
        """The tensors, each with its array."""
        found: dict[Tensor, Any] = {self.how: draws.how}
        if self.changing is not None and self.changes is not None:
            found |= {self.changing: draws.changing, self.changes: draws.changes}
        return found


def can_draw(site: Site) -> bool:
    """Whether a device of the site draws tokens; ggml's have no such op, so the host does it."""
    logits = aggml.new_tensor(DType.F32, ne=(LEAST, 1))
    how = aggml.new_tensor(DType.F64, ne=(5, 1))
    changing = aggml.new_tensor(DType.I32, ne=(LEAST, 1))
    changes = aggml.new_tensor(DType.F32, ne=(LEAST, 5, 1))
    drawn = ops.sample(logits, ops.top_k(logits, 1), how)
    changed = ops.penalize(logits, changing, changes)
    return all(any(b.device.supports_op(x) for b in site.backends) for x in (drawn, changed))
