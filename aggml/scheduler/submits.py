"""Submits: how a scheduler is asked to run a graph for one of many callers.

Here: the two calls, their overloads, the shape of results. Not here: what is done then
(running/submitter.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, overload

from aggml.backend.inputs import reshaped, shapes_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    import numpy as np

    from aggml.backend.inputs import Inputs, Outputs, Reuse, Shapes
    from aggml.graph import Graph
    from aggml.stream.future import Future
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Submits"]


class Submits(ABC):
    """The interface of what takes a graph, its inputs and the outputs that are wanted."""

    @abstractmethod
    def _check_graph(self, graph: object, what: str) -> None:
        """Refuse work when closed, and what is no graph."""

    @abstractmethod
    def _submit(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None,
        outputs: Tensor | str | Sequence[Any],
        reuse: Reuse,
    ) -> Coroutine[Any, Any, Future[Any]]:
        """`submit` without ``shape=``: results have the shapes of their tensors."""

    @overload
    async def submit(
        self,
        graph: Graph,
        inputs: Inputs | None,
        outputs: Tensor | str,
        *,
        reuse: Reuse = (),
        shape: tuple[int, ...] | None = None,
    ) -> Future[Array]: ...
    @overload
    async def submit(
        self,
        graph: Graph,
        inputs: Inputs | None,
        outputs: Outputs = (),
        *,
        reuse: Reuse = (),
        shape: Shapes | None = None,
    ) -> Future[list[Array]]: ...
    def submit(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None = None,
        outputs: Tensor | str | Sequence[Any] = (),
        *,
        reuse: Reuse = (),
        shape: Any = None,
    ) -> Coroutine[Any, Any, Future[Any]]:
        """Wait for a slot, first come, first served; then enqueue set, compute, get in one step.

        Args:
            graph: need not be placed. What it was not seen with before is planned first, giving
                way to the loop.
            inputs: what to write to which leaf, as `Backend.set` takes it; borrowed until done. A
                leaf is given as the tensor or, where that is unique in the graph, by its name.
            outputs: ends of the graph, tensors flagged OUTPUT, or leafs that have memory; or names.
            reuse: as `Backend.run` has it; such a leaf has memory.
            shape: of the result, as `Backend.run` has it.

        Returns:
            A Future of an array, or of a list of arrays if ``outputs`` is a sequence. Futures of
            one scheduler get done in the order of their submission.

        Raises:
            NotAllocated: an output cannot be read; a leaf has no value; a leaf flagged INPUT was
                never written, or only by an earlier run.
            NoBackendForOp: no backend can run a node where its data lies.
            AllocFailed: no memory.
            LayoutMismatch, InvalidArgument: an array does not fit its tensor; an input is no leaf
                of the graph; a name is not unique in it.
            AggmlError: by the Future, from whatever failed first.

        Cancellation: of ``submit``, gives the place in the queue up. Of the Future: when the last
        task that awaits it is cancelled, the work is aborted; see `Future.shield`.
        """
        # Not async itself: the coroutine of a coroutine costs 0.2 us more.
        if shape is None:
            return self._submit(graph, inputs, outputs, reuse)
        return self._submit_shaped(graph, inputs, outputs, reuse, shape)

    async def _submit_shaped(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None,
        outputs: Tensor | str | Sequence[Any],
        reuse: Reuse,
        shape: object,
    ) -> Future[Any]:
        self._check_graph(graph, "Scheduler.submit")
        shapes = shapes_of(graph, outputs, shape, "Scheduler.submit")
        return reshaped(await self._submit(graph, inputs, outputs, reuse), shapes)

    @overload
    async def run(
        self,
        graph: Graph,
        inputs: Inputs | None,
        outputs: Tensor | str,
        *,
        reuse: Reuse = (),
        shape: tuple[int, ...] | None = None,
    ) -> Array: ...
    @overload
    async def run(
        self,
        graph: Graph,
        inputs: Inputs | None,
        outputs: Outputs = (),
        *,
        reuse: Reuse = (),
        shape: Shapes | None = None,
    ) -> list[Array]: ...
    async def run(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None = None,
        outputs: Tensor | str | Sequence[Any] = (),
        *,
        reuse: Reuse = (),
        shape: Any = None,
    ) -> Any:
        """`submit`, then await the result.

        Raises:
            As `submit`; and what the work failed with.

        Cancellation: aborts the work.
        """
        return await (await self.submit(graph, inputs, outputs, reuse=reuse, shape=shape))
