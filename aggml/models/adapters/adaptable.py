"""Which matrices of a model can take an adapter: those that its graph multiplies by name.

The graph itself tells: one is built, of tensors that exist nowhere. So every architecture is
covered, also one that a program registers. Matrices that blocks multiply in other ways (experts,
the halves of latent attention, embeddings) are not among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import aggml
from aggml import DType
from aggml.models.decoder.batch import Part, Shape
from aggml.models.decoder.step import Builder
from aggml.models.kv.caches import Caches
from aggml.models.kv.rows import ROWS_STEP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aggml import Tensor
    from aggml.models.description import Description

__all__ = ["adaptable"]


class _Recorder:
    """Notes the names of products instead of changing them; see `GraphAdapters`."""

    always = True
    directions: Mapping[int, Tensor] = {}

    def __init__(self) -> None:
        self.names: set[str] = set()

    def at(self, _numbers: Tensor | None, _scales: Tensor | None, /) -> _Recorder:
        return self

    def add(self, name: str, _x: Tensor, y: Tensor, /) -> Tensor:
        self.names.add(name)
        return y


async def adaptable(model: Description, tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """The names of the matrices of a model that can take an adapter: "blk.0.attn_q.weight".

    It takes some 30 ms, and gives way to other tasks meanwhile.
    """
    copies = {
        name: aggml.new_tensor(t.dtype, ne=t.ne[: t.ndim], name=name) for name, t in tensors.items()
    }
    caches = Caches(model, DType.F32, ROWS_STEP, 1, ring=False)
    recorder = _Recorder()
    await Builder(model, copies, caches, ROWS_STEP, recorder).build(
        Shape((Part(1, 1, 0, ROWS_STEP),))
    )
    return frozenset(recorder.names)
