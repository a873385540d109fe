"""Steps: the graphs of a decoder's steps, prepared once and kept.

Here: which graphs are kept, and the tensors in which a chained step leaves its tokens for the next
one. Not here: how a graph is built (step.py), who runs it (decoder.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import aggml
from aggml import DType, InvalidState
from aggml.models.site import free_with

if TYPE_CHECKING:
    from aggml import Tensor
    from aggml.models.decoding.batch import Shape
    from aggml.models.decoding.step import Builder, Step
    from aggml.models.site import Site

__all__ = ["Steps"]


class Steps:
    """Prepared steps by their shapes.

    Args:
        site: where they are computed.
        builder: builds their graphs.
        most: how many steps are kept; then the least recently used one is dropped.
    """

    def __init__(self, site: Site, builder: Builder, most: int) -> None:
        self._site = site
        self._builder = builder
        self._most = most
        self._kept: OrderedDict[Shape, Step] = OrderedDict()
        self._chosen: dict[tuple[int, int], Tensor] = {}  # by first sequence and how many
        self._closed = False

    async def of(self, shape: Shape) -> Step:
        """The step of a shape; built and prepared if it is not kept.

        Raises:
            InvalidState: `close` was called.
        """
        if self._closed:
            raise InvalidState("[aggml.models] the model is closed: load it again")
        step = self._kept.get(shape)
        if step is None:
            chosen = await self._handed_on(shape) if shape.chained else None
            step = await self._builder.build(shape, chosen)
            await self._site.prepare(step.graph)
            free_with(step, step.graph)
            self._kept[shape] = step
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(shape)
        return step

    def close(self) -> None:
        """Free all steps; `of` makes no further ones."""
        self._closed = True
        for step in self._kept.values():
            self._site.forget(step.graph)
        self._kept.clear()
        self._chosen.clear()

    async def _handed_on(self, shape: Shape) -> Tensor:
        """The tensor in which chained steps of the shape's sequences leave their tokens."""
        key = shape.parts[0].slot, shape.tokens
        kept = self._chosen.get(key)
        if kept is None:
            kept = aggml.new_tensor(DType.I32, ne=shape.tokens, name="chosen")
            await self._site.host.alloc_async([kept])
            self._chosen[key] = kept
        return kept
