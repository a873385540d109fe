"""SchedulerBase: what a scheduler consists of, pins, looking at graphs and placing them.

Here: the part that running stands on. Not here: running (scheduler.py), decisions (assign.py,
split.py, layout.py), what is kept of graphs (planner.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from aggml.backend import Backend
from aggml.backend.props import DeviceType
from aggml.errors import (
    AlreadyAllocated,
    CapacityExceeded,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    Unsupported,
)
from aggml.graph import Graph
from aggml.memory.buffer_type import BufferType
from aggml.scheduler.deciding.show import SchedulePlan
from aggml.scheduler.layout.layout import measure
from aggml.scheduler.layout.rewrite import SIDE_STREAMS
from aggml.scheduler.planner import Planner
from aggml.scheduler.running.run import Runner
from aggml.scheduler.running.sides import Lanes
from aggml.stream.admission import Admission
from aggml.stream.slices import finish, give_way
from aggml.tensor import Tensor, checking

if TYPE_CHECKING:
    import numpy as np

    from aggml.memory.buffer import Buffer
    from aggml.scheduler.running.evaluate import EvalCallback

    Array = np.ndarray[Any, Any]

__all__ = ["COPIES", "SchedulerBase"]

MAX_BACKENDS: Final = 16
COPIES: Final = 4  # ggml's depth of a pipeline


class SchedulerBase:
    """The part of a `Scheduler` that runs nothing."""

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
        if max_in_flight is not None:
            max_in_flight = checking.integer(max_in_flight, "max_in_flight", "Scheduler")
            if max_in_flight < 1:
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
        self._runner = Runner(self._backends, self._lanes, copies, self._admission)
        self._planner = Planner(self._backends, self._types, self._lanes, op_offload=op_offload)
        self._placed: weakref.WeakKeyDictionary[Graph, list[Buffer]] = weakref.WeakKeyDictionary()
        self._brought: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self._turn = anyio.Lock()  # of who evaluates: no other submission comes between its parts
        self._plans = anyio.Lock()  # of who plans: another one that asks for the same finds it
        self._planned_for: list[int] = []  # graphs of those who have the lock or wait for it
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
        i = checking.integer(i, "i", "Scheduler.backend")
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
                *(("own", b, lane) for lane in range(1 + SIDE_STREAMS)),
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
        """Do all that `submit` needs for a graph first, giving way to the loop every 0.2 ms.

        Leafs without memory count as brought by each run.

        Raises:
            As `submit`.

        Cancellation: what was done is kept if it was finished.
        """
        self._check_graph(graph, "Scheduler.prepare")
        await give_way(self._planner.all(graph, self._planner.floating(graph)))


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
