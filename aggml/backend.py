"""Backend: ordered work on one device, from set, run and get to events, batches and closing.

Here: the interface a device implements; arguments are validated here, the hooks (`_set`, `_get`,
...) get them right. Not here: what an array must look like (transfer.py), memory of graphs
(graph_memory.py), waking (future.py).
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import anyio
import anyio.lowlevel
import numpy as np

from aggml import transfer
from aggml.admission import Admission
from aggml.buffer import Buffer, BufferType, alloc_tensors, host_tensor
from aggml.errors import (
    AggmlError,
    AlreadyAllocated,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    LayoutMismatch,
    NotAllocated,
)
from aggml.event import Event
from aggml.future import Future
from aggml.graph import Graph
from aggml.graph_memory import GraphBuffer, GraphMemory, placing
from aggml.native import _native
from aggml.reactor import current_task
from aggml.steps import finish, give_way
from aggml.stream import Stream
from aggml.tensor import Tensor, same_layout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from aggml.batch import Batch
    from aggml.device import Device
    from aggml.plan import Plan
    from aggml.steps import Steps

__all__ = ["Backend", "GraphPlan"]

T = TypeVar("T")
Array = np.ndarray[Any, Any]
_log = logging.getLogger("aggml")


class GraphPlan:
    """A graph compiled for one backend, to be shown and run again (ggml_backend_graph_plan_*)."""

    def __init__(self, backend: Backend, graph: Graph) -> None:
        self.backend = backend
        self.graph = graph
        backend._plan(graph)

    @property
    def plan(self) -> Plan:
        """The plan for where the tensors lie now."""
        return self.backend._plan(self.graph)

    def update(self, graph: Graph) -> None:
        """Compile another graph into this object."""
        self.backend._plan(graph)
        self.graph = graph

    def compute(self) -> Future[None]:
        """Enqueue one run, as ``backend.graph_compute(graph)`` does."""
        return self.backend.graph_compute(self.graph)

    def __str__(self) -> str:
        return str(self.plan)


class Backend(ABC):
    """A stream of work on one device; open once constructed.

    Operations run in the order submitted. Every method that returns a Future returns at once;
    misuse raises at the call, before anything is queued; what fails later fails its Future and
    poisons what it would have written.
    """

    def __init__(self, device: Device, stream: Stream, *, max_queued: int | None = None) -> None:
        self.device = device
        self.stream = stream
        self._admission = Admission(max_queued)
        self.memory = GraphMemory(device.buffer_type)
        self._drained: Future[None] | None = None

    # -- what a device implements

    @abstractmethod
    def _set(self, tensor: Tensor, array: Array) -> Future[None]:
        """Write all elements; ``array`` is 4-D, of the tensor's type and shape."""

    @abstractmethod
    def _get(self, tensor: Tensor, array: Array) -> Future[None]:
        """Read all elements into a 4-D array."""

    @abstractmethod
    def _set_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        """Write contiguous bytes at ``offset`` of the span."""

    @abstractmethod
    def _get_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        """Read contiguous bytes from ``offset`` of the span."""

    @abstractmethod
    def _memset(self, tensor: Tensor, value: int, offset: int, size: int) -> Future[None]:
        """Set bytes of the span."""

    @abstractmethod
    def _copy(self, src: Tensor, dst: Tensor) -> Future[None]:
        """Copy between tensors of the same type, extents and strides that this device reaches."""

    @abstractmethod
    def _clear(self, buffer: Buffer, value: int) -> Future[None]:
        """Set every byte of a buffer of this device."""

    @abstractmethod
    def _compile(self, graph: Graph, memory: GraphBuffer) -> Steps[Plan]:
        """Compile, in small steps."""

    @abstractmethod
    def _compute(self, plan: Plan, arena: Buffer | None) -> Future[None]:
        """Run a compiled graph."""

    # -- names and state

    @property
    def name(self) -> str:
        """That of the stream, which devices name after themselves."""
        return self.stream.name

    @property
    def buffer_type(self) -> BufferType:
        """Where `alloc` takes memory from (ggml_backend_get_default_buffer_type)."""
        return self.device.buffer_type

    @property
    def pending(self) -> int:
        """Operations that are queued or running."""
        return self.stream.pending

    @property
    def closed(self) -> bool:
        """Whether new work is refused."""
        return self.stream.closed

    def __repr__(self) -> str:
        state = "closed" if self.closed else "idle" if self.pending == 0 else "busy"
        return f"<Backend {self.name}, {self.pending} queued, {state}>"

    # -- checks

    def _check_open(self, what: str) -> None:
        if self.stream.native.closed:
            raise InvalidState(f"[{what}] {self!r} is closed")

    def _check_tensor(self, tensor: Tensor, what: str, *, write: bool = False) -> None:
        """Refuse a tensor that has no memory, or none in reach, or none that may be written."""
        if not isinstance(tensor, Tensor):
            raise InvalidHandle(f"[{what}] {tensor!r} is no tensor")
        placement = tensor.root.placement
        if placement is None:
            hint = "" if tensor.root.op == "none" else "; flag a node with set_output() to read it"
            raise NotAllocated(f"[{what}] {tensor!r} has no memory{hint}")
        if not self.device.supports_buffer_type(placement.buffer.type):
            raise InvalidArgument(
                f"[{what}] {tensor!r} lies in {placement.buffer!r}, out of reach of {self!r}"
            )
        if not (placement.readable or write):
            raise NotAllocated(
                f"[{what}] {tensor!r} lies where other nodes are computed too; "
                "flag it with set_output() to read it"
            )
        if write and not placement.buffer.writable:
            raise InvalidArgument(
                f"[{what}] {tensor!r} lies in {placement.buffer!r}, which is read-only"
            )

    # -- data

    def set(
        self,
        tensor: Tensor,
        x: object,
        *,
        offset: int | None = None,
        size: int | None = None,
        copy: bool = False,
    ) -> Future[None]:
        """Write elements, after all earlier work of this backend (ggml_backend_tensor_set_async).

        Args:
            tensor: any placed tensor, also a strided view.
            x: an array of the tensor's element type (bf16: ml_dtypes.bfloat16 or uint16 bits;
                quantized: uint8 blocks), of any strides, its shape the tensor's in numpy order
                after leading 1s are dropped, or flat. Borrowed until the Future is done.
            offset: first byte of the span to write; then ``x`` is contiguous, its bytes are taken.
            size: bytes to write, as many as ``x`` has; either of the two asks for bytes.
            copy: take a snapshot of ``x`` first.

        Raises:
            NotAllocated, InvalidArgument: ``tensor`` has no memory, or not on this device.
            LayoutMismatch: element type or shape differ.
            OutOfBounds: ``offset + size`` is beyond ``tensor.nbytes``.
            InvalidState: the backend is closed.

        Cancellation: abandons the wait; the write goes on.
        """
        self._check_open("Backend.set")
        self._check_tensor(tensor, "Backend.set", write=True)
        if offset is None and size is None:
            array = transfer.incoming(x, tensor, "Backend.set")
            future = self._set(tensor, array.copy() if copy else array)
        else:
            data = transfer.bytes_of(x, "Backend.set")
            start, n = transfer.byte_range(
                tensor, offset, data.nbytes if size is None else size, "Backend.set"
            )
            if data.nbytes != n:
                raise LayoutMismatch(
                    f"[Backend.set] size={n} bytes are to be written, the array has {data.nbytes}"
                )
            future = self._set_bytes(tensor, data.copy() if copy else data, start)
        return self._unit(future)

    def get(
        self,
        tensor: Tensor,
        out: Array | None = None,
        shape: tuple[int, ...] | None = None,
        *,
        offset: int | None = None,
        size: int | None = None,
    ) -> Future[Array]:
        """Read elements, after all earlier work of this backend (ggml_backend_tensor_get_async).

        Args:
            tensor: any placed tensor, also a strided view, read in logical order; a node inside a
                graph needs the OUTPUT flag.
            out: writable, any strides; a new array of ``shape`` or ``tensor.shape`` if not given.
            shape: another shape of the same number of elements.
            offset: first byte of the span to read; the result is then bytes (uint8).
            size: bytes to read, to the end of the span if not given; the result is then bytes.

        Returns:
            A Future of the array. It keeps tensor, buffer and ``out`` alive until done.

        Raises:
            NotAllocated, InvalidArgument: ``tensor`` has no memory, or not on this device, or
                ``out`` is read-only.
            LayoutMismatch: ``out`` or ``shape`` do not fit.
            OutOfBounds: ``offset + size`` is beyond ``tensor.nbytes``.
            AggmlError: by the Future: the cause of an earlier failure; what ``out`` holds is
                unspecified.

        Cancellation: abandons the wait. The copy goes on; backend and tensor stay usable.
        """
        self._check_open("Backend.get")
        self._check_tensor(tensor, "Backend.get")
        if offset is None and size is None:
            result, view = transfer.outgoing(tensor, out, shape, "Backend.get")
            future = self._get(tensor, view)
        else:
            start, n = transfer.byte_range(tensor, offset, size, "Backend.get")
            result = transfer.outgoing_bytes(out, n, "Backend.get")
            future = self._get_bytes(tensor, result, start)
        future._value = result  # type: ignore[assignment]
        future.what = "get"
        return self._unit(future)  # type: ignore[arg-type]

    def memset(
        self, tensor: Tensor, value: int, *, offset: int | None = None, size: int | None = None
    ) -> Future[None]:
        """Set every byte of a tensor's elements, or some bytes of its span.

        Args:
            tensor: any placed tensor; of a strided view the gaps between elements stay.
            value: of each byte.
            offset: first byte of the span to set.
            size: bytes to set, to the end of the span if not given.

        Raises:
            InvalidArgument: ``value`` is not within 0..255. Else as `set`.

        Cancellation: abandons the wait; the write goes on.
        """
        self._check_open("Backend.memset")
        self._check_tensor(tensor, "Backend.memset", write=True)
        value = transfer.integer(value, "value", "Backend.memset")
        if not 0 <= value <= 255:
            raise InvalidArgument(f"[Backend.memset] value={value} is not within 0..255")
        start, n = transfer.byte_range(tensor, offset, size, "Backend.memset")
        if offset is None and size is None and not tensor.is_contiguously_allocated:
            # A strided view: its elements, not the gaps between them.
            shape = transfer._full_shape(tensor)
            byte = np.full(transfer.array_dtype(tensor).itemsize, value, np.uint8)
            one = byte.view(np.uint8 if tensor.dtype.is_quantized else f"u{byte.size}").reshape(())
            if tensor.dtype.type_size != byte.size and not tensor.dtype.is_quantized:
                raise InvalidArgument(
                    f"[Backend.memset] {tensor!r} cannot be set element by element"
                )
            future = self._set(tensor, np.broadcast_to(one, shape))
            return self._unit(future)
        return self._unit(self._memset(tensor, value, start, n))

    def copy(self, src: Tensor, dst: Tensor, *, to: Backend | None = None) -> Future[None]:
        """Copy a tensor, across backends if ``to`` is given (ggml_backend_tensor_copy_async).

        Comes after all that was queued before it, and before all that is queued after it, on both
        backends.

        Raises:
            LayoutMismatch: type, extents or strides differ.
            NotAllocated, InvalidArgument: a tensor has no memory, or not where its backend reaches.
            InvalidState: a backend is closed.

        Cancellation: abandons the wait; the copy goes on.
        """
        other = self if to is None else to
        if not isinstance(other, Backend):
            raise InvalidHandle(f"[Backend.copy] to={other!r} is no Backend")
        self._check_open("Backend.copy")
        other._check_open("Backend.copy")
        self._check_tensor(src, "Backend.copy")
        other._check_tensor(dst, "Backend.copy", write=True)
        if not same_layout(src, dst):
            raise LayoutMismatch(
                f"[Backend.copy] {src!r} and {dst!r} differ in type, extents or strides"
            )
        if other is self:
            same = src is dst
            return self._unit(self.stream.mark("copy") if same else self._copy(src, dst))
        return self._unit(self._copy_to(src, dst, other))

    def _copy_to(self, src: Tensor, dst: Tensor, other: Backend) -> Future[None]:
        """Across backends: directly where one side reaches both, else bounced through host memory.

        Enqueued in one step on both streams: each waits for what the other had queued.
        """
        here, there = src.buffer, dst.buffer
        assert here is not None
        assert there is not None
        if here.is_host or other.device.supports_buffer_type(here.type):
            driver, idle = other, self
        elif there.is_host or self.device.supports_buffer_type(there.type):
            driver, idle = self, other
        else:
            return self._bounce(src, dst, other)
        with driver.stream.sharing(idle.stream):
            driver.stream.wait(idle.stream)
            same = src is dst  # nothing to copy, yet both streams are put in order
            future = driver.stream.mark("copy") if same else driver._copy(src, dst)
            driver.stream.let_wait(idle.stream)
        return future

    def _bounce(self, src: Tensor, dst: Tensor, other: Backend) -> Future[None]:
        staging = host_tensor(src)
        with self.stream.sharing(other.stream):
            self.stream.wait(other.stream)
            self._copy(src, staging)
            other.stream.wait(self.stream)
            future = other._copy(staging, dst)
            other.stream.let_wait(self.stream)
        return future

    def accept(self, tensor: Tensor) -> Future[None]:
        """Declare what a tensor's storage holds to be good, in stream order.

        Reads behind it no longer fail.
        """
        self._check_open("Backend.accept")
        self._check_tensor(tensor, "Backend.accept")
        return self._unit(self.stream.accept(tensor))

    # -- memory

    def alloc(self, tensors: Iterable[Tensor]) -> Buffer:
        """One buffer for all given tensors (ggml_backend_alloc_ctx_tensors); none: an empty one.

        Raises:
            AlreadyAllocated, InvalidArgument: one has memory, or is a view. Nothing is placed then.
            AllocFailed: no memory.
        """
        self._check_open("Backend.alloc")
        return alloc_tensors(self.buffer_type, tensors)

    def alloc_graph(self, graph: Graph) -> GraphBuffer:
        """Place what has no memory yet.

        Leaves, ends and OUTPUT tensors go to memory of this graph, the rest to scratch. The
        placement lives as long as the graph; ``close()`` of the result unplaces it.

        Raises:
            AlreadyAllocated: the graph has been placed.
            AllocFailed: no memory.
        """
        self._check_open("Backend.alloc_graph")
        memory = finish(placing(self, graph))
        self.memory.arena(memory.scratch_size)
        return memory

    async def reserve(self, nbytes: int) -> None:
        """Have ``nbytes`` of scratch ready, touched by the worker and not by the loop.

        Cancellation: abandons the wait; the memory is kept.
        """
        self._check_open("Backend.reserve")
        if transfer.integer(nbytes, "nbytes", "Backend.reserve") < 0:
            raise InvalidArgument(f"[Backend.reserve] nbytes={nbytes} is negative")
        if nbytes > self.memory.size:
            arena = self.memory.arena(nbytes)
            assert arena is not None
            await self._clear(arena, 0)
        else:
            await anyio.lowlevel.checkpoint()

    async def prepare(self, graph: Graph) -> None:
        """Place the graph (unless done) and compile it, giving way to the loop every 0.5 ms.

        Cancellation: a graph that was placed stays placed.
        """
        self._check_open("Backend.prepare")
        if not isinstance(graph, Graph):
            raise InvalidHandle(f"[Backend.prepare] {graph!r} is no Graph")
        if graph.memory is None:
            with contextlib.suppress(AlreadyAllocated):  # another task prepares it and was first
                await give_way(placing(self, graph))
        memory = self._memory_of(graph, "Backend.prepare")
        self._check_reach(graph, "Backend.prepare")
        memory.keep_plan(self, await give_way(self._compile(graph, memory)))
        await self.reserve(self._plan(graph, "Backend.prepare").arena_size)

    # -- computing

    def _memory_of(self, graph: Graph, what: str) -> GraphBuffer:
        if not isinstance(graph, Graph):
            raise InvalidHandle(f"[{what}] {graph!r} is no Graph")
        memory = graph.memory
        if memory is None:
            raise NotAllocated(
                f"[{what}] {graph!r} has no memory: call alloc_graph or prepare first"
            )
        if memory.backend is not None and memory.backend() is not self:
            raise InvalidState(
                f"[{what}] {graph!r} was placed by {memory.backend()!r}, only that can compute it"
            )
        return memory

    def _check_reach(self, graph: Graph, what: str) -> None:
        """Kernels of this device must be able to touch all memory of the graph."""
        for tensor in (*graph.leafs, *graph.nodes):
            placement = tensor.placement
            if placement is not None and not self.device.supports_buffer_type(
                placement.buffer.type
            ):
                raise InvalidArgument(
                    f"[{what}] {tensor!r} lies in {placement.buffer!r}, out of reach of {self!r}"
                )

    def _plan(self, graph: Graph, what: str = "Backend.graph_compute") -> Plan:
        memory = self._memory_of(graph, what)
        plan = memory.plan_of(self)
        if plan is None:
            self._check_reach(graph, what)
            plan = finish(self._compile(graph, memory))
            memory.keep_plan(self, plan)
        return plan

    def graph_plan(self, graph: Graph) -> GraphPlan:
        """Compile a placed graph (ggml_backend_graph_plan_create); printing it shows its steps."""
        self._check_open("Backend.graph_plan")
        return GraphPlan(self, graph)

    def graph_compute(self, graph: Graph) -> Future[None]:
        """Run all nodes in order, after all earlier work (ggml_backend_graph_compute_async).

        Raises:
            NotAllocated: the graph, or a leaf of it, has no memory.
            Unsupported: a node that this device cannot run.
            InvalidState: the backend is closed, or another one placed the graph.
            AggmlError: by the Future, e.g. OutOfBounds for a row index.

        Cancellation: abandons the wait; ``abort()`` stops it before the next node.
        """
        self._check_open("Backend.graph_compute")
        plan = self._plan(graph)
        return self._unit(self._compute(plan, self.memory.arena(plan.arena_size)))

    @overload
    def run(
        self, graph: Graph, inputs: Mapping[Tensor, object] | None, outputs: Tensor
    ) -> Future[Array]: ...
    @overload
    def run(
        self, graph: Graph, inputs: Mapping[Tensor, object] | None, outputs: Sequence[Tensor]
    ) -> Future[list[Array]]: ...
    def run(
        self,
        graph: Graph,
        inputs: Mapping[Tensor, object] | None,
        outputs: Tensor | Sequence[Tensor],
    ) -> Future[Array] | Future[list[Array]]:
        """Set inputs, compute, get outputs as one indivisible unit of this stream.

        Args:
            graph: placed.
            inputs: what to write to which tensor, as `set` takes it; borrowed until done.
            outputs: a tensor, or several.

        Returns:
            A Future of an array, or of a list of arrays if ``outputs`` is a sequence.

        Raises:
            As `set`, `graph_compute` and `get`; nothing is queued then.

        Cancellation: when the last task that awaits it is cancelled, the work is aborted; see
        `Future.shield`.
        """
        self._check_open("Backend.run")
        plan = self._plan(graph, "Backend.run")
        single = isinstance(outputs, Tensor)
        wanted: Sequence[Tensor] = [outputs] if isinstance(outputs, Tensor) else outputs
        if not isinstance(wanted, (list, tuple, Iterable)):  # the first two are quick
            raise InvalidHandle(f"[Backend.run] outputs={outputs!r} is no tensor and no list")
        if inputs is not None and not isinstance(inputs, (dict, Mapping)):
            raise InvalidHandle(f"[Backend.run] inputs={inputs!r} is no mapping of tensors")
        sets = []
        for tensor, x in (inputs or {}).items():
            self._check_tensor(tensor, "Backend.run", write=True)
            sets.append((tensor, transfer.incoming(x, tensor, "Backend.run")))
        gets = []
        for tensor in wanted:
            self._check_tensor(tensor, "Backend.run")
            gets.append((tensor, *transfer.outgoing(tensor, None, None, "Backend.run")))
        arena = self.memory.arena(plan.arena_size)
        results = [result for _, result, _ in gets]
        future: Future[Any] = Future(None, results[0] if single else results, "run", abortable=True)
        self._run(future, plan, arena, sets, [(tensor, view) for tensor, _, view in gets])
        return self._unit(future)

    def _run(
        self,
        future: Future[Any],
        plan: Plan,
        arena: Buffer | None,
        sets: list[tuple[Tensor, Array]],
        gets: list[tuple[Tensor, Array]],
    ) -> None:
        """Enqueue sets, one compute and gets as a unit that ``future`` stands for.

        A device may have a shorter way.
        """
        with self.stream.unit():
            parts: list[Future[Any]] = [self._set(tensor, array) for tensor, array in sets]
            parts.append(self._compute(plan, arena))
            parts.extend([self._get(tensor, view) for tensor, view in gets])
        batch = self.stream.open_batch()
        if batch is None:
            future.join(parts)
        else:
            batch.join(future, parts)

    # -- order

    def batch(self) -> Batch:
        """``with backend.batch():`` enqueues this thread's calls at its end, in one step.

        So no call of another thread gets between them. Awaiting one of its Futures inside is
        refused. If the body raises, nothing is enqueued and its Futures raise Aborted.
        """
        self._check_open("Backend.batch")
        return self.stream.batch()

    def record(self, event: Event) -> Future[None]:
        """Let ``event`` mark all that is queued so far (ggml_backend_event_record)."""
        self._check_open("Backend.record")
        if not isinstance(event, Event):
            raise InvalidHandle(f"[Backend.record] {event!r} is no Event")
        return self.stream.record(event)

    def wait(self, event: Event | Future[Any]) -> Future[None]:
        """Hold later work until the event's latest mark is reached (ggml_backend_event_wait).

        Or until a Future is done. An event never recorded counts as reached. No thread waits.
        """
        self._check_open("Backend.wait")
        if not isinstance(event, Event | Future):
            raise InvalidHandle(f"[Backend.wait] {event!r} is neither an Event nor a Future")
        return self.stream.wait(event)

    def synchronize(self) -> Future[None]:
        """A Future of all that is queued (ggml_backend_synchronize).

        Raises:
            ExceptionGroup: by the Future, of the failures that nobody has seen.
        """
        if self._drained is not None:
            return self._drained
        unseen: list[AggmlError] | None = None  # every await of one Future tells the same

        def report() -> None:
            nonlocal unseen
            if unseen is None:
                unseen = self.stream.failures()
            if unseen:
                raise ExceptionGroup(
                    f"[Backend.synchronize] {self!r}: {len(unseen)} failed unseen", unseen
                )

        return self.stream.mark("synchronize", finish=report)

    # -- back-pressure

    def _unit(self, future: Future[T]) -> Future[T]:
        """Note one submission, for `ready`."""
        if self._admission.limit is not None:
            self._admission.note(future, self.stream.open_batch())
        return future

    async def ready(self) -> None:
        """Wait until less than ``max_queued`` is pending or admitted; first come, first served.

        Each admission is good for one submission; ``run`` and a batch count as one.

        Cancellation: gives the place in the queue up.
        """
        await self._admission.wait()

    # -- end

    def close(self) -> None:
        """Refuse new work; never blocks. What is queued goes on, and keeps what it needs."""
        native = self.stream.native
        if self._drained is None and native.alive and not native.closed:
            if native.lost is None:
                (ops,) = _native.submit([(native, [_native.mark("close", ())])])
                self._drained = Future(tuple(ops), None, "close")
            else:  # it refuses work, also a mark; what is queued there fails soon
                self._drained = Stream(self.name, pool=self.stream.pool).wait(self.stream)
            self.stream.close()

    async def aclose(self) -> None:
        """Close, then wait until all that is queued is done; failures that nobody saw are logged.

        Cancellation: anyio scopes wait for the drain; a native asyncio cancel ends the wait, not
        the close.
        """
        self.close()
        if self._drained is not None:
            with anyio.CancelScope(shield=True):
                await self._drained
        for failure in self.stream.failures():
            _log.error("[Backend.aclose] %r: nobody saw %s", self, failure)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.stream.abort()
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.stream.abort()
        self.close()
        if self._drained is not None and current_task() is None:  # a loop must not be blocked
            self._drained.wait()
