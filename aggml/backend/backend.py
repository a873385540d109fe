"""Device and Backend: hardware that can run graphs, and an ordered stream of work on it.

They share a file because each names the other. `Backend` reads from top to bottom: the hooks that a
device implements, which receive validated arguments; names and checks; moving bytes; placing and
compiling graphs; running them; order, back-pressure and the end. Not here: how much memory a graph
needs (memory/graph_memory.py), what a plan is (plan/plan.py), what an array must look like
(tensor/checking.py), waking tasks that wait (stream/future.py), finding devices (registry/).
"""

from __future__ import annotations

import contextlib
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, overload

import anyio
import anyio.lowlevel
import numpy as np

from aggml.backend.inputs import check_written, find_arguments, reshape_results, run_key, shapes_of
from aggml.backend.params import keywords_of
from aggml.backend.props import DeviceCaps, DeviceProps, DeviceType
from aggml.errors import (
    AggmlError,
    AllocFailed,
    AlreadyAllocated,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    LayoutMismatch,
    NotAllocated,
    Unsupported,
)
from aggml.graph import Graph
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import host_tensor
from aggml.memory.graph_memory import GraphBuffer, GraphMemory, PlaceRecord, place_steps
from aggml.memory.multi_buffer import MultiBuffer
from aggml.native import _native
from aggml.plan import CompiledGraphs
from aggml.process.alive import note
from aggml.process.locks import new_rlock
from aggml.stream import Stream
from aggml.stream.admission import Admission
from aggml.stream.event import Event
from aggml.stream.future import Future
from aggml.stream.observe import observers, submit
from aggml.stream.prepared import PreparedRun
from aggml.stream.reactor import current_task
from aggml.stream.slices import ATTEMPTS, IN_SLICES, finish, give_way
from aggml.tensor import Tensor, checking, same_layout
from aggml.tensor.inputs import check_due
from aggml.tensor.placement import KEPT, PlacementEpoch, fill

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from aggml.backend.inputs import Inputs, Outputs, Reuse, Shapes
    from aggml.memory.buffer_type import BufferType
    from aggml.plan import CompiledGraph, DevicePlan
    from aggml.stream.batch import StreamBatch
    from aggml.stream.prepared import RunArguments
    from aggml.stream.slices import Sliced
    from aggml.tensor.placement import BufferUsage, Holder

__all__ = ["Array", "Backend", "Device", "GraphPlan", "Sums"]

T = TypeVar("T")
Array = np.ndarray[Any, Any]
BYTE: Final = np.dtype(np.uint8)

_COMPUTE = ("graph_compute",)  # key of the run that `graph_compute` prepared; no other key is equal

# Several threads may close one backend, or await one `synchronize`: the first does the work, for
# all. Reentrant, because garbage collection may close another backend in between.
_closing = new_rlock()
_reporting = new_rlock()


class _Moved(Exception):
    """A thread placed a tensor elsewhere while a run was put together."""


