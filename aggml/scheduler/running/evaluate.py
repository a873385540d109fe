"""Evaluation: runs a graph node by node, so that the value of each node can be read.

Here: ggml's callback (ask, observe) and an async iterator of node results. Not here: enqueuing
(run.py). Each node is a separate split, so no value is overwritten before it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel
import numpy as np

from aggml.backend.inputs import check_output
from aggml.errors import Aborted, InvalidHandle, InvalidState
from aggml.ops.table import VIEWS
from aggml.scheduler.layout.actions import Compute
from aggml.scheduler.running.unit import Output
from aggml.stream.future import Future
from aggml.stream.slices import give_way
from aggml.tensor import Tensor, checking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.planner import Moment, Planner
    from aggml.scheduler.running.job import Job
    from aggml.scheduler.running.run import Runner

__all__ = ["EvalCallback", "Evaluation", "evaluate"]

Array = np.ndarray[Any, Any]
#: ``callback(node, ask)``. With ``ask`` True it returns whether the node is wanted. With False it
#: returns whether to go on; ``scheduler.observed`` is then the value of the node.
EvalCallback = Callable[[Tensor, bool], bool]


class _Walk:
    """One run, node after node.

    Args:
        planner: of the scheduler.
        runner: likewise.
        job: what is run.
    """

    def __init__(self, planner: Planner, runner: Runner, job: Job) -> None:
        self.planner = planner
        self.runner = runner
        self.job = job
        self.layout: Layout | None = None
        self.then: Moment
        self.first = True

    async def prepare(self) -> None:
        """Plan the graph with each node as a split of its own."""
        planner, job = self.planner, self.job
        layout, self.then = await give_way(planner.node_by_node(job.graph, job.floating))
        self.layout = layout
        self.outputs = job.outputs_of(layout)

    def nodes(self) -> Iterator[tuple[int, Tensor]]:
        """(split, node) in order."""
        assert self.layout is not None
        program = self.layout.program
        for i, split in enumerate(program.splits):
            for node in program.nodes[split.start : split.end]:
                if node.op != "none":
                    yield i, node

    def part(self, split: int, *, plan: bool, outputs: list[Output]) -> Future[None]:
        """Enqueue the copies, or the plan, of one split, then reads."""
        layout, job = self.layout, self.job
        assert layout is not None
        moved = self.then.lost()  # the plans read and write where it lay before
        if moved is not None:
            raise InvalidState(
                f"[Scheduler.evaluate] {moved!r} was placed elsewhere while {job.graph!r} was "
                "evaluated: close its buffer afterwards"
            )
        script = [
            a
            for a in layout.script.actions
            if a.split == split and isinstance(a.task, Compute) == plan
        ]
        program = layout.program
        placed = [(program.at(t), t, array) for t, array in job.placed] if self.first else []
        future = self.runner.part(layout, script, job.values, placed, outputs)
        if self.first:
            job.request.marks.note()
        self.first = False
        return future

    def read(self, node: Tensor, split: int, array: Array) -> list[Output]:
        assert self.layout is not None
        b = self.layout.program.at(node)
        return [Output(self.layout.twins[node], array, split, b)]

    async def each(self, ask: Callable[[Tensor], bool]) -> AsyncIterator[tuple[Tensor, Array]]:
        """Run the graph; yields each wanted value once computed, before the next node runs."""
        begun = -1
        future: Future[Any] | None = None
        for split, node in self.nodes():
            wanted = ask(node)
            assert self.layout is not None
            if split != begun:
                begun = split
                future = self.part(split, plan=False, outputs=[])
            array, reads = None, []
            if wanted and node in self.layout.twins:
                array = checking.outgoing(node, None, None, "Scheduler.evaluate")[0]
                reads = self.read(node, split, array)
            runs = node.op not in VIEWS
            if runs or reads:
                future = self.part(split if runs else -1, plan=runs, outputs=reads)
            if array is not None:
                if future is not None:
                    await future
                yield node, array
            else:
                await anyio.lowlevel.checkpoint()

    def end(self) -> Future[Any]:
        """The Future of the whole."""
        layout = self.layout
        assert layout is not None
        future: Future[Any] = self.part(-1, plan=False, outputs=self.outputs)
        future._value = self.job.request.value([o.array for o in self.outputs])
        return future


async def evaluate(
    planner: Planner,
    runner: Runner,
    job: Job,
    callback: EvalCallback,
    show: Callable[[Array | None], None],
) -> Future[Any]:
    """Run with a callback.

    Args:
        planner: of the scheduler.
        runner: likewise.
        job: what is run.
        callback: see `EvalCallback`.
        show: called with the node's value before ``callback`` is, and with None after it.

    Returns:
        The Future of the whole; Aborted if the callback said so.
    """
    walk = _Walk(planner, runner, job)
    await walk.prepare()
    stream = walk.each(lambda node: bool(callback(node, True)))
    try:
        async for node, array in stream:
            show(array)
            if not callback(node, False):
                future: Future[Any] = Future(None, None, "submit")
                future._problem = Aborted(f"[Scheduler] the callback ended the run after {node!r}")
                return future
    finally:
        show(None)
        await stream.aclose()  # type: ignore[attr-defined]
    return walk.end()


class Evaluation:
    """Iterates over ``(tensor, array)`` of the nodes wanted, in order, as they are computed.

    Other submissions of the scheduler wait until it has ended, was closed, or was dropped. To leave
    the loop early, call ``await aclose()``, or use it with ``async with``.

    Args:
        planner: of the scheduler.
        runner: likewise.
        turn: held while it goes on, so that other submissions wait.
        job: what is run.
        wanted: which nodes; None: all but views.
    """

    def __init__(
        self,
        planner: Planner,
        runner: Runner,
        turn: anyio.Lock,
        job: Job,
        wanted: Callable[[Tensor], bool] | Iterable[Tensor] | None,
    ) -> None:
        self._walk = _Walk(planner, runner, job)
        self._turn = turn
        self._results: list[tuple[Tensor, Array]] = []
        if wanted is None:
            self._ask: Callable[[Tensor], bool] = lambda node: node.op not in VIEWS
        elif callable(wanted):
            self._ask = wanted
        else:
            given = frozenset(wanted)
            for node in given:
                if not isinstance(node, Tensor):
                    raise InvalidHandle(f"[Scheduler.evaluate] {node!r} is no tensor")
                check_output(job.graph, node, "Scheduler.evaluate")
            self._ask = given.__contains__
        self._stream: AsyncIterator[tuple[Tensor, Array]] | None = None
        self._done = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Tensor, Array]:
        if self._done:
            raise StopAsyncIteration
        try:
            if self._stream is None:
                await self._turn.acquire()
                self._stream = self._walk.each(self._ask)
                await self._walk.prepare()
            return await anext(self._stream)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Run no further node."""
        stream, self._stream = self._stream, None
        self._done = True
        if stream is not None:
            self._turn.release()
            await stream.aclose()  # type: ignore[attr-defined]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
