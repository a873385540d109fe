"""BackendBase: the hooks that a device implements, and the checks that every operation shares.

Here: the hooks (`_set`, `_get`, ...), which receive validated arguments; names, state, checks. Not
here: the operations (data.py, computing.py), their order and closing (backend.py).
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from aggml.errors import InvalidArgument, InvalidHandle, InvalidState, NotAllocated
from aggml.memory.graph_memory import GraphBuffer, GraphMemory
from aggml.process.alive import note
from aggml.stream.admission import Admission
from aggml.tensor import Tensor
from aggml.tensor.checking import integer
from aggml.tensor.placement import KEPT, fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.graph import Graph
    from aggml.memory.buffer import Buffer
    from aggml.memory.buffer_type import BufferType
    from aggml.plan import DevicePlan
    from aggml.stream import Stream
    from aggml.stream.future import Future
    from aggml.stream.slices import Sliced

__all__ = ["Array", "BackendBase", "Home", "Sums"]

T = TypeVar("T")
Array = np.ndarray[Any, Any]


class Home(Protocol):
    """The part of a device that a backend uses; `aggml.Device` is the whole interface."""

    @property
    def name(self) -> str:
        """The name under which the registry lists it."""
        ...

    @property
    def buffer_type(self) -> BufferType:
        """The preferred memory."""
        ...

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Whether its kernels read and write memory of this type directly."""
        ...

    def backend(self) -> Any:  # noqa: ANN401 - a Backend
        """Another stream of work on it."""
        ...


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


class BackendBase(ABC):
    """A stream of work on one device: hooks, state and checks that a `Backend` builds on."""

    def __init__(self, device: Home, stream: Stream, *, max_queued: int | None = None) -> None:
        self._device = device
        self.stream = stream
        if max_queued is not None:
            max_queued = integer(max_queued, "max_queued", "Device.backend")
        self._admission = Admission(max_queued)
        self.memory = GraphMemory(device.buffer_type)
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

    def _sums(self, members: Sequence[BackendBase]) -> Sums | None:
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
    def device(self) -> Home:
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

    def _wrote(self, tensor: Tensor, other: BackendBase | None = None) -> None:
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
