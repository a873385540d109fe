"""Device and Backend: hardware that can run graphs, and an ordered stream of work on it.

Here: the Device class that a plug-in implements; the Backend class, which joins all operations and
adds events, batches, backpressure and closing. Not here: what the operations do (data.py,
computing.py), waking awaiting tasks (stream/future.py), finding devices (registry/).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import anyio
import numpy as np

from aggml.backend.computing import ComputingBackend
from aggml.backend.data import DataBackend
from aggml.backend.params import keywords_of
from aggml.backend.props import DeviceCaps, DeviceProps, DeviceType
from aggml.errors import AggmlError, InvalidArgument, InvalidHandle, Unsupported
from aggml.graph import Graph
from aggml.native import _native
from aggml.process.locks import new_rlock
from aggml.stream import Stream
from aggml.stream.event import Event
from aggml.stream.future import Future
from aggml.stream.observe import submit
from aggml.stream.reactor import current_task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from aggml.memory.buffer import Buffer
    from aggml.memory.buffer_type import BufferType
    from aggml.stream.batch import Batch
    from aggml.tensor import Tensor

__all__ = ["Backend", "Device"]

# Several threads may close one backend, or await one `synchronize`: the first does the work, for
# all. Reentrant, because garbage collection may close another backend in between.
_closing = new_rlock()
_reporting = new_rlock()


class Backend(DataBackend, ComputingBackend):
    """A stream of work on one device; open once constructed.

    Operations run in the order submitted. Every method that returns a Future returns immediately.
    Misuse raises at the call, before anything is queued. An operation that fails later fails its
    Future and poisons the tensors that it would have written: reading them fails with its error.
    """

    @property
    def device(self) -> Device:
        """The device that does the work."""
        return self._device  # type: ignore[return-value]

    # -- order

    def batch(self) -> Batch:
        """``with backend.batch():`` enqueues this thread's calls at its end, in one step.

        No call of another thread gets between them. Awaiting one of the batch's Futures inside the
        block is refused. If the body raises, nothing is enqueued and its Futures raise Aborted.
        """
        self._check_open("Backend.batch")
        return self.stream.batch()

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
