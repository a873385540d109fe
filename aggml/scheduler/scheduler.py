"""Scheduler: one graph over several backends, several submissions in flight.

Here: the public class, which hands on to its parts. Not here: its checked arguments (arguments.py),
plans of graphs (planner.py), the way of a submission (running/submitter.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, overload

import anyio
import anyio.lowlevel

from aggml.backend.inputs import reshape_results, shapes_of
from aggml.errors import InvalidHandle, InvalidState
from aggml.graph import Graph
from aggml.scheduler.arguments import COPIES, SchedulerArguments
from aggml.scheduler.deciding.show import SchedulePlan
from aggml.scheduler.layout.layout import measure
from aggml.scheduler.planner import Planner
from aggml.scheduler.running.job import Job
from aggml.scheduler.running.run import Runner
from aggml.scheduler.running.sides import Sides
from aggml.scheduler.running.submitter import Submitter
from aggml.stream.admission import Admission
from aggml.stream.slices import give_way
from aggml.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from aggml.backend import Backend
    from aggml.backend.inputs import Inputs, Outputs, Reuse, Shapes
    from aggml.memory.buffer import Buffer
    from aggml.memory.buffer_type import BufferType
    from aggml.scheduler.running.evaluate import EvalCallback, Evaluation
    from aggml.stream.future import Future

    Array = np.ndarray[Any, Any]

__all__ = ["Scheduler"]


class Scheduler:
    """Runs graphs over several backends (``ggml_backend_sched``).

    It decides which backend computes which node, copies what has to cross, and keeps several
    submissions in flight. The graph passed is the graph run, and is never changed. Submissions are
    done in the order in which they were enqueued; one that fails or is aborted leaves the others.
    `run` enqueues at once, also while another task's `prepare` or `submit` is planning.
    A submission comes after all that was queued before it on the given backends.
    Tasks of any event loop, of asyncio or trio, and any thread may use it at the same time.
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
        max_in_flight: submissions that may be in flight; later ones are held back. None: any
            number.

    Raises:
        InvalidArgument, CapacityExceeded: no backend, more than 16, the last is no CPU, ...
        InvalidHandle: not a backend, or not a buffer type.
        Unsupported: a backend does not reach its buffer type.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        types: Sequence[BufferType] | None = None,
        *,
        parallel: bool | int = False,
        op_offload: bool = False,
        max_in_flight: int | None = COPIES,
    ) -> None:
        given = self._given = SchedulerArguments.check(backends, types, parallel, max_in_flight)
        self._admission = Admission(given.max_in_flight)
        self._sides = Sides(given.backends, given.types)
        self._runner = Runner(given.backends, self._sides, given.n_copies, self._admission)
        self._planner = Planner(given.backends, given.types, self._sides, op_offload=op_offload)
        self._submitter = Submitter(self._planner, self._runner, self._admission, given.n_copies)
        self._closed = False

    # -- its parts

    @property
    def backends(self) -> tuple[Backend, ...]:
        """In order of priority."""
        return self._given.backends

    @property
    def n_backends(self) -> int:
        """How many backends (``ggml_backend_sched_get_n_backends``)."""
        return len(self._given.backends)

    def backend(self, i: int) -> Backend:
        """By index (``ggml_backend_sched_get_backend``).

        Raises:
            InvalidArgument: there is none.
        """
        return self._given.backend(i)

    @property
    def max_in_flight(self) -> int | None:
        """Submissions that may be in flight; None: any number."""
        return self._given.max_in_flight

    @property
    def n_copies(self) -> int:
        """Submissions that may have memory apart (``ggml_backend_sched_get_n_copies``)."""
        return self._given.n_copies

    @property
    def n_splits(self) -> int:
        """Splits of the graph that was looked at last, 0 before (``..._get_n_splits``)."""
        last = self._planner.last
        return 0 if last is None else len(last.program.splits)

    def buffer_type(self, backend: Backend) -> BufferType:
        """The type of a backend's compute buffer (``..._get_buffer_type``).

        Raises:
            InvalidArgument: the backend is not one of this scheduler.
        """
        return self._given.types[self._given.index(backend, "Scheduler.buffer_type")]

    def buffer_size(self, backend: Backend) -> int:
        """Bytes allocated for a backend (``ggml_backend_sched_get_buffer_size``).

        Memory that it shares with an earlier one of the same type counts there. With ``parallel``,
        what submissions in flight have apart counts too, once it was needed. Leafs that
        `alloc_graph` placed for good do not.

        Raises:
            InvalidArgument: the backend is not one of this scheduler.
        """
        b = self._given.index(backend, "Scheduler.buffer_size")
        return self._planner.memory.size_for(b, self._given.types, self._given.n_copies)

    def buffer(self, backend: Backend) -> Buffer | None:
        """The compute buffer of a backend, None before there is one (``..._get_buffer``, old).

        Raises:
            InvalidArgument: the backend is not one of this scheduler.
        """
        have = self._planner.memory.buffers_of(self.buffer_type(backend))
        return have[0] if have else None

    # -- pins

    def set_tensor_backend(self, tensor: Tensor, backend: Backend) -> None:
        """Pin a tensor to a backend, until `reset` (``..._set_tensor_backend``).

        A pin holds: no pass moves the tensor elsewhere.

        Raises:
            InvalidHandle: not a tensor.
            InvalidArgument: the backend is not one of this scheduler.
        """
        if not isinstance(tensor, Tensor):
            raise InvalidHandle(f"[Scheduler.set_tensor_backend] {tensor!r} is no tensor")
        self._planner.pin(tensor, self._given.index(backend, "Scheduler.set_tensor_backend"))

    def get_tensor_backend(self, tensor: Tensor) -> Backend | None:
        """The backend that a tensor was pinned to, or assigned to with its graph; else None."""
        if not isinstance(tensor, Tensor):
            raise InvalidHandle(f"[Scheduler.get_tensor_backend] {tensor!r} is no tensor")
        b = self._planner.backend_of(tensor)
        return None if b is None else self._given.backends[b]

    def reset(self) -> None:
        """Forget pins, plans and memory (``ggml_backend_sched_reset``); what is in flight goes on.

        Graphs that `alloc_graph` placed are unplaced.
        """
        self._planner.forget()

    def forget(self, graph: Graph) -> None:
        """Let go of one graph's plan, which keeps its tensors; what is in flight goes on.

        The graph may be submitted again. Compute buffers, and what `alloc_graph` placed, stay until
        `reset`.
        """
        self._check_graph(graph, "Scheduler.forget", closed=True)
        self._planner.drop(graph)

    # -- looking at a graph

    def _check_graph(self, graph: object, what: str, *, closed: bool = False) -> None:
        """Refuse work when closed, unless that may be, and what is no graph."""
        if self._closed and not closed:
            raise InvalidState(f"[{what}] {self!r} is closed")
        if not isinstance(graph, Graph):
            raise InvalidHandle(f"[{what}] {graph!r} is no Graph")

    def split_graph(self, graph: Graph) -> None:
        """Assign and cut a graph, allocate nothing (``ggml_backend_sched_split_graph``).

        Leafs without memory count as brought by each run.

        Raises:
            NoBackendForOp: no backend can run a node where its data lies.
        """
        self._check_graph(graph, "Scheduler.split_graph")
        self._planner.finish(self._planner.program(graph, self._planner.floating_leafs(graph)))

    def plan(self, graph: Graph) -> SchedulePlan:
        """Which backend would run which node, and why; to be printed, or drawn with ``dot()``.

        Raises:
            NoBackendForOp: no backend can run a node where its data lies.
        """
        self._check_graph(graph, "Scheduler.plan")
        planner = self._planner
        known = planner.finish(planner.program(graph, planner.floating_leafs(graph), own=True))
        return SchedulePlan(known.program)

    def reserve_size(self, graph: Graph) -> tuple[int, ...]:
        """Bytes that each backend would need for a graph; changes nothing (``..._reserve_size``).

        A type that several backends share is reported for each of them.
        """
        self._check_graph(graph, "Scheduler.reserve_size")
        planner = self._planner
        return measure(
            planner.finish(planner.build_split_graph(graph, planner.floating_leafs(graph)))
        )

    def reserve(self, graph: Graph) -> None:
        """Make the compute buffers large enough for a graph (``ggml_backend_sched_reserve``).

        Raises:
            AllocFailed: no memory; the buffers are as before.
            NoBackendForOp: no backend can run a node where its data lies.
        """
        self._check_graph(graph, "Scheduler.reserve")
        self._planner.finish(self._planner.all(graph, self._planner.floating_leafs(graph)))

    init_measure = reserve

    def alloc_graph(self, graph: Graph) -> None:
        """Place a graph for good, to be set, computed and read by hand (``..._alloc_graph``).

        Leafs without memory, ends and OUTPUT tensors get memory on the backend that they were
        assigned to, until `reset` or the end of the scheduler; the rest shares the compute buffers.
        Not needed for `run` and `submit`.

        Raises:
            AlreadyAllocated: it has been placed.
            AllocFailed: no memory.
            NoBackendForOp: no backend can run a node where its data lies.
        """
        self._check_graph(graph, "Scheduler.alloc_graph")
        self._planner.place(graph)

    async def prepare(self, graph: Graph) -> None:
        """Do all that `run` needs for a graph first, giving way to the loop every 0.2 ms.

        Leafs without memory count as brought by each run.

        Raises:
            As `run`, about the graph.

        Cancellation: what was done is kept if it was finished.
        """
        self._check_graph(graph, "Scheduler.prepare")
        planner = self._planner
        await give_way(planner.guard(planner.all(graph, planner.floating_leafs(graph))))

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
        return self._submitter.submit_now(graph)

    graph_compute_async = graph_compute

    @overload
    def run(
        self,
        graph: Graph,
        inputs: Inputs | None,
        outputs: Tensor | str,
        *,
        reuse: Reuse = (),
        shape: tuple[int, ...] | None = None,
    ) -> Future[Array]: ...
    @overload
    def run(
        self,
        graph: Graph,
        inputs: Inputs | None = None,
        outputs: Outputs = (),
        *,
        reuse: Reuse = (),
        shape: Shapes | None = None,
    ) -> Future[list[Array]]: ...
    def run(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None = None,
        outputs: Tensor | str | Sequence[Any] = (),
        *,
        reuse: Reuse = (),
        shape: Any = None,
    ) -> Future[Any]:
        """Set, compute and get as one indivisible unit, enqueued in one step by this call.

        If ``max_in_flight`` submissions are in flight, the streams of the backends hold the work
        back until one of them is done; nobody waits. If the graph was not seen before, this call
        plans it: `prepare` does that without holding up the loop.

        Args:
            graph: need not be placed.
            inputs: what to write to which leaf, as `Backend.set` takes it; borrowed until done. A
                leaf is given as the tensor or, where that is unique in the graph, by its name.
            outputs: ends of the graph, tensors flagged OUTPUT, or leafs that have memory; or names.
            reuse: as `Backend.run` has it; such a leaf has memory.
            shape: of the result, as `Backend.run` has it.

        Returns:
            A Future of an array, or of a list of arrays if ``outputs`` is a sequence. Futures of
            one scheduler get done in the order of these calls.

        Raises:
            NotAllocated: an output cannot be read; a leaf has no value; a leaf flagged INPUT was
                never written, or only by an earlier run.
            NoBackendForOp: no backend can run a node where its data lies.
            AllocFailed: no memory.
            LayoutMismatch, InvalidArgument: an array does not fit its tensor; an input is no leaf
                of the graph; a name is not unique in it.
            InvalidState: the scheduler is closed; or there is an eval callback, or an evaluation is
                under way, and no event loop runs in this thread.
            AggmlError: by the Future, from whatever failed first.

        With an eval callback, and while an `evaluate` is under way, a task of this event loop
        enqueues the work later, in the order of these calls. Then errors of planning are those of
        the Future.

        Cancellation: when the last task that awaits the Future is cancelled, the work is aborted;
        see `Future.shield`.
        """
        if self._closed or not isinstance(graph, Graph):
            self._check_graph(graph, "Scheduler.run")
        if shape is not None:
            shape = shapes_of(graph, outputs, shape, "Scheduler.run")
        return self._submitter.run(graph, inputs, outputs, reuse, shape)

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
        """`run` for a task that is not to queue more and more work ahead of the devices.

        It waits for one of the ``max_in_flight`` places, first come, first served, and plans a new
        graph in slices, so that other tasks of the loop go on. Then it enqueues the work.

        Args:
            graph: as of `run`.
            inputs: as of `run`.
            outputs: as of `run`.
            reuse: as of `run`.
            shape: as of `run`.

        Returns:
            The Future of the work, as `run`.

        Raises:
            As `run`.

        Cancellation: of ``submit``, gives the place in the queue up; nothing is enqueued. Of the
        Future: as `run`.
        """
        self._check_graph(graph, "Scheduler.submit")
        if shape is None:
            return await self._submitter.submit(graph, inputs, outputs, reuse)
        shapes = shapes_of(graph, outputs, shape, "Scheduler.submit")
        return reshape_results(await self._submitter.submit(graph, inputs, outputs, reuse), shapes)

    # -- node by node

    @property
    def eval_callback(self) -> EvalCallback | None:
        """See `set_eval_callback`."""
        return self._submitter.eval_callback

    @property
    def observed(self) -> Array | None:
        """What the node holds that the callback is shown at this moment."""
        return self._submitter.observed

    def set_eval_callback(self, callback: EvalCallback | None) -> None:
        """Have each later `run` ask for nodes and show them (``..._set_eval_callback``).

        Args:
            callback: ``callback(node, ask)``, called for each node in order with ``ask`` True:
                whether the node is wanted. A node that is, is computed with all before it; then it
                is called with ``ask`` False, while ``scheduler.observed`` is an array of what the
                node holds. If it returns False, nothing further is run and the Future raises
                Aborted. None: no callback.
        """
        self._submitter.eval_callback = callback

    def evaluate(
        self,
        graph: Graph,
        inputs: Mapping[Tensor, object] | None = None,
        wanted: Callable[[Tensor], bool] | Iterable[Tensor] | None = None,
    ) -> Evaluation:
        """Run a graph node by node and iterate over ``(tensor, array)`` of those wanted.

        Args:
            graph: as of `run`.
            inputs: as of `run`.
            wanted: which nodes; None: all but views. Leaving the loop runs no further node.

        Cancellation: runs no further node.
        """
        self._check_graph(graph, "Scheduler.evaluate")
        job = Job(graph, inputs, (), brought=self._submitter.brought)
        return self._submitter.evaluation(job, wanted)

    # -- end

    def synchronize(self) -> Future[None]:
        """A Future of all that is queued on all backends (``ggml_backend_sched_synchronize``).

        Raises:
            ExceptionGroup: by the Future, of the failures that nobody has seen.

        Cancellation: abandons the wait; the work goes on.
        """
        return self._runner.synchronize(repr(self))

    def close(self) -> None:
        """Refuse new work; never blocks. What is in flight goes on; the given backends stay."""
        self._closed = True
        self._sides.close()

    async def aclose(self) -> None:
        """Close, then wait until what was submitted is done.

        Cancellation: anyio scopes wait for it.
        """
        if not self._closed:
            last = self._runner.mark_all()
            self.close()
            with anyio.CancelScope(shield=True):
                await last.wait_until_done()
        await anyio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, raised: object, *_: object) -> None:
        if raised is not None:
            for future in self._admission.unfinished_futures():
                future.abort()
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        self._runner.busy()
        names = ", ".join(b.name for b in self._given.backends)
        return f"<Scheduler {names}: {len(self._admission.unfinished_futures())} in flight>"