class Sums(Protocol):
    """Sums of one tensor of each of several backends, made by a library of their devices."""

    def takes(self, tensor: Tensor) -> bool:
        """Whether it sums tensors of this type and extents; asked when a graph is compiled."""
        ...

    async def prepare(self) -> None:
        """Load the library ahead of the first sum; if that fails, `takes` answers False."""
        ...

    def plan(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Sequence[DevicePlan]:
        """A plan of each backend; together they leave the sum of the sources in each target."""
        ...

    def run(self, plans: Any) -> list[Future[None]]:  # noqa: ANN401 - as `plan` gave them
        """Enqueue one sum on the streams of all backends, in a step that the caller has begun."""
        ...


class GraphPlan:
    """A graph compiled for one backend: print it, run it again (ggml_backend_graph_plan_*)."""

    def __init__(self, backend: Backend, graph: Graph) -> None:
        self.backend = backend
        self.graph: Graph = graph
        backend._plan(graph)

    @property
    def plan(self) -> DevicePlan:
        """The plan for where the tensors lie now."""
        return self.backend._plan(self.graph)

    def update(self, graph: Graph) -> None:
        """Compile another graph into this object (ggml_backend_graph_plan_update).

        Raises:
            As `Backend.graph_plan`; the object keeps its graph then.
        """
        self.backend._plan(graph)
        self.graph = graph

    def compute(self) -> Future[None]:
        """Enqueue one run, as ``backend.graph_compute(graph)`` does (same errors, cancellation)."""
        return self.backend.graph_compute(self.graph)

    def plot(self, path: str | os.PathLike[str], *, title: str = "") -> None:
        """Draw the steps as SVG (see `DevicePlan.plot`)."""
        self.plan.plot(path, title=title)

    def __str__(self) -> str:
        return str(self.plan)

    def _repr_html_(self) -> str:
        """For notebooks: the steps."""
        return self.plan._repr_html_()


class Backend(ABC):
    """A stream of work on one device; open once constructed.

    Operations run in the order submitted. Every method that returns a Future returns immediately.
    Misuse raises at the call, before anything is queued. An operation that fails later fails its
    Future and poisons the tensors that it would have written: reading them fails with its error.

    Attributes:
        stream: its work in order.
        memory: the scratch that its graphs share.
        plans: the graphs that it has compiled, each for as long as it is placed.
    """

    def __init__(self, device: Device, stream: Stream, *, max_queued: int | None = None) -> None:
        self._device = device
        self.stream = stream
        if max_queued is not None:
            max_queued = checking.integer(max_queued, "max_queued", "Device.backend")
        self._admission = Admission(max_queued)
        self.memory: GraphMemory = GraphMemory(device.buffer_type)
        self.plans: CompiledGraphs = CompiledGraphs()
        self._drained: Future[None] | None = None
        note(device, self)

    # -- what a device implements

    def _sibling(self) -> Any:  # noqa: ANN401 - a Backend
        """Another backend of the same device with the same settings; devices may override this."""
        return self.device.backend()

    def _repeats(self) -> object:
        """A value that stays equal while repeated calls of the hooks enqueue the same operations.

        Repeated means: the same tensors and plans, and arrays of the same shape. As long as the
        value equals the earlier one, a scheduler enqueues the earlier operations again over the new
        arrays and does not call the hooks. None means that the hooks must always be called.
        """
        return None

    def _direct(self, plan: Any) -> bool:  # noqa: ANN401 - as `_compile` gave it
        """Whether a `run` of this plan may be enqueued without the hooks.

        If so, the stream runs ``plan.native``, and transfers are native copies. The answer for a
        plan must not change from True: a prepared run is enqueued again without asking.
        """
        return False

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

    def _set_parts(self, parts: Sequence[tuple[Tensor, Array, int]]) -> Future[None]:
        """Write bytes of several tensors, as `_set_bytes`; devices may do it in one call."""
        with self.stream.unit():
            return self.stream.together([self._set_bytes(*part) for part in parts], "set")

    def _get_parts(self, parts: Sequence[tuple[Tensor, Array, int]]) -> Future[None]:
        """Read bytes of several tensors, as `_get_bytes`; devices may do it in one call."""
        with self.stream.unit():
            return self.stream.together([self._get_bytes(*part) for part in parts], "get")

    @abstractmethod
    def _memset(self, tensor: Tensor, value: int, offset: int, size: int) -> Future[None]:
        """Set bytes of the span."""

    @abstractmethod
    def _copy(self, src: Tensor, dst: Tensor) -> Future[None]:
        """Copy between tensors of the same type, extents and strides that this device reaches."""

    def _copy_experts(self, src: Tensor, dst: Tensor, ids: Tensor) -> Future[None]:
        """Copy at least the matrices of ``src`` that ``ids``, in host memory, names at run time.

        Later work reads the other matrices only after they were copied, too. Devices override this
        where copying fewer than all matrices is faster.
        """
        return self._copy(src, dst)

    def _sums(self, members: Sequence[Backend]) -> Sums | None:
        """What sums over the devices of these backends, of which this is the first; None: nothing.

        Then their tensors are sent from one to the other, and added up by each.
        """
        return None

    @abstractmethod
    def _clear(self, buffer: Buffer, value: int) -> Future[None]:
        """Set every byte of a buffer of this device, which is no MultiBuffer and not empty."""

    @abstractmethod
    def _compile(self, graph: Graph, memory: GraphBuffer) -> Sliced[DevicePlan]:
        """Compile in small steps: a generator that yields between them and returns the plan.

        Args:
            graph: placed, in memory that this device reaches.
            memory: tells where each tensor lies: in a buffer, or at which offset of the scratch.

        Raises:
            Unsupported: a node that the device cannot run.
        """

    @abstractmethod
    def _compute(self, plan: Any, arena: Buffer | None) -> Future[None]:  # noqa: ANN401
        """Run a plan that `_compile` returned; ``arena`` has at least ``plan.arena_size`` bytes."""

    # -- names and state

    @property
    def device(self) -> Device:
        """The device that does the work."""
        return self._device

    @property
    def guid(self) -> uuid.UUID:
        """An identifier of the backend's class; equal for all its backends (ggml_backend_guid)."""
        cls = type(self)
        return uuid.uuid5(uuid.NAMESPACE_DNS, f"{cls.__module__}.{cls.__qualname__}")

    @property
    def name(self) -> str:
        """The name of the stream, which devices name after themselves."""
        return self.stream.name

    @property
    def buffer_type(self) -> BufferType:
        """Where `alloc` takes memory from (ggml_backend_get_default_buffer_type)."""
        return self.device.buffer_type

    @property
    def pending(self) -> int:
        """How many operations are not done. A ``run`` counts 1, plus 1 per input and output."""
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
            raise InvalidState(f"[{what}] {self!r} is closed: open another with device.backend()")

    def _check_tensor(self, tensor: Tensor, what: str, *, write: bool = False) -> None:
        """Refuse a tensor without memory, or whose memory is out of reach or read-only."""
        if not isinstance(tensor, Tensor):
            raise InvalidHandle(f"[{what}] {tensor!r} is no tensor")
        placement = tensor.root.placement
        if placement is None:
            node = tensor.root.op != "none"
            hint = (
                "flag a node with set_output() to read it" if node else "call Backend.alloc first"
            )
            raise NotAllocated(f"[{what}] {tensor!r} has no memory; {hint}")
        if not self._device.supports_buffer_type(placement.buffer.type):
            raise InvalidArgument(
                f"[{what}] {tensor!r} lies in {placement.buffer!r}, out of reach of {self!r}: "
                "allocate it here, or Backend.copy it from the backend that reaches it"
            )
        if not (placement.readable or write):
            raise NotAllocated(
                f"[{what}] {tensor!r} shares its memory with other nodes, which overwrite it; "
                "flag it with set_output() to read it"
            )
        if write and not placement.buffer.writable:
            raise InvalidArgument(
                f"[{what}] {tensor!r} lies in {placement.buffer!r}, which is read-only; "
                "Backend.copy it to another tensor"
            )

    def _wrote(self, tensor: Tensor, other: Backend | None = None) -> None:
        """Note that a lasting write was queued: an INPUT leaf counts as written from now on.

        In a batch it does so for later calls of the batch, and for all once that is enqueued.
        ``other`` is the backend whose batch the call may have joined.
        """
        placement = tensor.root.placement
        if placement is not None:
            batch = self.stream.open_batch()
            if batch is None and other is not None:
                batch = other.stream.open_batch()
            if batch is None:
                fill(placement, KEPT)
            else:
                batch.mark(placement, KEPT)

    def _unit(self, future: Future[T]) -> Future[T]:
        """Count one submission, for `ready`."""
        if self._admission.limit is not None:
            batch = self.stream.open_batch()
            if batch is None:
                self._admission.note(future, None)
            elif not batch.counted:  # until then nobody can wait for it
                batch.counted = True
                batch.once_enqueued(lambda: self._admission.note(future, None))
        return future

    # -- moving bytes

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
                quantized: uint8 blocks), of any strides. Its shape is the tensor's in numpy order
                (``ne`` reversed) after leading 1s are dropped, or flat. Borrowed until the Future
                is done.
            offset: first byte of the span to write. With ``offset`` or ``size`` the bytes of ``x``
                are written as they are, and ``x`` must be contiguous.
            size: bytes to write; must be the number of bytes of ``x``.
            copy: take a snapshot of ``x`` first.

        Raises:
            NotAllocated, InvalidArgument: ``tensor`` has no memory, or none on this device.
            LayoutMismatch: element type or shape differ.
            OutOfBounds: ``offset + size`` is beyond ``tensor.nbytes``.
            InvalidState: the backend is closed.

        Cancellation: abandons the wait; the write goes on and ``x`` stays borrowed.
        """
        self._check_open("Backend.set")
        self._check_tensor(tensor, "Backend.set", write=True)
        if offset is None and size is None:
            array = checking.incoming(x, tensor, "Backend.set")
            future = self._set(tensor, array.copy() if copy else array)
        else:
            data = checking.bytes_of(x, "Backend.set")
            start, n = checking.byte_range(
                tensor, offset, data.nbytes if size is None else size, "Backend.set"
            )
            if data.nbytes != n:
                raise LayoutMismatch(
                    f"[Backend.set] size={n} bytes are to be written, but the array has "
                    f"{data.nbytes}"
                )
            future = self._set_bytes(tensor, data.copy() if copy else data, start)
        self._wrote(tensor)
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
            NotAllocated, InvalidArgument: ``tensor`` has no memory, or none on this device, or
                ``out`` is read-only.
            LayoutMismatch: ``out`` or ``shape`` do not fit.
            OutOfBounds: ``offset + size`` is beyond ``tensor.nbytes``.
            AggmlError: raised by the Future: the cause of an earlier failure. The contents of
                ``out`` are then unspecified.

        Cancellation: abandons the wait. The copy goes on; backend and tensor stay usable.
        """
        self._check_open("Backend.get")
        self._check_tensor(tensor, "Backend.get")
        if offset is None and size is None:
            result, view = checking.outgoing(tensor, out, shape, "Backend.get")
            future = self._get(tensor, view)
        else:
            start, n = checking.byte_range(tensor, offset, size, "Backend.get")
            result = checking.outgoing_bytes(out, n, "Backend.get")
            future = self._get_bytes(tensor, result, start)
        future._value = result  # type: ignore[assignment]
        future.what = "get"
        return self._unit(future)  # type: ignore[arg-type]

    def memset(
        self, tensor: Tensor, value: int, *, offset: int | None = None, size: int | None = None
    ) -> Future[None]:
        """Set every byte of a tensor's elements, or some bytes of its span.

        Args:
            tensor: any placed tensor; the gaps between elements of a strided view stay unchanged.
            value: of each byte, 0 to 255.
            offset: first byte of the span to set.
            size: bytes to set, to the end of the span if not given. If 0, the tensor need not have
                memory.

        Raises:
            InvalidArgument: ``value`` is not within 0..255. Else as `set`.

        Cancellation: abandons the wait; the write goes on.
        """
        self._check_open("Backend.memset")
        value = checking.byte(value, "Backend.memset")
        if size == 0 and isinstance(tensor, Tensor):  # ggml asks for memory only if it is needed
            checking.byte_range(tensor, offset, size, "Backend.memset")
            return self._unit(self.stream.mark("memset"))
        self._check_tensor(tensor, "Backend.memset", write=True)
        start, n = checking.byte_range(tensor, offset, size, "Backend.memset")
        if offset is None and size is None and not tensor.is_contiguously_allocated:
            # A strided view: its elements, not the gaps between them.
            shape = checking.full_shape(tensor)
            byte = np.full(checking.array_dtype(tensor).itemsize, value, np.uint8)
            one = byte.view(np.uint8 if tensor.dtype.is_quantized else f"u{byte.size}").reshape(())
            if tensor.dtype.type_size != byte.size and not tensor.dtype.is_quantized:
                raise InvalidArgument(
                    f"[Backend.memset] {tensor!r} has gaps, and its elements cannot be set one "
                    "by one: set the tensor that it is a view of, or give offset and size"
                )
            future = self._set(tensor, np.broadcast_to(one, shape))
        else:
            future = self._memset(tensor, value, start, n)
        self._wrote(tensor)
        return self._unit(future)

    def clear(self, buffer: Holder, value: int = 0) -> Future[None]:
        """Set every byte of a buffer, of all parts of a `MultiBuffer` (ggml_backend_buffer_clear).

        Contents that an earlier failure poisoned can be read again afterwards.

        Raises:
            InvalidHandle: ``buffer`` is no buffer.
            InvalidArgument: ``value`` is not within 0..255, or a buffer is read-only or out of
                reach.
            InvalidState: backend or buffer is closed.

        Cancellation: abandons the wait; the write goes on.
        """
        self._check_open("Backend.clear")
        value = checking.byte(value, "Backend.clear")
        if not isinstance(buffer, Buffer):
            raise InvalidHandle(f"[Backend.clear] {buffer!r} is no buffer")
        if buffer.closed:
            raise InvalidState(f"[Backend.clear] {buffer!r} is closed")
        parts = buffer.parts if isinstance(buffer, MultiBuffer) else (buffer,)
        for part in parts:
            if not self.device.supports_buffer_type(part.type):
                raise InvalidArgument(f"[Backend.clear] {part!r} is out of reach of {self!r}")
            if not part.writable:
                raise InvalidArgument(f"[Backend.clear] {part!r} is read-only")
        with self.stream.unit():
            futures = [self._clear(part, value) for part in parts if part.size]
            futures += [self.stream.accept(tensor) for tensor in buffer.tensors]
            futures += [] if futures else [self.stream.mark("clear")]
            future = self.stream.together(futures, "clear")
        for tensor in buffer.tensors:
            self._wrote(tensor)
        return self._unit(future)

    def set_2d(
        self,
        tensor: Tensor,
        x: object,
        *,
        size: int,
        n_copies: int,
        stride_tensor: int,
        stride_data: int,
        offset: int = 0,
    ) -> Future[None]:
        """Write pieces of ``size`` bytes at regular distances (ggml_backend_tensor_set_2d_async).

        Piece i goes from byte ``i * stride_data`` of the array to byte
        ``offset + i * stride_tensor`` of the tensor's span. With no pieces, or pieces of 0 bytes,
        nothing is written.

        Args:
            tensor: any placed tensor.
            x: a contiguous array; its bytes are taken. Borrowed until the Future is done.
            size: bytes of a piece.
            n_copies: how many pieces.
            stride_tensor: bytes from one piece to the next in the tensor, at least ``size``.
            stride_data: likewise in the array; may be less, and 0 writes one piece ``n_copies``
                times.
            offset: byte of the tensor's span at which the first piece begins.

        Raises:
            OutOfBounds: a piece would end outside of the span, or of the array.
            InvalidArgument: pieces would overwrite each other; negative numbers. Else as `set`.

        Cancellation: abandons the wait; the write goes on.
        """
        what = "Backend.set_2d"
        self._check_open(what)
        self._check_tensor(tensor, what, write=True)
        data = checking.bytes_of(x, what)
        numbers = (size, n_copies, stride_tensor, stride_data, offset)
        pieces = checking.pieces(tensor, data, *numbers, what, to_tensor=True)
        with self.stream.unit():
            futures = [self._set_bytes(tensor, part, at) for at, part in pieces]
            futures += [] if futures else [self.stream.mark("set")]
            future = self.stream.together(futures, "set")
        self._wrote(tensor)
        return self._unit(future)

    def get_2d(
        self,
        tensor: Tensor,
        out: Array,
        *,
        size: int,
        n_copies: int,
        stride_tensor: int,
        stride_data: int,
        offset: int = 0,
    ) -> Future[Array]:
        """Read pieces of ``size`` bytes at regular distances (ggml_backend_tensor_get_2d_async).

        The reverse of `set_2d`, with the same arguments; here the pieces must not overlap in
        ``out``, and may in the tensor. Bytes of ``out`` between the pieces stay unchanged.

        Returns:
            A Future of ``out``.

        Raises:
            InvalidHandle, InvalidArgument: ``out`` is no numpy array, or read-only. Else as
                `set_2d`.

        Cancellation: abandons the wait; the read goes on.
        """
        what = "Backend.get_2d"
        self._check_open(what)
        self._check_tensor(tensor, what)
        checking.check_out(out, what)
        data = checking.bytes_of(out, what)
        numbers = (size, n_copies, stride_tensor, stride_data, offset)
        pieces = checking.pieces(tensor, data, *numbers, what, to_tensor=False)
        with self.stream.unit():
            futures = [self._get_bytes(tensor, part, at) for at, part in pieces]
            futures += [] if futures else [self.stream.mark("get")]
            future = self.stream.together(futures, "get")
        future._value = out  # type: ignore[assignment]
        return self._unit(future)  # type: ignore[arg-type]

    def copy(self, src: Tensor, dst: Tensor, *, to: Backend | None = None) -> Future[None]:
        """Copy a tensor, across backends if ``to`` is given (ggml_backend_tensor_copy_async).

        Comes after all that was queued before it, and before all that is queued after it, on both
        backends.

        Args:
            src: a placed tensor, in memory that this backend reaches.
            dst: a placed tensor of the same type, extents and strides, in writable memory that
                ``to`` reaches. If it is ``src`` itself, nothing is copied.
            to: another backend, of any device; None: this one.

        Returns:
            A Future of None, done when the bytes are in ``dst``. It keeps both tensors alive.

        Raises:
            LayoutMismatch: type, extents or strides differ.
            NotAllocated, InvalidArgument: a tensor has no memory, or none that its backend reaches;
                ``dst`` is read-only.
            InvalidHandle: not a tensor, or not a backend.
            InvalidState: a backend is closed.
            AggmlError: by the Future: what an earlier write of ``src`` failed with. ``dst`` cannot
                be read then.

        Cancellation: abandons the wait; the copy goes on.
        """
        other: Backend = self if to is None else to
        if not isinstance(other, Backend):
            raise InvalidHandle(f"[Backend.copy] to={other!r} is no Backend")
        self._check_open("Backend.copy")
        other._check_open("Backend.copy")
        self._check_tensor(src, "Backend.copy")
        other._check_tensor(dst, "Backend.copy", write=True)
        if not same_layout(src, dst):
            raise LayoutMismatch(
                f"[Backend.copy] {src!r} and {dst!r} differ in type, extents or strides: "
                "ops.cpy in a graph converts and reorders"
            )
        if other is not self:
            future = self._copy_to(src, dst, other)
        else:
            future = self.stream.mark("copy") if src is dst else self._copy(src, dst)
        self._wrote(dst, other)
        return self._unit(future)

    def _copy_to(self, src: Tensor, dst: Tensor, other: Backend) -> Future[None]:
        """Copy across backends: directly if one side reaches both, else through host memory.

        The copy is enqueued in one step on both streams. Each waits for the earlier work of the
        other.
        """
        here, there = src.buffer, dst.buffer
        assert here is not None
        assert there is not None
        driver: Backend
        idle: Backend
        if here.is_host or other.device.supports_buffer_type(here.type):
            driver, idle = other, self
        elif there.is_host or self.device.supports_buffer_type(there.type):
            driver, idle = self, other
        else:
            return self._bounce(src, dst, other)
        with driver.stream.sharing(idle.stream):
            driver.stream.wait(idle.stream)
            same = src is dst  # nothing to copy, but both streams still wait for each other
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

    def set_many(self, parts: Iterable[tuple[Tensor, Array, int]]) -> Future[None]:
        """Write bytes of many tensors in one step: `set` with ``offset`` for each, at less cost.

        Args:
            parts: of each write the tensor, a contiguous array of the bytes, and the first byte of
                the tensor's span to write. The arrays are borrowed until the Future is done.

        Returns:
            A Future of all of them.

        Raises:
            As `set`; then nothing is written.

        Cancellation: abandons the wait; the writes go on.
        """
        what = "Backend.set_many"
        self._check_open(what)
        checked = self._checked_parts(parts, what, write=True)
        future = self._set_parts(checked) if checked else self.stream.mark("set")
        for tensor, _, _ in checked:
            self._wrote(tensor)
        return self._unit(future)

    def get_many(self, parts: Iterable[tuple[Tensor, Array, int]]) -> Future[None]:
        """Read bytes of many tensors in one step: `get` with ``offset`` for each, at less cost.

        Args:
            parts: of each read the tensor, a contiguous writable array whose bytes are filled, and
                the first byte of the tensor's span to read.

        Returns:
            A Future of all of them.

        Raises:
            As `get`; then nothing is read.

        Cancellation: abandons the wait; the reads go on.
        """
        what = "Backend.get_many"
        self._check_open(what)
        checked = self._checked_parts(parts, what, write=False)
        future = self._get_parts(checked) if checked else self.stream.mark("get")
        return self._unit(future)

    def _checked_parts(
        self, parts: Iterable[tuple[Tensor, Array, int]], what: str, *, write: bool
    ) -> list[tuple[Tensor, Array, int]]:
        """The parts with their arrays as bytes. A buffer is checked once, not for each tensor."""
        checked, seen = [], None
        for tensor, x, offset in parts:
            place = tensor.root.placement if type(tensor) is Tensor else None
            if place is None or place.buffer is not seen or not (place.readable or write):
                self._check_tensor(tensor, what, write=write)
                seen = tensor.buffer
            if not write:
                checking.check_out(x, what)
            data = x if type(x) is np.ndarray and x.dtype == BYTE else checking.bytes_of(x, what)
            if not data.flags.c_contiguous:
                data = checking.bytes_of(x, what)  # says what is wrong
            n = data.nbytes
            if type(offset) is not int or not 0 <= offset <= tensor.nbytes - n:
                offset, _ = checking.byte_range(tensor, offset, n, what)
            checked.append((tensor, data, offset))
        return checked

    def accept(self, tensor: Tensor) -> Future[None]:
        """Declare the contents of a tensor's storage to be valid, in stream order.

        Later reads no longer fail because of an earlier write that failed.

        Cancellation: abandons the wait; the declaration stays.
        """
        self._check_open("Backend.accept")
        self._check_tensor(tensor, "Backend.accept")
        future = self.stream.accept(tensor)
        self._wrote(tensor)
        return self._unit(future)

    # -- placing and compiling

    def alloc(self, tensors: Iterable[Tensor], usage: BufferUsage | str | None = None) -> Buffer:
        """Memory for all given tensors, in order (ggml_backend_alloc_ctx_tensors).

        Args:
            tensors: of any shapes and types. None of them may have memory, or be a view: views lie
                where their storage lies. A tensor that is given twice counts once.
            usage: what the buffer is used for: "weights", "compute" or "any", or the enum
                `BufferUsage`. Weights are packed for the kernels at the first run. None: any.

        Returns:
            One buffer; or, if they need more than the largest single buffer, a `MultiBuffer`. No
            tensors, or none with bytes, give an empty buffer. Its memory is not set to any value,
            and lives as long as a tensor in it, or queued work on one.

        Raises:
            AlreadyAllocated: one of them has memory. Nothing is placed then, as in all cases below.
            InvalidArgument: one is a view; ``usage`` is no usage.
            InvalidHandle: one is no tensor.
            AllocFailed: no memory.
            InvalidState: the backend is closed.

        It does not wait: where a driver may need milliseconds for new memory, await `alloc_async`.
        """
        self._check_open("Backend.alloc")
        return self.buffer_type.alloc_tensors(tensors, usage)

    async def alloc_async(
        self, tensors: Iterable[Tensor], usage: BufferUsage | str | None = None
    ) -> Buffer:
        """`alloc`, off the event loop where a driver may need milliseconds to get new memory.

        Args:
            tensors: as of `alloc`.
            usage: as of `alloc`.

        Returns:
            As `alloc`.

        Raises:
            As `alloc`.

        Cancellation: nothing is placed; the memory is given back.
        """
        self._check_open("Backend.alloc_async")
        return await give_way(self.buffer_type.alloc_steps(tensors, usage))

    def alloc_graph(self, graph: Graph) -> GraphBuffer:
        """Give memory to every tensor of the graph that has none yet.

        Leafs, ends and OUTPUT tensors get memory of this graph alone, all other nodes a place in
        the scratch of this backend, which all of its graphs share in turn.

        Args:
            graph: of any size. Leafs that have memory keep it, and any number of graphs may share
                them. Views are never placed: they lie where their storage lies.

        Returns:
            The memory of the graph. It lives as long as the graph, whether or not it is kept;
            ``close()`` undoes the placement. ``size`` is its number of bytes, without scratch.

        Raises:
            AlreadyAllocated: the graph has been placed.
            AllocFailed: no memory; nothing is placed then. The text has the largest tensors.
            InvalidHandle: ``graph`` is no Graph.
            InvalidState: the backend is closed; or other threads placed tensors of the graph
                elsewhere each time that it was looked at.

        It does not wait, and takes up to 10 us a node: `prepare` does the same in slices.
        """
        self._check_open("Backend.alloc_graph")
        for _ in range(ATTEMPTS):
            layout = finish(place_steps(self.buffer_type, graph))
            try:
                block = self.buffer_type.alloc_buffer(layout.size)
            except AllocFailed as error:
                raise layout.too_large(error, scratch=False) from error.__cause__ or error
            try:
                self.memory.arena(layout.scratch_size)
            except AllocFailed as error:
                raise layout.too_large(error, scratch=True) from error.__cause__ or error
            memory = layout.place(self, block)
            if memory is not None:
                return memory
        raise _restless(graph, "Backend.alloc_graph")

    async def reserve(self, nbytes: int) -> None:
        """Have ``nbytes`` of scratch ready, the memory that intermediate values of graphs share.

        A worker touches its pages, not the event loop.

        Args:
            nbytes: at least so many; less than what the backend has changes nothing.

        Raises:
            InvalidArgument: ``nbytes`` is negative.
            InvalidHandle: ``nbytes`` is no integer.
            AllocFailed: no memory; the scratch is as before.
            InvalidState: the backend is closed.

        Cancellation: abandons the wait; the memory is kept.
        """
        self._check_open("Backend.reserve")
        if checking.integer(nbytes, "nbytes", "Backend.reserve") < 0:
            raise InvalidArgument(f"[Backend.reserve] nbytes={nbytes} is negative")
        if nbytes > self.memory.size:
            arena = self.memory.arena(nbytes)
            assert arena is not None
            await self._clear(arena, 0)
        else:
            await anyio.lowlevel.checkpoint()

    async def prepare(self, graph: Graph) -> None:
        """Place the graph (unless done) and compile it, yielding to the event loop every 0.2 ms.

        The next `run` and `graph_compute` of the graph need not do that. A graph that is placed and
        compiled costs nothing here.

        Args:
            graph: as of `alloc_graph`; it may be placed.

        Raises:
            AllocFailed: no memory for the graph, or for the scratch that it needs.
            Unsupported: a node that this device cannot run.
            NotAllocated: a leaf of a graph that was placed has no memory any more.
            InvalidHandle: ``graph`` is no Graph.
            InvalidArgument: a tensor lies out of reach of this device.
            InvalidState: the backend is closed; another backend placed the graph; or other tasks
                placed its tensors elsewhere each time that it was looked at.

        Cancellation: a graph that was placed stays placed.
        """
        self._check_open("Backend.prepare")
        if not isinstance(graph, Graph):
            raise InvalidHandle(f"[Backend.prepare] {graph!r} is no Graph")
        if graph.memory is None:
            with contextlib.suppress(AlreadyAllocated):  # another task placed it first
                await self._prepare_memory(graph)
        compiled = await self._prepare_plan(graph, "Backend.prepare")
        self._check_open("Backend.prepare")  # again: another task may have closed it
        await self.reserve(compiled.plan.arena_size)

    async def _prepare_memory(self, graph: Graph) -> None:
        for attempt in range(ATTEMPTS):
            steps = place_steps(self.buffer_type, graph)
            layout = await give_way(steps) if attempt < IN_SLICES else finish(steps)
            try:
                block = await self.buffer_type.provide(layout.size)
            except AllocFailed as error:
                raise layout.too_large(error, scratch=False) from error.__cause__ or error
            if layout.place(self, block) is not None:
                return
        raise _restless(graph, "Backend.prepare")

    async def _prepare_plan(self, graph: Graph, what: str) -> CompiledGraph:
        for attempt in range(ATTEMPTS):
            memory, then = self._begin(graph, what)
            try:
                steps = self._compile(graph, memory)
                plan = await give_way(steps) if attempt < IN_SLICES else finish(steps)
            except AggmlError:
                if then.is_current():
                    raise
                continue
            found = self.plans.keep(graph, plan, then)
            if found is not None:
                return found
        raise _restless(graph, what)

    # -- computing

    def _memory_of(self, graph: Graph, what: str) -> GraphBuffer:
        if not isinstance(graph, Graph):
            raise InvalidHandle(f"[{what}] {graph!r} is no Graph")
        memory = graph.memory
        if not isinstance(memory, GraphBuffer):
            raise _not_placed(graph, what)
        if memory.backend is not None and memory.backend() is not self:
            raise InvalidState(
                f"[{what}] {graph!r} was placed by {memory.backend()!r}, only that can compute it"
            )
        return memory

    def _check_reach(self, graph: Graph, what: str) -> PlaceRecord:
        """Where the tensors lie; refuses a graph of which this device does not reach all."""
        then = PlaceRecord(graph)
        first: dict[Any, Tensor] = {}  # the first tensor of each buffer, for the message
        for tensor, placement in zip((*graph.leafs, *graph.nodes), then.places, strict=True):
            if placement is not None:
                first.setdefault(placement.buffer, tensor)
        device = self._device
        for buffer, tensor in first.items():
            if not device.supports_buffer_type(buffer.type):
                raise InvalidArgument(
                    f"[{what}] {tensor!r} lies in {buffer!r}, out of reach of {self!r}: a "
                    "Scheduler copies what a backend does not reach"
                )
        return then

    def _begin(self, graph: Graph, what: str) -> tuple[GraphBuffer, PlaceRecord]:
        """What compiling rests on: the graph's memory, and where its tensors lie.

        Between two slices other tasks, and at any time other threads, may close buffers and
        allocate tensors again. The plan may then have addresses of memory that is about to be
        freed. So a plan is kept, and an error raised, only if no tensor moved meanwhile.
        """
        return self._memory_of(graph, what), self._check_reach(graph, what)

    def _ensure_compiled(self, graph: Graph, what: str) -> CompiledGraph:
        """The plan of a placed graph, compiled now if needed, with the runs prepared for it."""
        self._memory_of(graph, what)
        found = self.plans.find(graph)
        if found is not None:
            return found
        for _ in range(ATTEMPTS):
            memory, then = self._begin(graph, what)
            try:
                plan = finish(self._compile(graph, memory))
            except AggmlError:
                if then.is_current():
                    raise
                continue
            found = self.plans.keep(graph, plan, then)
            if found is not None:
                return found
        raise _restless(graph, what)

    def _plan(self, graph: Graph, what: str = "Backend.graph_compute") -> DevicePlan:
        plan: DevicePlan = self._ensure_compiled(graph, what).plan
        return plan

    def graph_plan(self, graph: Graph) -> GraphPlan:
        """Compile a placed graph (ggml_backend_graph_plan_create).

        Args:
            graph: placed by this backend, or by a `GraphAllocator` in memory that it reaches.

        Returns:
            A `GraphPlan`: ``print`` shows its steps, ``compute`` enqueues one run. If a tensor is
            placed elsewhere later, it compiles again.

        Raises:
            NotAllocated: the graph, or a leaf of it, has no memory.
            Unsupported: a node that this device cannot run.
            InvalidHandle: ``graph`` is no Graph.
            InvalidArgument: a tensor lies out of reach of this device.
            InvalidState: the backend is closed, or another one placed the graph.

        It does not wait, and takes up to 10 us a node: await `prepare` first to do it in slices.
        """
        self._check_open("Backend.graph_plan")
        return GraphPlan(self, graph)

    def graph_compute(self, graph: Graph) -> Future[None]:
        """Run all nodes in order, after all earlier work (ggml_backend_graph_compute_async).

        Raises:
            NotAllocated: the graph, or a leaf of it, has no memory; a leaf flagged INPUT was never
                written.
            Unsupported: a node that this device cannot run.
            InvalidState: the backend is closed, or another one placed the graph.
            AggmlError: raised by the Future, e.g. OutOfBounds for a row index.

        Cancellation: abandons the wait, the run goes on; ``abort()`` stops it before the next node.
        """
        prepared: PreparedRun | None = None
        if type(graph) is Graph and not observers and not self.stream.open_batches:
            prepared = self.plans.find_run(graph, _COMPUTE)
        if prepared is None:
            return self._compute_first(graph)
        try:
            future = prepared.run()
        except InvalidState:
            self._check_open("Backend.graph_compute")
            raise
        return future if self._admission.limit is None else self._unit(future)

    def _compute_first(self, graph: Graph) -> Future[None]:
        """`graph_compute` of a graph that was not prepared yet, or cannot be prepared."""
        what = "Backend.graph_compute"
        self._check_open(what)
        compiled = self._ensure_compiled(graph, what)
        plan: Any = compiled.plan
        batch = self.stream.open_batch()
        marks = check_written(graph, what, {} if batch is None else batch.states)
        arena = self.memory.arena(plan.arena_size)
        future = self._compute(plan, arena)
        marks.note(batch)
        # The leafs have values for good once it is enqueued, so a prepared run does not look again.
        if batch is None and self._direct(plan):
            prepared = PreparedRun(
                self.stream, plan, self.memory, None, what, marks=marks, abortable=False
            )
            compiled.keep(_COMPUTE, prepared)
        return self._unit(future)

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
        inputs: Inputs | None,
        outputs: Outputs,
        *,
        reuse: Reuse = (),
        shape: Shapes | None = None,
    ) -> Future[list[Array]]: ...
    def run(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None,
        outputs: Tensor | str | Sequence[Any],
        *,
        reuse: Reuse = (),
        shape: Any = None,
    ) -> Future[Array] | Future[list[Array]]:
        """Set inputs, compute, get outputs as one indivisible unit of this stream.

        Args:
            graph: placed.
            inputs: maps each leaf to the array to write, in a form that `set` takes; the arrays are
                borrowed until done. A leaf is given as the tensor, or by its name if that is unique
                in the graph.
            outputs: a tensor or its name, or several.
            reuse: leafs flagged INPUT, or their names, that keep the value of the last run. Every
                other leaf flagged INPUT must be among ``inputs``, unless `set`, a copy or another
                graph wrote it. Leafs without the flag keep their values.
            shape: shape of the result in numpy order, with as many elements; a list of shapes or
                Nones if ``outputs`` is a sequence. If not given: `Tensor.shape`.

        Returns:
            A Future of an array, or of a list of arrays if ``outputs`` is a sequence.

        Raises:
            NotAllocated: a leaf flagged INPUT was never written, or only by an earlier run.
            InvalidArgument: an input that is no leaf of ``graph``; a name that none of its tensors
                has, or several have.
            As `set`, `graph_compute` and `get`; nothing is queued then.

        Cancellation: when the last task that awaits it is cancelled, the work is aborted; see
            `Future.shield`.
        """
        key = run_key(outputs, inputs, reuse, shape)
        prepared: PreparedRun | None = None
        if type(graph) is Graph and not observers and not self.stream.open_batches:
            prepared = self.plans.find_run(graph, key)
        if prepared is None:
            return self._run_first(graph, inputs, outputs, reuse, shape, key)
        try:
            future = prepared.run(inputs)
        except InvalidState:
            self._check_open("Backend.run")
            raise
        return future if self._admission.limit is None else self._unit(future)

    def _run_first(
        self,
        graph: Graph,
        inputs: Mapping[Any, object] | None,
        outputs: Tensor | str | Sequence[Any],
        reuse: Reuse,
        shape: object,
        key: tuple[object, ...],
    ) -> Future[Any]:
        """`run` with arguments that were not used before, or that cannot be prepared."""
        what = "Backend.run"
        self._check_open(what)
        for _ in range(ATTEMPTS):
            compiled = self._ensure_compiled(graph, what)
            plan: Any = compiled.plan
            shapes = None if shape is None else shapes_of(graph, outputs, shape, what)
            arena = self.memory.arena(plan.arena_size)
            asked = find_arguments(graph, inputs, outputs, reuse, what)
            sets = self._check_inputs(asked)
            if not observers and not self.stream.open_batches and self._direct(plan):
                prepared = PreparedRun(
                    self.stream, plan, self.memory, asked, what, marks=asked.marks, shapes=shapes
                )
                if (
                    compiled.epoch != PlacementEpoch.value and not compiled.is_valid()
                ):  # a thread moved a tensor: the plan has its old place
                    continue
                compiled.keep(key, prepared)
                return self._unit(prepared.run(dict(sets)))
            try:
                future = self._run_by_hooks(asked, sets, compiled, arena)
            except _Moved:
                continue
            asked.marks.note(self.stream.open_batch())
            return self._unit(future if shapes is None else reshape_results(future, shapes))
        raise _restless(graph, what)

    def _check_inputs(self, asked: RunArguments) -> list[tuple[Tensor, Array]]:
        """The inputs with their arrays, after checking that all inputs and outputs are usable."""
        sets = []
        for tensor, x in asked.inputs.items():
            self._check_tensor(tensor, "Backend.run", write=True)
            sets.append((tensor, checking.incoming(x, tensor, "Backend.run")))
        for tensor in asked.outputs:
            self._check_tensor(tensor, "Backend.run")
        batch = self.stream.open_batch()
        check_due(asked.due, "Backend.run", (), {} if batch is None else batch.states)
        return sets

    def _run_by_hooks(
        self,
        asked: RunArguments,
        sets: list[tuple[Tensor, Array]],
        compiled: CompiledGraph,
        arena: Buffer | None,
    ) -> Future[Any]:
        gets = [(t, *checking.outgoing(t, None, None, "Backend.run")) for t in asked.outputs]
        results = [result for _, result, _ in gets]
        value = results[0] if asked.single else results
        future: Future[Any] = Future(None, value, "run", abortable=True)
        reads = [(tensor, view) for tensor, _, view in gets]
        if type(self)._run is not Backend._run:  # a device that does it in its own way
            self._run(future, compiled.plan, arena, sets, reads)
            return future
        with self.stream.unit():
            self._run(future, compiled.plan, arena, sets, reads)
            if compiled.epoch != PlacementEpoch.value and not compiled.is_valid():
                raise _Moved  # so nothing is enqueued
        return future

    def _run(
        self,
        future: Future[Any],
        plan: Any,  # noqa: ANN401 - as `_compile` gave it
        arena: Buffer | None,
        sets: list[tuple[Tensor, Array]],
        gets: list[tuple[Tensor, Array]],
    ) -> None:
        """Enqueue sets, one compute and gets as one unit; ``future`` is done when all are."""
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

    def batch(self) -> StreamBatch:
        """``with backend.batch():`` enqueues this thread's calls at its end, in one step.

        No call of another thread gets between them. Awaiting one of the batch's Futures inside the
        block is refused. If the body raises, nothing is enqueued and its Futures raise Aborted.
        """
        self._check_open("Backend.batch")
        return self.stream.batch()

    @contextlib.contextmanager
    def prefetch(
        self, data: Mapping[Tensor, object], *, on: Backend, copy: bool = False
    ) -> Iterator[list[Future[None]]]:
        """Upload tensors on another backend of the device, beside what is computed in the block.

        ``with compute.prefetch({next_layer.w: array}, on=uploads): compute.graph_compute(layer)``

        The uploads begin when all is done that this backend was given before the block: it may
        still read what the tensors held. What it is given in the block runs beside them. What it is
        given after the block waits for them.

        Args:
            data: what is written, by tensor, as for `set`.
            on: a backend of the same device, whose order the uploads keep.
            copy: snapshot the arrays first; else they are borrowed until the uploads are done.

        Yields:
            a Future of each upload, in order.

        Raises:
            InvalidArgument: ``on`` is this backend, or belongs to another device.
            InvalidState: one of the two is closed.
            others: as `set`; then nothing is uploaded.

        Cancellation: of an await in the block, or of a Future: the uploads go on.
        """
        what = "Backend.prefetch"
        self._check_open(what)
        given: object = on
        if not isinstance(given, Backend) or on is self or on.device is not self.device:
            raise InvalidArgument(
                f"[{what}] on is {on!r}, expected another backend of {self.device.name}"
            )
        before, ready = self.device.event(), self.device.event()
        self.record(before)
        with on.batch():
            on.wait(before)
            uploads = [on.set(tensor, x, copy=copy) for tensor, x in data.items()]
            on.record(ready)
        try:
            yield uploads
        finally:
            if not self.closed:
                self.wait(ready)

    def graph_reset(self, graph: Graph) -> Future[None]:
        """Begin to train anew with a graph of `build_backward_expand` (``ggml_graph_reset``).

        The gradients with which the chain rule begins, those of losses, become 1. Accumulators of
        other gradients and the running means of AdamW become 0. All tensors have to be placed.

        Raises:
            InvalidArgument: the graph has nothing to reset.
            InvalidHandle: ``graph`` is no Graph.
            NotAllocated: one of the tensors has no memory.

        Cancellation: abandons the wait; the writes go on.
        """
        what = "Backend.graph_reset"
        self._check_open(what)
        if not isinstance(graph, Graph):
            raise InvalidHandle(f"[{what}] {graph!r} is no Graph")
        ones = [graph.grad_accs[loss] for loss in graph.losses]
        zeros = [acc for t, acc in graph.grad_accs.items() if t not in graph.losses]
        for node in graph.nodes:
            if node.op == "opt_step_adamw":
                zeros += [mean for mean in node.src[2:4] if mean is not None]
        if not ones and not zeros:
            raise InvalidArgument(
                f"[{what}] {graph!r} has no gradients: build_backward_expand makes graphs that do"
            )
        with self.stream.unit():
            parts = [self.memset(tensor, 0) for tensor in zeros]
            parts += [self.set(tensor, np.ones(1, np.float32)) for tensor in ones]
            return self.stream.together(parts, "graph_reset")

    def record(self, event: Event) -> Future[None]:
        """Let ``event`` mark all that is queued so far (ggml_backend_event_record).

        Raises:
            InvalidHandle: ``event`` is no `Event`.
            InvalidState: the backend is closed.

        Cancellation: abandons the wait; the mark stays.
        """
        self._check_open("Backend.record")
        if not isinstance(event, Event):
            raise InvalidHandle(f"[Backend.record] {event!r} is no Event")
        return self.stream.record(event)

    def wait(self, event: Event | Future[Any]) -> Future[None]:
        """Hold later work until the event's latest mark is reached (ggml_backend_event_wait).

        A Future in place of the event holds it until the Future is done. An event that was never
        recorded counts as reached. No thread waits.

        Raises:
            InvalidHandle: ``event`` is neither an `Event` nor a `Future`.
            InvalidState: the backend is closed.

        Cancellation: abandons the wait for the Future that this returns; later work is still held.
        """
        self._check_open("Backend.wait")
        if not isinstance(event, Event | Future):
            raise InvalidHandle(f"[Backend.wait] {event!r} is neither an Event nor a Future")
        return self.stream.wait(event)

    def synchronize(self) -> Future[None]:
        """A Future that is done when all work queued so far is done (ggml_backend_synchronize).

        Raises:
            ExceptionGroup: raised by the Future: the failures that nobody has seen yet.

        Cancellation: abandons the wait; the work goes on.
        """
        if self._drained is not None:
            return self._drained
        unseen: list[AggmlError] | None = None  # collected once: each await raises the same group

        def report() -> None:
            nonlocal unseen
            with _reporting:
                if unseen is None:
                    unseen = self._unseen()
            if unseen:
                raise ExceptionGroup(
                    f"[Backend.synchronize] {self!r}: {len(unseen)} operations failed, and nobody "
                    "awaited them",
                    unseen,
                )

        return self.stream.mark("synchronize", finish=report)

    def _unseen(self) -> list[AggmlError]:
        """The failures that nobody has seen yet; these now count as seen."""
        return self.stream.failures()

    # -- back-pressure

    async def ready(self) -> None:
        """Wait until fewer than ``max_queued`` submissions are unfinished or admitted.

        First come, first served. A submission is one call, a whole ``run`` or a whole batch; each
        admission is good for one. (`pending` counts operations: a ``run`` is several.)

        Cancellation: gives up the place in the queue; nothing else changes.
        """
        await self._admission.wait()

    # -- end

    def close(self) -> None:
        """Refuse new work; never blocks. Queued work goes on, and keeps its memory alive.

        Failures that nobody has seen are logged (logger ``aggml``): now if nothing is queued, else
        when the backend and all of its Futures have gone, or at exit.
        """
        native = self.stream.native
        with _closing:
            if self._drained is None and native.alive and not native.closed:
                if native.lost is None:
                    (ops,) = submit([(native, [_native.mark("close", ())])])
                    self._drained = Future(tuple(ops), None, "close")
                else:  # the device is lost: it refuses a mark, and queued work fails soon
                    self._drained = Stream(self.name, pool=self.stream.pool).wait(self.stream)
                self.stream.close()
        self.plans.clear()
        self.memory.drop()
        if not self.stream.pending:
            self.stream.tell_failures("Backend.close")

    async def aclose(self) -> None:
        """Close, then wait until all that is queued is done; failures that nobody saw are logged.

        Cancellation: anyio scopes wait for the drain; a native asyncio cancel ends the wait, not
        the close.
        """
        self.close()
        if self._drained is not None:
            with anyio.CancelScope(shield=True):
                await self._drained
            self.stream.native.release_finished()  # the memory of its runs
        self.stream.tell_failures("Backend.aclose")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, raised: object, *_: object) -> None:
        if raised is not None:
            self.stream.abort()
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        if raised is not None:
            self.stream.abort()
        self.close()
        if self._drained is not None and current_task() is None:  # a loop must not be blocked
            self._drained.wait()
            self.stream.native.release_finished()
            self.stream.tell_failures("Backend.close")


