"""LowRank: the change of one matrix by an adapter, as the product of two small ones.

Not here: the files with such matrices (files.py, peft.py), their place on a device (stacks.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Adapter", "LowRank", "add_up"]

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """A change of a matrix: ``b @ a`` is added to it.

    Attributes:
        a: float32 (rank, columns of the matrix).
        b: float32 (rows of the matrix, rank); the scale is part of it.
    """

    a: F32
    b: F32

    @property
    def whole(self) -> F32:
        """The change itself, (rows, columns)."""
        return self.b @ self.a

    def scale(self, scale: float) -> LowRank:
        """Multiply the change by a number."""
        return self if scale == 1.0 else LowRank(self.a, self.b * np.float32(scale))


#: The changes of an adapter, by the names of the matrices: "blk.0.attn_q.weight".
Adapter: TypeAlias = "Mapping[str, LowRank]"


def add_up(adapters: Sequence[Adapter]) -> dict[str, LowRank]:
    """One adapter that does what all of these do: their ranks are added."""
    parts: dict[str, list[LowRank]] = {}
    for adapter in adapters:
        for name, change in adapter.items():
            parts.setdefault(name, []).append(change)
    return {
        name: of[0] if len(of) == 1 else LowRank(
            np.concatenate([x.a for x in of]), np.concatenate([x.b for x in of], axis=1)
        )
        for name, of in parts.items()
    }  # fmt: skip
