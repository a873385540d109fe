"""Scheduler: one graph over several backends, several submissions in flight.

Here: the public class: pins, plans that are kept, admission, sizes. Not here: decisions (assign.py,
split.py, copies.py, layout.py), enqueuing (run.py), looking at nodes in between (evaluate.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, overload

import anyio
import anyio.lowlevel

from aggml import transfer
from aggml.admission import Admission
from aggml.backend import Backend
from aggml.buffer import BufferType
from aggml.device import DeviceType
from aggml.errors import (
    AllocFailed,
    AlreadyAllocated,
    CapacityExceeded,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    NotAllocated,
    Unsupported,
)
from aggml.graph import Graph
from aggml.scheduler.evaluate import EvalCallback, Evaluation, evaluate
from aggml.scheduler.job import Job
from aggml.scheduler.lanes import Lanes
from aggml.scheduler.layout import COMPUTE_LANES, Layout, measure
from aggml.scheduler.planner import Known, Planner
from aggml.scheduler.run import Runner
from aggml.scheduler.show import SchedulePlan
from aggml.steps import finish, give_way
from aggml.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import numpy as np

    from aggml.buffer import Buffer
    from aggml.future import Future
    from aggml.steps import Steps

    Array = np.ndarray[Any, Any]

__all__ = ["Scheduler"]

MAX_BACKENDS: Final = 16
COPIES: Final = 4  # ggml's depth of a pipeline


class Scheduler:
    """Runs graphs over several backends (``ggml_backend_sched``).

    It decides which backend computes which node, copies what has to cross, and keeps several
    submissions in flight. The graph passed is the graph run, and is never changed. Submissions are
    done in the order in which they were enqueued; one that fails or is aborted leaves the others.
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

    def __init__(
        self,
        backends: Sequence[Backend],
        types: Sequence[BufferType] | None = None,
        *,
        parallel: bool | int = False,
        op_offload: bool = False,
        max_in_flight: int | None = COPIES,
    ) -> None:
        given: list[Backend] = _sequence(backends, "backends", Backend)
        kinds: list[BufferType] = (
            [b.buffer_type for b in given]
            if types is None
            else _sequence(types, "types", BufferType)
        )
        _check(given, kinds)
        if max_in_flight is not None and max_in_flight < 1:
            raise InvalidArgument(f"[Scheduler] max_in_flight={max_in_flight} is not positive")
        copies = COPIES if parallel is True else int(parallel) or 1
        if copies < 1:
            raise InvalidArgument(f"[Scheduler] parallel={parallel} is negative")
        self._backends = tuple(given)
        self._types = tuple(kinds)
        self._n_copies = copies
        self.max_in_flight = max_in_flight
        self._admission = Admission(max_in_flight)
        self._lanes = Lanes(self._backends, self._types)
        self._runner = Runner(self._backends, self._lanes)
        self._planner = Planner(self._backends, self._types, self._lanes, op_offload=op_offload)
        self._placed: weakref.WeakKeyDictionary[Graph, list[Buffer]] = weakref.WeakKeyDictionary()
        self._brought: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self._turn = anyio.Lock()
        self._closed = False
        self.eval_callback: EvalCallback | None = None
        self.observed: Array | None = None

    # -- what it consists of

    @property
    def n_backends(self) -> int:
        """How many backends (``ggml_backend_sched_get_n_backends``)."""
        return len(self._backends)

    @property
    def backends(self) -> tuple[Backend, ...]:
        """In order of priority."""
        return self._backends

    def backend(self, i: int) -> Backend:
        """By index (``ggml_backend_sched_get_backend``).

        Raises:
            InvalidArgument: there is none.
        """
        i = transfer.integer(i, "i", "Scheduler.backend")
        if not 0 <= i < len(self._backends):
            raise InvalidArgument(
                f"[Scheduler.backend] {i}: there are {len(self._backends)} backends"
            )
        return self._backends[i]

    @property
    def n_copies(self) -> int:
        """Submissions that may have memory apart (``ggml_backend_sched_get_n_copies``)."""
        return self._n_copies

    @property
    def n_splits(self) -> int:
        """Splits of the graph that was looked at last, 0 before (``..._get_n_splits``)."""
        last = self._planner.last
        return 0 if last is None else len(last.program.splits)

    def _index(self, backend: object, what: str) -> int:
        for i, mine in enumerate(self._backends):
            if mine is backend:
                return i
        if not isinstance(backend, Backend):
            raise InvalidHandle(f"[{what}] {backend!r} is no Backend")
        raise InvalidArgument(f"[{what}] {backend!r} is not one of this scheduler")

    def buffer_type(self, backend: Backend) -> BufferType:
        """The type of a backend's compute buffer (``..._get_buffer_type``).

        Raises:
            InvalidArgument: the backend is not one of this scheduler.
        """
        return self._types[self._index(backend, "Scheduler.buffer_type")]

    def buffer_size(self, backend: Backend) -> int:
        """Bytes allocated for a backend (``ggml_backend_sched_get_buffer_size``).

        Memory that it shares with an earlier one of the same type counts there. With ``parallel``,
        what submissions in flight have apart counts too, once it was needed. Leafs that
        `alloc_graph` placed for good do not.

        Raises:
            InvalidArgument: the backend is not one of this scheduler.
        """
        b = self._index(backend, "Scheduler.buffer_size")
        size = sum(
            self._planner.memory.size(key)
            for key in (
                *(("own", b, lane) for lane in range(1 + COMPUTE_LANES)),
                *(("slot", s, b) for s in range(self._n_copies)),
            )
        )
        first = next(i for i, kind in enumerate(self._types) if kind is self._types[b])
        return size + (self._planner.memory.size(("type", id(self._types[b]))) if first == b else 0)

    def buffer(self, backend: Backend) -> Buffer | None:
        """The compute buffer of a backend, None before there is one (``..._get_buffer``, old).

        Raises:
            InvalidArgument: the backend is not one of this scheduler.
        """
        b = self._index(backend, "Scheduler.buffer")
        have = self._planner.memory.buffers.get(("type", id(self._types[b])))
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
        b = self._index(backend, "Scheduler.set_tensor_backend")
        self._planner.pin(tensor, b)

    def get_tensor_backend(self, tensor: Tensor) -> Backend | None:
        """Where a tensor was pinned, or assigned when its graph was last looked at; else None."""
        if not isinstance(tensor, Tensor):
            raise InvalidHandle(f"[Scheduler.get_tensor_backend] {tensor!r} is no tensor")
        b = self._planner.backend_of(tensor)
        return None if b is None else self._backends[b]

    def reset(self) -> None:
        """Forget pins, plans and memory (``ggml_backend_sched_reset``); what is in flight goes on.

        Graphs that `alloc_graph` placed are unplaced.
        """
        self._planner.forget()
        for graph, buffers in list(self._placed.items()):
            for buffer in buffers:
                buffer.close()
            del self._placed[graph]

    # -- looking at a graph

    def _check_graph(self, graph: object, what: str) -> None:
        if self._closed:
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
        finish(self._planner.program(graph, self._planner.floating(graph)))

    def plan(self, graph: Graph) -> SchedulePlan:
        """What would be run where, and why; to be printed, or drawn with ``dot()``.

        Raises:
            NoBackendForOp: no backend can run a node where its data lies.
        """
        self._check_graph(graph, "Scheduler.plan")
        planner = self._planner
        known = finish(planner.program(graph, planner.floating(graph), own=True))
        return SchedulePlan(known.program)

    def reserve_size(self, graph: Graph) -> tuple[int, ...]:
        """Bytes that each backend would need for a graph; changes nothing (``..._reserve_size``).

        A type that several backends share is reported for each of them.
        """
        self._check_graph(graph, "Scheduler.reserve_size")
        return measure(finish(self._planner.building(graph, self._planner.floating(graph))))

    def reserve(self, graph: Graph) -> None:
        """Make the compute buffers large enough for a graph (``ggml_backend_sched_reserve``).

        Raises:
            AllocFailed: no memory; the buffers are as before.
            NoBackendForOp: no backend can run a node where its data lies.
        """
        self._check_graph(graph, "Scheduler.reserve")
        finish(self._planner.all(graph, self._planner.floating(graph)))

    init_measure = reserve

    def alloc_graph(self, graph: Graph) -> None:
        """Place a graph for good, to be set, computed and read by hand (``..._alloc_graph``).

        Leafs without memory, ends and OUTPUT tensors get memory on the backend that they were
        assigned to, until `reset` or the end of the scheduler; the rest shares the compute buffers.
        Not needed for `submit` and `run`.

        Raises:
            AlreadyAllocated: it has been placed.
            AllocFailed: no memory.
            NoBackendForOp: no backend can run a node where its data lies.
        """
        self._check_graph(graph, "Scheduler.alloc_graph")
        if graph in self._placed or graph.memory is not None:
            raise AlreadyAllocated(
                f"[Scheduler.alloc_graph] {graph!r} has been placed; reset first"
            )
        known = finish(self._planner.program(graph, (), own=True))
        program = known.program
        groups: dict[int, list[Tensor]] = {}
        for tensor in (*program.fixed, *program.kept):
            if tensor.placement is None and tensor.view_src is None:
                groups.setdefault(program.at(tensor), []).append(tensor)
        buffers: list[Buffer] = []
        try:
            for b, group in groups.items():
                tensors = list(dict.fromkeys(group))
                buffers.append(self._types[b].alloc_tensors(tensors))
            known.remember(graph)
            finish(self._planner.layout(graph, known, None))
        except BaseException:
            for buffer in buffers:
                buffer.close()
            raise
        self._placed[graph] = buffers

    async def prepare(self, graph: Graph) -> None:
        """Do all that `submit` needs for a graph first, giving way to the loop every 0.5 ms.

        Leafs without memory count as brought by each run.

        Raises:
            As `submit`.

        Cancellation: what was done is kept if it was finished.
        """
        self._check_graph(graph, "Scheduler.prepare")
        await give_way(self._planner.all(graph, self._planner.floating(graph)))

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
        if graph not in self._placed and graph.memory is None:
            self.alloc_graph(graph)
        layout = finish(self._planner.all(graph, ()))
        future = self._runner.enqueue(layout, Job(graph, None, ()))
        future._value = None
        return future

    graph_compute_async = graph_compute

    @overload
    async def submit(
        self, graph: Graph, inputs: Mapping[Tensor, object] | None, outputs: Tensor
    ) -> Future[Array]: ...
    @overload
    async def submit(
        self, graph: Graph, inputs: Mapping[Tensor, object] | None, outputs: Sequence[Tensor] = ()
    ) -> Future[list[Array]]: ...
    async def submit(
        self,
        graph: Graph,
        inputs: Mapping[Tensor, object] | None = None,
        outputs: Tensor | Sequence[Tensor] = (),
    ) -> Future[Any]:
        """Wait for a slot, first come, first served; then enqueue set, compute, get in one step.

        Args:
            graph: need not be placed. What it was not seen with before is planned first, giving
                way to the loop.
            inputs: what to write to which leaf, as `Backend.set` takes it; borrowed until done.
            outputs: ends of the graph, tensors flagged OUTPUT, or leafs that have memory.

        Returns:
            A Future of an array, or of a list of arrays if ``outputs`` is a sequence. Futures of
            one scheduler get done in the order of their submission.

        Raises:
            NotAllocated: an output cannot be read; a leaf has no value.
            NoBackendForOp: no backend can run a node where its data lies.
            AllocFailed: no memory.
            LayoutMismatch, InvalidArgument: an array does not fit its tensor.
            AggmlError: by the Future, from whatever failed first.

        Cancellation: of ``submit``, gives the place in the queue up. Of the Future: when the last
        task that awaits it is cancelled, the work is aborted; see `Future.shield`.
        """
        self._check_graph(graph, "Scheduler.submit")
        job = Job(graph, inputs, outputs)
        await self._admission.wait()
        try:
            if self.eval_callback is not None:
                async with self._turn:
                    return await evaluate(self, job, self.eval_callback)
            layout = None if self._turn.locked() else self._ready(job)
            if layout is None:
                async with self._turn:
                    while (layout := self._ready(job)) is None:
                        await give_way(self._planning(job))
            future = self._enqueue(job, layout)
        except BaseException:
            self._admission.give_up()
            raise
        return future

    @overload
    async def run(
        self, graph: Graph, inputs: Mapping[Tensor, object] | None, outputs: Tensor
    ) -> Array: ...
    @overload
    async def run(
        self, graph: Graph, inputs: Mapping[Tensor, object] | None, outputs: Sequence[Tensor] = ()
    ) -> list[Array]: ...
    async def run(
        self,
        graph: Graph,
        inputs: Mapping[Tensor, object] | None = None,
        outputs: Tensor | Sequence[Tensor] = (),
    ) -> Any:
        """`submit`, then await the result.

        Raises:
            As `submit`; and what the work failed with.

        Cancellation: aborts the work.
        """
        return await (await self.submit(graph, inputs, outputs))

    def set_eval_callback(self, callback: EvalCallback | None) -> None:
        """Have each later `submit` ask for nodes and show them (``..._set_eval_callback``).

        Args:
            callback: ``callback(node, ask)``, called for each node in order with ``ask`` True:
                whether the node is wanted. A node that is, is computed with all before it; then it
                is called with ``ask`` False, while ``scheduler.observed`` is an array of what the
                node holds. If it returns False, nothing further is run and the Future raises
                Aborted. None: no callback.
        """
        self.eval_callback = callback

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
        return Evaluation(self, Job(graph, inputs, ()), wanted)

    # -- how a submission comes about

    def _slot(self, known: Known) -> int | None:
        """Which memory the next submission of this program is to have."""
        if self._n_copies == 1 or known.shared.compact:
            return None
        apart = any(slot is not None for slot in known.layouts)
        if not apart and not self._runner.busy():
            return None
        return self._runner.free_slot(self._n_copies)

    def _ready(self, job: Job) -> Layout | None:
        """The layout to use now, if there is nothing left to plan; the job then speaks of it."""
        known = self._planner.known.get(job.key)
        if known is None or not known.holds(job.graph):
            return None
        layout = known.layouts.get(self._slot(known))
        if layout is None or not layout.is_current(self._planner.memory):
            return None
        self._planner.last = job.known = known
        if known.twins is not None:
            job.translate(known.twins)
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
        future = self._runner.enqueue(layout, job)
        known = job.known
        if known is not None and not known.brought:
            known.brought = True
            self._brought.update(job.floating)
        self._admission.note(future, None)
        return future

    # -- end

    def synchronize(self) -> Future[None]:
        """A Future of all that is queued on all backends (``ggml_backend_sched_synchronize``).

        Raises:
            ExceptionGroup: by the Future, of the failures that nobody has seen.
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
            for future in self._runner.in_flight:
                future.abort()
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        self._runner.busy()
        names = ", ".join(b.name for b in self._backends)
        return f"<Scheduler {names}: {len(self._runner.in_flight)} in flight>"


def _sequence(given: object, what: str, kind: type[Any]) -> list[Any]:
    if not isinstance(given, Iterable):
        raise InvalidHandle(f"[Scheduler] {what}={given!r} is no list")
    found = list(given)
    for one in found:
        if not isinstance(one, kind):
            raise InvalidHandle(f"[Scheduler] {one!r} in {what} is no {kind.__name__}")
    return found


def _check(backends: list[Backend], types: list[BufferType]) -> None:
    if not backends:
        raise InvalidArgument("[Scheduler] no backend")
    if len(backends) > MAX_BACKENDS:
        raise CapacityExceeded(f"[Scheduler] {len(backends)} backends, {MAX_BACKENDS} is the most")
    if len(types) != len(backends):
        raise InvalidArgument(f"[Scheduler] {len(types)} types for {len(backends)} backends")
    if len({id(b) for b in backends}) != len(backends):
        raise InvalidArgument("[Scheduler] a backend is given twice")
    for backend, kind in zip(backends, types, strict=True):
        if not backend.device.supports_buffer_type(kind):
            raise Unsupported(f"[Scheduler] {backend!r} does not reach {kind!r}")
        if backend.closed:
            raise InvalidState(f"[Scheduler] {backend!r} is closed")
    if backends[-1].device.type is not DeviceType.CPU:
        raise InvalidArgument(
            f"[Scheduler] the last backend has to be one of a CPU, which runs what no other can; "
            f"{backends[-1]!r} is not"
        )
