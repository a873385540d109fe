"""Submitter: takes a submission from the user's request to operations on streams.

Here: the order of submissions, what has to be planned first, what can be enqueued immediately. Not
here: planning (planner.py), the operations (run.py), runs node by node (evaluate.py).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from aggml.backend.inputs import check_written, reshape_results, run_key
from aggml.errors import AllocFailed, InvalidState, NotAllocated
from aggml.scheduler.running.evaluate import Evaluation, evaluate
from aggml.scheduler.running.job import Job
from aggml.scheduler.running.prepared import PreparedSubmission, prepare
from aggml.scheduler.running.unit import check_no_batch
from aggml.stream import Stream
from aggml.stream.deferred import DeferredFuture
from aggml.stream.fifo import FifoLock
from aggml.stream.future import set_value
from aggml.stream.observe import observers
from aggml.stream.slices import finish, give_way
from aggml.stream.waits import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np

    from aggml.backend.inputs import RunKey, Shapes
    from aggml.graph import Graph
    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.planner import PlannedGraph, Planner
    from aggml.scheduler.running.evaluate import EvalCallback
    from aggml.scheduler.running.run import Runner
    from aggml.stream.admission import Admission
    from aggml.stream.future import Future
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Submitter"]


class _Ready(NamedTuple):
    """A program and its layout, with which a job can be enqueued at once."""

    known: PlannedGraph
    layout: Layout


class Submitter:
    """Has jobs planned where that is needed, and enqueues them in the order in which they came.

    Args:
        planner: makes layouts, and keeps them.
        runner: enqueues.
        admission: the slots of submissions.
        n_copies: submissions that may have memory apart.

    Attributes:
        planner: as given.
        runner: as given.
        eval_callback: see `Scheduler.set_eval_callback`.
        observed: see `Scheduler.observed`.
        turn: held by an evaluation, so that no other submission comes between its parts.
        plans: held while planning; a task that waits for it may find its plan made.
        brought: leafs without memory of their own that earlier submissions brought.
    """

    def __init__(
        self, planner: Planner, runner: Runner, admission: Admission, n_copies: int
    ) -> None:
        self.planner = planner
        self.runner = runner
        self._admission = admission
        self._n_copies = n_copies
        self.eval_callback: EvalCallback | None = None
        self.observed: Array | None = None
        self.turn: FifoLock = FifoLock()
        self.plans: FifoLock = FifoLock()
        self._lock = planner.lock
        self._planned_for: list[int] = []  # graphs of tasks that hold ``plans`` or wait for it
        self.brought: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self._waits: Future[Any] | None = None  # the last one that a task has to queue

    # -- at once

    def run(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None,
        outputs: Tensor | str | Iterable[Tensor | str],
        reuse: Iterable[Tensor | str],
        shapes: Shapes | None,
    ) -> Future[Any]:
        """See `Scheduler.run`."""
        key = run_key(outputs, inputs, reuse)
        kept = self.planner.graphs.get(graph.uid)
        prepared: PreparedSubmission | None = None if kept is None else kept.prepared.get(key)
        self._check_batches("Scheduler.run")
        if prepared is None:
            job = Job(graph, inputs, outputs, reuse, brought=self.brought)
        else:
            request = prepared.request
            if request.due:
                request.check(self.brought)
            arrays = request.arrays(inputs) if inputs else []
            with self._lock:
                future = self._again(graph, prepared, arrays)
            if future is not None:
                return future if shapes is None else reshape_results(future, shapes)
            job = Job(graph, request.by_tensor(arrays), outputs, reuse, brought=self.brought)
        with self._lock:
            if self.eval_callback is not None or not self._may_go():
                return self._later(job, key, shapes)
            planner = self.planner
            while (ready := self._find_layout(job, planning=True)) is None:
                planner.finish(self.plan_steps(job))
            future = self._enqueue(job, ready, key)
        return future if shapes is None else reshape_results(future, shapes)

    def _check_batches(self, what: str) -> None:
        for backend in self.runner.backends:
            if backend.stream.open_batches:  # of any thread; mostly there is none
                check_no_batch((backend,), what)

    def _may_go(self) -> bool:
        """Whether no evaluation is under way, and no earlier submission waits for one."""
        return bool(self.turn.free) and (self._waits is None or self._waits.done())

    def _later(self, job: Job, key: RunKey, shapes: Shapes | None) -> Future[Any]:
        """The Future of a submission that a task queues when all before it are done."""
        before = self._waits

        async def work() -> Future[Any]:
            if before is not None:
                await before.wait_until_done()
            future = await self._in_turn(job, key)
            return future if shapes is None else reshape_results(future, shapes)

        pool = self.runner.joined.pool
        self._waits = DeferredFuture(work, Stream("scheduler run", pool=pool), "run")
        return self._waits

    # -- behind other tasks

    async def submit(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None,
        outputs: Tensor | str | Iterable[Tensor | str],
        reuse: Iterable[Tensor | str],
    ) -> Future[Any]:
        """See `Scheduler.submit`."""
        key = run_key(outputs, inputs, reuse)
        kept = self.planner.graphs.get(graph.uid)
        prepared: PreparedSubmission | None = None if kept is None else kept.prepared.get(key)
        self._check_batches("Scheduler.submit")
        if prepared is None:
            job = Job(graph, inputs, outputs, reuse, brought=self.brought)
            await CHECKPOINT
        else:
            request = prepared.request
            if request.due:
                request.check(self.brought)
            arrays = request.arrays(inputs) if inputs else []
            await CHECKPOINT
            if self._admission.free() and graph.uid not in self._planned_for:
                with self._lock:
                    future = self._again(graph, prepared, arrays)
                if future is not None:
                    return future
            job = Job(graph, request.by_tensor(arrays), outputs, reuse, brought=self.brought)
        self._check_batches("Scheduler.submit")
        admitted = await self._admission.admit()
        try:
            future = await self._in_turn(job, key)
        except BaseException:
            self._admission.give_up(admitted)
            raise
        if admitted is not None:
            self._admission.use_up()
        return future

    async def _in_turn(self, job: Job, key: RunKey) -> Future[Any]:
        """Plan a submission in slices, and enqueue it when no evaluation is under way."""
        if self.eval_callback is not None:
            return await self._evaluate(job, self.eval_callback)
        graph = job.graph
        while True:
            ready = await self.ready(job)
            with self._lock:  # another thread may have begun an evaluation, or moved a tensor
                if self.turn.free and ready.known.is_valid(graph):
                    return self._enqueue(job, ready, key)
            if not self.turn.free:
                async with self.turn:
                    ready = await self.ready(job)
                    with self._lock:
                        if ready.known.is_valid(graph):
                            return self._enqueue(job, ready, key)

    async def _evaluate(self, job: Job, callback: EvalCallback) -> Future[Any]:
        """Run node by node, with a callback in between."""
        async with self.turn:
            return await evaluate(self.planner, self.runner, job, callback, self._show)

    def _show(self, array: Array | None) -> None:
        self.observed = array

    def evaluation(
        self, job: Job, wanted: Callable[[Tensor], bool] | Iterable[Tensor] | None
    ) -> Evaluation:
        """See `Scheduler.evaluate`."""
        return Evaluation(self.planner, self.runner, self.turn, job, wanted)

    def submit_now(self, graph: Graph) -> Future[Any]:
        """See `Scheduler.graph_compute`.

        Raises:
            InvalidState: an evaluation is under way.
        """
        check_no_batch(self.runner.backends, "Scheduler.graph_compute")
        with self._lock:
            if not self.turn.free:
                raise InvalidState(
                    "[Scheduler.graph_compute] another graph_compute is under way: await it first"
                )
            marks = check_written(graph, "Scheduler.graph_compute")
            if not self.planner.is_placed(graph):
                self.planner.place(graph)
            layout = finish(self.planner.all(graph, ()))
            future = self.runner.enqueue(layout, Job(graph, None, (), graph.inputs))
            marks.note()
        set_value(future, None)
        return future

    def _again(
        self, graph: Graph, prepared: PreparedSubmission, arrays: list[Array]
    ) -> Future[Any] | None:
        """Enqueue a prepared submission; None if the request has to be checked again."""
        known = prepared.known
        if observers or self.eval_callback is not None or not self._may_go():
            return None
        if not known.is_valid(graph):
            return None
        slot = self._slot(known)
        found = prepared.by_slot.get(slot)
        if found is None or found.layout is not known.layouts.get(slot):
            return None
        if not found.layout.is_current(self.planner.memory) or not found.recording.is_valid():
            return None
        self.planner.last = known
        request = prepared.request
        if request.due:
            request.check(self.brought)
        if found.order is not None:
            arrays = [arrays[i] for i in found.order]
        future = self.runner.repeat(found.recording, request, arrays)
        request.marks.note()
        return future

    def _enqueue(self, job: Job, ready: _Ready, key: RunKey) -> Future[Any]:
        known, layout = ready
        # When this submission came, a `set` had written the leaf. Another submission may have
        # brought a value since then, which this one must not read.
        job.request.check(self.brought)
        spoken = job if known.twins is None else job.in_terms_of(known.twins)
        future = self.runner.enqueue(layout, spoken)
        job.request.marks.note()
        if not known.brought:
            known.brought = True
            self.brought.update(job.floating)
        kept = self.planner.graphs.get(job.graph.uid)
        if key and not observers and kept is not None:
            prepare(kept.prepared, key, spoken, known)
        return future

    # -- planning

    def _slot(self, known: PlannedGraph) -> int | None:
        """The memory that the next submission of this program is to have."""
        if self._n_copies == 1 or known.shared.compact:
            return None
        line = self.runner.line
        if not known.shared.apart and not line.busy():
            return None
        return line.free_slot()

    async def ready(self, job: Job) -> _Ready:
        """The layout to use now, planned if there is none.

        Meanwhile others may submit what is known. Nothing is awaited once it is ready.
        """
        with self._lock:
            found = self._find_layout(job)
            if found is not None:
                return found
            self._planned_for.append(job.graph.uid)
        try:
            async with self.plans:
                while (found := self._find_now(job)) is None:
                    await give_way(self.planner.guard(self.plan_steps(job)))
        finally:
            self._planned_for.remove(job.graph.uid)
        return found

    def _find_now(self, job: Job) -> _Ready | None:
        with self._lock:
            return self._find_layout(job, planning=True)

    def _find_layout(self, job: Job, *, planning: bool = False) -> _Ready | None:
        """The layout to use now, if there is nothing left to plan.

        While another task plans, this may also be a layout whose buffers were replaced by larger
        ones (the layout keeps the old ones), or the compact layout in place of one with memory
        apart. None while the other task plans the same graph: submissions of one graph are enqueued
        in the order in which they came.
        """
        planner, graph = self.planner, job.graph
        if not planning and graph.uid in self._planned_for:
            return None
        known = planner.find_known(graph, job.floating)
        if known is None:
            return None
        layout = known.layouts.get(self._slot(known))
        if layout is None or not layout.is_current(planner.memory):
            if planning or self.plans.free:
                return None
            layout = layout or known.layouts.get(None)
            if layout is None:
                return None
        planner.last = known
        return _Ready(known, layout)

    def plan_steps(self, job: Job) -> Sliced[None]:
        """Plan what a job needs, in small steps.

        Raises:
            As `Scheduler.run`, about what is planned.
        """
        planner, graph = self.planner, job.graph
        known = yield from planner.program(graph, job.floating)
        omitted = [t for t in known.program.fixed if t in self.brought]
        if omitted:
            raise NotAllocated(
                f"[Scheduler.run] {omitted[0]!r} was an input of an earlier run and is missing "
                "in this one: give it again, or place it with backend.alloc"
            )
        slot = self._slot(known)
        try:
            yield from planner.layout(graph, known, slot)
        except AllocFailed:
            if slot is None:
                raise
            known.shared.compact = True  # no memory apart is available: submissions run in turn
            yield from planner.layout(graph, known, None)
