"""Scheduler: one graph over several backends, several submissions in flight.

Here: the public class: running, admission, the end. Not here: what it consists of, pins, sizes
(base.py), enqueuing (run.py), looking at nodes in between (evaluate.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, overload

import anyio
import anyio.lowlevel

from aggml.backend.again import key_of
from aggml.backend.inputs import check_due, check_written, reshaped, shapes_of
from aggml.errors import AllocFailed, InvalidState, NotAllocated
from aggml.graph import Graph
from aggml.scheduler.base import SchedulerBase
from aggml.scheduler.running.evaluate import Evaluation, evaluate
from aggml.scheduler.running.job import Job
from aggml.stream.observe import watchers
from aggml.stream.reactor import CHECKPOINT
from aggml.stream.slices import finish, give_way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    import numpy as np

    from aggml.backend.inputs import Inputs, Outputs, Reuse, Shapes
    from aggml.scheduler.layout.layout import Layout
    from aggml.scheduler.planner import Known
    from aggml.scheduler.running.prepared import Repeat
    from aggml.stream.future import Future
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Scheduler"]


class Scheduler(SchedulerBase):
    """Runs graphs over several backends (``ggml_backend_sched``).

    It decides which backend computes which node, copies what has to cross, and keeps several
    submissions in flight. The graph passed is the graph run, and is never changed. Submissions are
    done in the order in which they were enqueued; one that fails or is aborted leaves the others.
    What is known is enqueued at once, also while another task's `submit` is planning; to have one
    come after the other, await the first ``submit``.
    A submission comes after all that was queued before it on the given backends.
    A graph seen before is not planned again, nor one that was built anew and is like one of the
    last 16 (the same ops, types, shapes and names over the same weights); plans of these, and so
    the weights that they read, are kept until `reset`.

    Args:
        backends: 1 to 16; the first has the highest priority. The last has to be one of a CPU: it
            runs what no other can.
        types: of the compute buffers, one for each backend; left out, their preferred ones.
        parallel: how many submissions may have inputs, results and values that cross devices in
            memory of their own, so that transfers of one run beside the computing of others. True
            stands for 4, False for 1. That memory is taken when it is first needed.
        op_offload: backends of higher priority may ask for ops whose weights are in host memory
            (`Device.offload_op`).
        max_in_flight: submissions that `submit` lets be in flight; None: any number.

    Attributes:
        max_in_flight: as given.
        eval_callback: see `set_eval_callback`.
        observed: what the node holds that the callback is shown at this moment.

    Raises:
        InvalidArgument, CapacityExceeded: no backend, more than 16, the last is no CPU, ...
        InvalidHandle: not a backend, or not a buffer type.
        Unsupported: a backend does not reach its buffer type.
    """

    # -- running

    def graph_compute(self, graph: Graph) -> Future[None]:
        """Run a graph over what its tensors hold (``ggml_backend_sched_graph_compute_async``).

        Allocates it first (`alloc_graph`) if that was not done. Never waits for a slot.

        Raises:
            As `alloc_graph`.
            AggmlError: by the Future.

        Cancellation: when the last task that awaits it is cancelled, the work is aborted.
        """
        self._check_graph(graph, "Scheduler.graph_compute")
        if self._turn.locked():
            raise InvalidState("[Scheduler.graph_compute] an evaluation is under way")
        check_written(graph, "Scheduler.graph_compute")
        if graph not in self._placed and graph.memory is None:
            self.alloc_graph(graph)
        layout = finish(self._planner.all(graph, ()))
        future = self._runner.enqueue(layout, Job(graph, None, (), graph.inputs))
        future._value = None
        return future

    graph_compute_async = graph_compute

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
    async def submit(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None = None,
        outputs: Tensor | str | Sequence[Any] = (),
        *,
        reuse: Reuse = (),
        shape: Any = None,
    ) -> Future[Any]:
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
        if self._closed or not isinstance(graph, Graph):
            self._check_graph(graph, "Scheduler.submit")
        if shape is not None:
            shapes = shapes_of(graph, outputs, shape, "Scheduler.submit")
            return reshaped(await self.submit(graph, inputs, outputs, reuse=reuse), shapes)
        key = key_of(graph.uid, outputs, inputs, reuse)
        repeat = self._planner.repeats.get(key)
        if repeat is None:
            job: Job | None = Job(graph, inputs, outputs, reuse, brought=self._brought)
        else:
            job = None
            check_due(repeat.due, "Scheduler.submit", self._brought)
        arrays = [] if repeat is None or inputs is None else repeat.arrays(inputs)
        await CHECKPOINT
        if repeat is not None and self._admission.free():
            future = self._again(graph, repeat, arrays)
            if future is not None:
                return future
        if job is None:
            assert repeat is not None
            job = Job(graph, repeat.inputs(arrays), outputs, brought=self._brought)
        await self._admission.admit()
        try:
            if self.eval_callback is not None:
                async with self._turn:
                    return await evaluate(self, job, self.eval_callback)
            layout = self._ready(job) or await self._planned(job)
            if self._turn.locked():
                async with self._turn:
                    future = self._enqueue(job, self._ready(job) or await self._planned(job))
            else:
                future = self._enqueue(job, layout)
            if key and not watchers:
                self._planner.repeat(key, job)
        except BaseException:
            self._admission.give_up()
            raise
        return future

    def _again(self, graph: Graph, repeat: Repeat, arrays: list[Array]) -> Future[Any] | None:
        """Enqueue what was asked for before; None if it has to be looked at anew."""
        known = repeat.known
        if watchers or self.eval_callback is not None or self._turn.locked():
            return None
        if not known.holds(graph) or graph.uid in self._planned_for:
            return None
        slot = self._slot(known)
        found = repeat.recordings.get(slot)
        if found is None:
            return None
        layout, recording = found
        planner = self._planner
        if layout is not known.layouts.get(slot) or not layout.is_current(planner.memory):
            return None
        if not recording.holds():
            return None
        planner.last = known
        check_due(repeat.due, "Scheduler.submit", self._brought)
        future = repeat.run(recording, self._runner.line, arrays)
        self._runner.note(future)
        repeat.marks.note()
        return future

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

    def evaluate(
        self,
        graph: Graph,
        inputs: Mapping[Tensor, object] | None = None,
        wanted: Callable[[Tensor], bool] | Iterable[Tensor] | None = None,
    ) -> Evaluation:
        """Run a graph node by node and iterate over ``(tensor, array)`` of those wanted.

        Args:
            graph: as `submit`.
            inputs: as `submit`.
            wanted: which nodes; None: all but views. Leaving the loop runs no further node.

        Cancellation: runs no further node.
        """
        self._check_graph(graph, "Scheduler.evaluate")
        return Evaluation(self, Job(graph, inputs, (), brought=self._brought), wanted)

    # -- how a submission comes about

    def _slot(self, known: Known) -> int | None:
        """Which memory the next submission of this program is to have."""
        if self._n_copies == 1 or known.shared.compact:
            return None
        line = self._runner.line
        if not known.shared.apart and not line.busy():
            return None
        return line.free_slot()

    def _ready(self, job: Job, *, planning: bool = False) -> Layout | None:
        """The layout to use now, if there is nothing left to plan; the job then speaks of it.

        While another task plans, that is also one whose buffers have been replaced by larger ones
        (it keeps them), or the compact one in place of one with memory apart. None while it plans
        this very graph: submissions of one graph are enqueued in the order in which they came.
        """
        if not planning and job.graph.uid in self._planned_for:
            return None
        known = self._planner.known.get(job.key)
        if known is None or not known.holds(job.graph):
            return None
        layout = known.layouts.get(self._slot(known))
        if layout is None or not layout.is_current(self._planner.memory):
            if planning or not self._plans.locked():
                return None
            layout = layout or known.layouts.get(None)
            if layout is None:
                return None
        self._planner.last = job.known = known
        if known.twins is not None:
            job.translate(known.twins)
        return layout

    async def _planned(self, job: Job) -> Layout:
        """Plan; meanwhile others may submit what is known. Nothing is awaited once it is ready."""
        self._planned_for.append(job.graph.uid)
        try:
            async with self._plans:
                while (layout := self._ready(job, planning=True)) is None:
                    await give_way(self._planning(job))
        finally:
            self._planned_for.remove(job.graph.uid)
        return layout

    def _planning(self, job: Job) -> Steps[None]:
        planner, graph = self._planner, job.graph
        known = yield from planner.program(graph, job.floating)
        omitted = [t for t in known.program.fixed if t in self._brought]
        if omitted:
            raise NotAllocated(
                f"[Scheduler.submit] {omitted[0]!r} was brought by an earlier run and is not by "
                "this one: give it again, or place it with backend.alloc"
            )
        slot = self._slot(known)
        try:
            yield from planner.layout(graph, known, slot)
        except AllocFailed:
            if slot is None:
                raise
            known.shared.compact = True  # no memory to be had apart: one after the other
            yield from planner.layout(graph, known, None)

    def _enqueue(self, job: Job, layout: Layout) -> Future[Any]:
        # Another submission may have brought meanwhile what a `set` had written when this one came.
        check_due(job.due, "Scheduler.submit", self._brought)
        future = self._runner.enqueue(layout, job)
        job.marks.note()
        known = job.known
        if known is not None and not known.brought:
            known.brought = True
            self._brought.update(job.floating)
        if self._admission.limit is not None:
            self._admission.used()
        return future

    # -- end

    def synchronize(self) -> Future[None]:
        """A Future of all that is queued on all backends (``ggml_backend_sched_synchronize``).

        Raises:
            ExceptionGroup: by the Future, of the failures that nobody has seen.

        Cancellation: abandons the wait; the work goes on.
        """
        runner = self._runner
        unseen: list[Exception] | None = None

        def report() -> None:
            nonlocal unseen
            if unseen is None:
                unseen = [f for s in runner.streams() for f in s.failures()]
            if unseen:
                raise ExceptionGroup(
                    f"[Scheduler.synchronize] {self!r}: {len(unseen)} failed unseen", unseen
                )

        future = runner.mark_all()
        future._finish = report
        return future

    def close(self) -> None:
        """Refuse new work; never blocks. What is in flight goes on; the given backends stay."""
        self._closed = True
        for lane in self._lanes.opened.values():
            lane.close()

    async def aclose(self) -> None:
        """Close, then wait until what was submitted is done.

        Cancellation: anyio scopes wait for it.
        """
        if not self._closed:
            last = self._runner.mark_all()
            self.close()
            with anyio.CancelScope(shield=True):
                await last.settled()
        await anyio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            for future in self._admission.unfinished():
                future.abort()
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        self._runner.busy()
        names = ", ".join(b.name for b in self._backends)
        return f"<Scheduler {names}: {len(self._admission.unfinished())} in flight>"
