"""Evaluation: runs a graph node by node, so that the value of each node can be read.

Here: ggml's callback (ask, observe) and an async iterator of node results. Not here: enqueuing
(run.py). Each node is a separate split, so no value is overwritten before it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

import anyio.lowlevel
import numpy as np

from aggml.backend.inputs import check_output
from aggml.errors import Aborted, InvalidHandle, InvalidState
from aggml.ops.table import VIEWS
from aggml.scheduler.layout.actions import Compute
from aggml.scheduler.running.unit import Output
from aggml.stream.future import Future, fail, set_value
from aggml.stream.slices import give_way
from aggml.tensor import Tensor, checking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.planner import Planner, PlanningFacts
    from aggml.scheduler.running.job import Job
    from aggml.scheduler.running.run import Runner
    from aggml.stream.fifo import FifoLock

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
        self.then: PlanningFacts
        self.first = True
        self._nodes: Iterator[tuple[int, Tensor]] | None = None
        self._begun = -1  # the latest split
        self._latest: Future[Any] | None = None

    async def prepare(self) -> None:
        """Plan the graph with each node as a split of its own."""
        planner, job = self.planner, self.job
        steps = planner.guard(planner.node_by_node(job.graph, job.floating))
        layout, self.then = await give_way(steps)
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
        moved = self.then.lost_tensor()  # the plans read and write where it lay before
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
        with self.planner.lock:
            future = self.runner.part(layout, script, job.values, placed, outputs)
        if self.first:
            job.request.marks.note()
        self.first = False
        return future

    def read(self, node: Tensor, split: int, array: Array) -> list[Output]:
        assert self.layout is not None
        b = self.layout.program.at(node)
        return [Output(self.layout.twins[node], array, split, b)]

    async def next(self, ask: Callable[[Tensor], bool]) -> tuple[Tensor, Array] | None:
        """Run the graph as far as the next wanted node; returns it with its value, None at the end.

        This is no generator: one that is not exhausted has to be closed by an await, and who leaves
        a loop early cannot be made to do that.
        """
        if self._nodes is None:
            self._nodes = self.nodes()
        for split, node in self._nodes:
            wanted = ask(node)
            assert self.layout is not None
            if split != self._begun:
                self._begun = split
                self._latest = self.part(split, plan=False, outputs=[])
            array, reads = None, []
            if wanted and node in self.layout.twins:
                array = checking.outgoing(node, None, None, "Scheduler.evaluate")[0]
                reads = self.read(node, split, array)
            runs = node.op not in VIEWS
            if runs or reads:
                self._latest = self.part(split if runs else -1, plan=runs, outputs=reads)
            if array is not None:
                if self._latest is not None:
                    await self._latest
                return node, array
            await anyio.lowlevel.checkpoint()
        return None

    def end(self) -> Future[Any]:
        """The Future of the whole."""
        layout = self.layout
        assert layout is not None
        future: Future[Any] = self.part(-1, plan=False, outputs=self.outputs)
        set_value(future, self.job.request.value([o.array for o in self.outputs]))
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
    try:
        while (found := await walk.next(lambda node: bool(callback(node, True)))) is not None:
            node, array = found
            show(array)
            if not callback(node, False):
                future: Future[Any] = Future(None, None, "run")
                fail(future, Aborted(f"[Scheduler] the callback ended the run after {node!r}"))
                return future
    finally:
        show(None)
    return walk.end()


class Evaluation:
    """Iterates over ``(tensor, array)`` of the nodes wanted, in order, as they are computed.

    Other submissions of the scheduler wait until it has ended, was closed, or was dropped. Leaving
    ``async for x in scheduler.evaluate(...)`` early drops it. If a variable refers to it, call
    ``await aclose()``, or use it with ``async with``; until then the loop may be continued.

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
        turn: FifoLock,
        job: Job,
        wanted: Callable[[Tensor], bool] | Iterable[Tensor] | None,
    ) -> None:
        self._has_turn = False  # first: __del__ looks at it
        self._turn = turn
        self._walk = _Walk(planner, runner, job)
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
        self._begun = self._runs = self._done = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Tensor, Array]:
        if self._done:
            raise StopAsyncIteration
        if self._runs:
            raise InvalidState("[Scheduler.evaluate] another task is in the middle of this step")
        self._runs = True
        try:
            if not self._begun:
                await self._turn.acquire()
                self._has_turn = self._begun = True
                await self._walk.prepare()
            found = await self._walk.next(self._ask)
        except BaseException:
            self._end()
            raise
        finally:
            self._runs = False
        if found is None or self._done:  # closed meanwhile
            self._end()
            raise StopAsyncIteration
        return found

    def _end(self) -> None:
        self._done = True
        if self._has_turn:
            self._has_turn = False
            self._turn.release()

    async def aclose(self) -> None:
        """Run no further node."""
        self._done = True
        if not self._runs:  # else the step that runs ends it
            self._end()
        await anyio.lowlevel.checkpoint()

    def __del__(self) -> None:
        self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