class Device(ABC):
    """One piece of hardware, or a simulation of one; lives as long as the process.

    Attributes:
        name: short and unique: "CPU", "CUDA0".
        description: the product's name, for people to read.
        type: see `DeviceType`.
        caps: see `DeviceCaps`.
        family: the Family that it belongs to; None for a device made outside of the registry.
        device_id: where the hardware sits, "domain:bus:device.function" in lower case, if anywhere.
        registers_files: whether loading tensors from a mapped file registers the file's memory
            with the driver (`register_host`), a part at a time.
    """

    name: str
    description: str
    type: DeviceType
    caps: DeviceCaps = DeviceCaps()
    family: Any = None
    device_id: str | None = None
    registers_files: bool = False

    @property
    @abstractmethod
    def buffer_type(self) -> BufferType:
        """The preferred memory for tensors of this device."""

    @property
    def host_buffer_type(self) -> BufferType | None:
        """Host memory that makes transfers faster; None where there is none."""
        return None

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Free and total bytes; 0 and 0 if unknown."""

    @abstractmethod
    def backend(
        self,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        max_queued: int | None = None,
    ) -> Backend:
        """A new stream of work on this device, independent of all others.

        Args:
            n_threads: the most threads that one graph uses, where threads compute.
            use_ref: use only exact reference kernels, on devices that have them.
            max_queued: how many submissions `Backend.ready` admits at a time.
        """

    def backend_from_params(self, params: str = "") -> Backend:
        """`backend` with its arguments as a text: "CPU:n_threads=2" (ggml_backend_dev_init).

        Args:
            params: keyword arguments of `backend` as ``key=value,key=value``; a device may read it
                in its own way.

        Raises:
            InvalidArgument: a key is no argument of `backend`, or a value outside its domain.
        """
        what = f"{self.name}.backend_from_params"
        keywords = keywords_of(params, self.backend, what)
        try:
            return self.backend(**keywords)  # type: ignore[arg-type]
        except TypeError as error:  # for example a text where a number is needed
            raise InvalidArgument(f"[{what}] {params!r}: {error}") from error

    @abstractmethod
    def supports_op(self, tensor: Tensor) -> bool:
        """Whether it can run this node (ggml_backend_dev_supports_op); nothing is allocated or run.

        Types, shapes and strides count. For a source that has memory, the place of that memory
        counts as well.
        """

    @abstractmethod
    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Whether kernels of this device read and write memory of this type directly."""

    def offload_op(self, tensor: Tensor) -> bool:
        """Whether the node is worth running here although its weights lie on another device.

        ggml_backend_dev_offload_op.
        """
        return False

    def buffer_from_host(self, memory: object, *, max_tensor_size: int | None = None) -> Buffer:
        """Wrap host memory (any buffer object) without copying; the buffer keeps it alive.

        Args:
            memory: bytes, an array, a memory map, ...
            max_tensor_size: bytes of the largest tensor that will be placed in it, for devices that
                limit the size of a buffer.

        Raises:
            Unsupported: this device cannot use host memory directly.
        """
        raise Unsupported(f"[Device.buffer_from_host] {self.name} cannot use host memory directly")

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        """More buffer types for weights, in layouts that some kernels prefer; often none.

        ggml_backend_dev_get_extra_bufts. The CPU device offers none for the weights that it packs:
        it keeps packed copies next to the originals.
        """
        return ()

    def register_host(self, memory: object) -> AbstractContextManager[None]:
        """Make transfers from and to this host memory faster while a ``with`` block lasts.

        Args:
            memory: bytes, an array, a memory map, ...

        Raises:
            Unsupported: this device has no use for it.
        """
        raise Unsupported(f"[Device.register_host] {self.name} does not register host memory")

    def event(self) -> Event:
        """A new event, not recorded yet."""
        return Event(self)

    @property
    def props(self) -> DeviceProps:
        """All properties at once, with the memory that is free now."""
        free, total = self.memory()
        return DeviceProps(
            self.name, self.description, self.type, free, total, self.caps, self.device_id
        )

    def __repr__(self) -> str:
        return f"<Device {self.name}: {self.description}>"


def _restless(graph: Graph, what: str) -> InvalidState:
    return InvalidState(
        f"[{what}] tensors of {graph!r} were placed elsewhere each time that it was looked at: "
        "order the calls that close their buffers and allocate them"
    )


def _not_placed(graph: Graph, what: str) -> NotAllocated:
    return NotAllocated(f"[{what}] {graph!r} has no memory: call alloc_graph or prepare first")
