"""Steps: the graphs of a decoder's steps, prepared once and kept.

Here: which graphs are kept, and the tensors in which a chained step leaves its tokens for the next
one. Not here: how a graph is built (step.py), who runs it (decoder.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import aggml
from aggml import DType
from aggml.models.lifetime import closed_error
from aggml.models.site import CLOSED, free_with
from aggml.process.locks import new_lock
from aggml.stream.slot_pool import SlotPool

if TYPE_CHECKING:
    from aggml import Tensor
    from aggml.models.decoder.batch import Shape
    from aggml.models.decoder.step import Builder, Step
    from aggml.models.site import Site

__all__ = ["Steps"]

LARGE: Final = 1 << 20  # bytes of results that count
RESULTS: Final = 64 << 20


class Steps:
    """Prepared steps by their shapes; for tasks of any event loop and thread.

    Args:
        site: where they are computed.
        builder: builds their graphs.
        most: how many steps are kept; then the least recently used one is dropped. Those with
            large results, such as the logits of all tokens of a prompt, are dropped before: beside
            the newest one they have at most `RESULTS` bytes.
    """

    def __init__(self, site: Site, builder: Builder, most: int) -> None:
        self._site = site
        self._builder = builder
        self._most = most
        self._kept: OrderedDict[Shape, Step] = OrderedDict()
        # By the first sequence and how many: tokens, and hidden states if the model carries any.
        self._chosen: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}
        self._lock = new_lock()  # for `_kept`
        self._building = SlotPool(1)  # one step at a time, so that none is built twice
        self.closed: bool = False  # whether steps that are being built will not be needed

    async def of(self, shape: Shape) -> Step:
        """The step of a shape; built and prepared if it is not kept.

        Raises:
            InvalidState: the model is closed.
        """
        if self.closed:
            raise closed_error("Decoder")
        step = self._find(shape)
        if step is None:
            async with self._building.slot():
                step = self._find(shape) or await self._build(shape)
        return step

    async def build(self, shape: Shape) -> Step:
        """Build a step, neither prepared nor kept: for a graph that computes more.

        Raises:
            InvalidState: the model is closed.
        """
        if self.closed:
            raise closed_error("Decoder")
        return await self._builder.build(shape)

    def find(self, shape: Shape) -> Step | None:
        """The step of a shape if it is kept.

        Raises:
            InvalidState: the model is closed.
        """
        if self.closed:
            raise closed_error("Decoder")
        return self._find(shape)

    def _find(self, shape: Shape) -> Step | None:
        with self._lock:
            step = self._kept.get(shape)
            if step is not None:
                self._kept.move_to_end(shape)
        return step

    async def _build(self, shape: Shape) -> Step:
        chosen, carried = await self._chain_tensors(shape) if shape.chained else (None, None)
        step = await self._builder.build(shape, chosen, carried)
        if self.closed:
            raise closed_error("Decoder")
        await self._site.prepare(step.graph)
        free_with(step, step.graph)
        dropped = []
        with self._lock:
            self._kept[shape] = step
            if len(self._kept) > self._most:
                dropped.append(self._kept.popitem(last=False)[1])
            if _results(step) >= LARGE:
                room = RESULTS - _results(step)
                for old, other in [*reversed(self._kept.items())][1:]:
                    size = _results(other)
                    room -= size if size >= LARGE else 0
                    if size >= LARGE and room < 0:
                        dropped.append(self._kept.pop(old))
        del dropped  # their memory is freed here, without the lock
        return step

    def close(self) -> None:
        """Free all steps; `of` makes no further ones. None may be under construction."""
        self.closed = True
        for step in self._kept.values():
            self._site.forget(step.graph)
        self._kept.clear()
        self._chosen.clear()
        del self._builder  # it has weights and caches
        self._site = CLOSED

    async def _chain_tensors(self, shape: Shape) -> tuple[Tensor, Tensor | None]:
        """The tensors in which chained steps of the shape's sequences leave what the next takes."""
        key = shape.parts[0].slot, shape.tokens
        kept = self._chosen.get(key)
        if kept is None:
            chosen, carried = aggml.new_tensor(DType.I32, ne=shape.tokens, name="chosen"), None
            if self._builder.carried:
                ne = self._builder.carried, shape.tokens
                carried = aggml.new_tensor(DType.F32, ne=ne, name="carried")
            await self._site.host.alloc_async([x for x in (chosen, carried) if x is not None])
            kept = self._chosen[key] = chosen, carried
        return kept


def _results(step: Step) -> int:
    """Bytes of the logits or hidden states that a step brings here."""
    return sum(x.nbytes for x in (step.logits, step.every) if x is not None)
