"""SimDevice: an accelerator without hardware.

Here: its own memory and streams, bandwidth, latency, speed, faults on demand. It sleeps real time
and computes with the CPU kernels. It uses only the public interfaces and the public Stream, so it
is the worked example for authors of a device. No other code knows that it is simulated. Not here:
the queue of faults (faults.py), the cost of a graph (cost.py), kernels.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.backend.backend import Device
from aggml.backend.direct import DirectBackend
from aggml.backend.guesser import ExpertGuesser
from aggml.backend.props import DeviceCaps, DeviceType
from aggml.devices.sim.cost import operations
from aggml.devices.sim.faults import Faults
from aggml.errors import AllocFailed, DeviceError, InvalidArgument, InvalidHandle, Unsupported
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import HOST, BufferType
from aggml.native import cpu_mask
from aggml.ops.table import OPS
from aggml.plan import compile_steps, node_problem
from aggml.process.alive import there
from aggml.process.foreign import short
from aggml.process.locks import new_rlock
from aggml.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.devices.sim.faults import Struck
    from aggml.graph import Graph
    from aggml.memory.graph_memory import GraphBuffer
    from aggml.native import _native
    from aggml.plan import Plan
    from aggml.stream.future import Future
    from aggml.stream.slices import Sliced
    from aggml.stream.threadpool import ThreadPool
    from aggml.tensor import Tensor

__all__ = ["SimBackend", "SimBufferType", "SimDevice", "operations"]

Array = np.ndarray[Any, Any]


class SimBufferType(BufferType):
    """Private memory of one simulated device: the host may not touch it."""

    def __init__(self, device: SimDevice, alignment: int) -> None:
        self.name: str = device.name
        self.device = device
        self.alignment = alignment
        self._sim = device

    @property
    def max_size(self) -> int:
        """All bytes of the device."""
        return self._sim.memory_size

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes.

        Raises:
            AllocFailed: the device has too little memory left, or was told to fail.
        """
        size = self.checked_size(size)
        self._sim._take(size)
        try:
            block = HOST.alloc_buffer(size + self.alignment)
            base = -(-block.base // self.alignment) * self.alignment if size else 0
            buffer = Buffer(self, size, base, block)
            weakref.finalize(buffer, self._sim._give_back, size).atexit = False
        except BaseException:
            self._sim._give_back(size)
            raise
        return buffer


class SimBackend(DirectBackend, ExpertGuesser):
    """Ordered work on a simulated device."""

    device: SimDevice  # pyright: ignore[reportIncompatibleMethodOverride] narrower

    def __init__(
        self,
        device: SimDevice,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        max_queued: int | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        stream = Stream(device.name, pool=pool, n_threads=n_threads or 0)
        super().__init__(device, stream, max_queued=max_queued)
        self.cpu: int = cpu_mask("scalar" if use_ref else None)

    def _sibling(self) -> SimBackend:
        other = self.device.backend(pool=self.stream.pool)
        other.cpu = self.cpu
        return other

    def _direct(self, plan: Plan) -> bool:
        return False  # the hooks below say how long each operation lasts

    def _repeats(self) -> object:
        device = self.device
        return None if device._faults else (device.bandwidth, device.latency, device.speed)

    def hold(self) -> ExitStack:
        """No operation starts until `release`, or the end of ``with backend.hold():``."""
        self.stream.native.hold()
        held = ExitStack()
        held.callback(self.release)
        return held

    def release(self) -> None:
        """Undo one `hold`.

        Raises:
            InvalidArgument: no `hold` is in force.
        """
        if not self.stream.native.release():
            raise InvalidArgument(f"[SimBackend.release] {self!r} is not held: call hold() first")

    def _transfer(
        self,
        nbytes: int,
        what: str,
        move: Callable[[float], Future[None]],
        *,
        writes: Sequence[Tensor] = (),
        partial: Sequence[Tensor] = (),
    ) -> Future[None]:
        """A transfer between host and device; it fails if `fail_at` asked for that.

        Args:
            nbytes: bytes to transfer.
            what: name of the operation.
            move: enqueues the transfer, given the seconds that it is to take.
            writes: tensors that it writes in full.
            partial: tensors that it writes in part.
        """
        device = self.device
        fault = device._faults.next("transfer")
        if fault is not None:
            return self.stream.fail(fault, writes=writes, partial=partial, operation=what)
        bandwidth = device.bandwidth
        return move(device.latency + (nbytes / bandwidth if bandwidth else 0.0))

    def _write(
        self, nbytes: int, what: str, move: Callable[[float], Future[None]], target: Tensor
    ) -> Future[None]:
        if target.view_src is None:
            return self._transfer(nbytes, what, move, writes=[target])
        return self._transfer(nbytes, what, move, partial=[target])

    def _set(self, tensor: Tensor, array: Array) -> Future[None]:
        def move(lasts: float) -> Future[None]:
            return self.stream.copy(tensor, array, lasts=lasts, operation="set")

        return self._write(array.nbytes, "set", move, tensor)

    def _get(self, tensor: Tensor, array: Array) -> Future[None]:
        def move(lasts: float) -> Future[None]:
            return self.stream.copy(array, tensor, lasts=lasts, operation="get")

        return self._transfer(array.nbytes, "get", move)

    def _set_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        def move(lasts: float) -> Future[None]:
            return self.stream.copy_bytes(
                tensor, data, offset, to_tensor=True, lasts=lasts, operation="set"
            )

        return self._transfer(data.nbytes, "set", move, partial=[tensor])

    def _get_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        def move(lasts: float) -> Future[None]:
            return self.stream.copy_bytes(
                tensor, data, offset, to_tensor=False, lasts=lasts, operation="get"
            )

        return self._transfer(data.nbytes, "get", move)

    def _copy(self, src: Tensor, dst: Tensor) -> Future[None]:
        here, there = src.buffer, dst.buffer
        if here is not None and there is not None and here.type is there.type:
            return self.stream.copy(dst, src)

        def move(lasts: float) -> Future[None]:
            return self.stream.copy(dst, src, lasts=lasts)

        return self._write(src.nbytes, "copy", move, dst)

    def _copy_experts(self, src: Tensor, dst: Tensor, ids: Tensor) -> Future[None]:
        return self._correct_experts(src, dst, ids, None)

    def _guess_experts(
        self, src: Tensor, dst: Tensor, history: _native.ExpertHistory
    ) -> Future[None]:
        device = self.device
        fault = device._faults.next("transfer")
        if fault is not None:
            return self.stream.fail(fault, writes=[dst], operation="guess")
        return self.stream.guess_experts(
            dst, src, history, latency=device.latency, bandwidth=device.bandwidth
        )

    def _correct_experts(
        self, src: Tensor, dst: Tensor, ids: Tensor, history: _native.ExpertHistory | None
    ) -> Future[None]:
        device = self.device
        fault = device._faults.next("transfer")
        if fault is not None:
            return self.stream.fail(fault, writes=[dst], operation="copy")
        return self.stream.copy_experts(
            dst, src, ids, latency=device.latency, bandwidth=device.bandwidth, history=history
        )

    def _note_experts(self, histories: tuple[_native.ExpertHistory, ...]) -> Future[None]:
        return self.stream.note_experts(histories)

    def _compile(self, graph: Graph, memory: GraphBuffer) -> Sliced[Plan]:
        for node in graph.nodes:
            self.device._check_op(node)
        plan = yield from compile_steps(graph, memory.locate, memory.scratch_size, self.cpu)
        plan.work = sum(operations(node) for node in graph.nodes)
        return plan

    def _compute(self, plan: Plan, arena: Buffer | None) -> Future[None]:
        fault = self.device._faults.next("compute")
        if fault is not None:
            return self.stream.fail(fault, writes=plan.writes, operation="graph_compute")
        speed = self.device.speed
        return self.stream.run_plan(plan, arena, lasts=plan.work / speed if speed else 0.0)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"[SimDevice] name={short(name)} is no name")


def _check_flag(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidHandle(f"[SimDevice] {what}={short(value)} is no bool")


def _whole(what: str, value: object) -> int:
    """An argument that must be an integer."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidHandle(f"[SimDevice] {what}={short(value)} is no integer")
    return int(value)


def _check_number(what: str, value: Any, *, zero: bool) -> None:  # noqa: ANN401 whatever was given
    """Refuse an argument that is no finite number above 0; ``zero``: 0 is allowed, too."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise InvalidHandle(f"[SimDevice] {what}={short(value)} is no number")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        wanted = "from 0 on" if zero else "above 0"
        raise InvalidArgument(f"[SimDevice] {what}={short(value)} is no finite number {wanted}")


def _ops(what: str, names: Any) -> frozenset[str]:  # noqa: ANN401 whatever was given
    """Names of node ops; one that there is not would change nothing, so it is refused."""
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise InvalidHandle(f"[SimDevice] {what}={short(names)} is no list of names of ops")
    found = [*names]
    for name in found:
        if not isinstance(name, str) or name not in OPS:
            raise InvalidArgument(
                f"[SimDevice] {what} has {short(name)}, which is no op of a node: these are "
                "lower-case names such as 'mul_mat'"
            )
    return frozenset(found)


class SimDevice(Device):
    """A simulated accelerator.

    Args:
        name: unique if the device is to be registered; not empty.
        memory: bytes of device memory.
        alignment: of tensors in its memory, a power of two.
        bandwidth: bytes per second between host and device; None: as fast as memory.
        latency: seconds before a transfer begins.
        speed: floating point operations per second that it pretends to; None: as fast as the CPU
            kernels.
        unsupported: lower-case names of node ops that it cannot run ("soft_max", also for
            soft_max_ext).
        offload: node ops that it offers to run although their weights are elsewhere.
        reads_host: whether its kernels read host memory directly.

    Raises:
        InvalidArgument: a number is out of range or not finite; there is no op of that name.
        InvalidHandle: an argument has another type; a text where a list of names is expected.
    """

    type = DeviceType.GPU
    caps: DeviceCaps = DeviceCaps(
        async_=True, host_buffer=False, buffer_from_host=False, events=True
    )

    def __init__(
        self,
        name: str = "SIM0",
        *,
        memory: int = 1 << 30,
        alignment: int = 128,
        bandwidth: float | None = None,
        latency: float = 0.0,
        speed: float | None = None,
        unsupported: Iterable[str] = (),
        offload: Iterable[str] = (),
        reads_host: bool = False,
    ) -> None:
        _check_name(name)
        alignment = _whole("alignment", alignment)
        if alignment < 1 or alignment & (alignment - 1):
            raise InvalidArgument(f"[SimDevice] alignment={alignment} is no power of two")
        if _whole("memory", memory) < 0:
            raise InvalidArgument(f"[SimDevice] memory={memory} is negative")
        _check_number("latency", latency, zero=True)
        for what, value in (("bandwidth", bandwidth), ("speed", speed)):
            if value is not None:
                _check_number(what, value, zero=False)
        _check_flag("reads_host", reads_host)
        self.name = name
        self.description = "simulated accelerator"
        self.memory_size = memory
        self.bandwidth = bandwidth
        self.latency = latency
        self.speed = speed
        self.unsupported: frozenset[str] = _ops("unsupported", unsupported)
        self.offload: frozenset[str] = _ops("offload", offload)
        self.reads_host = reads_host
        self._type = SimBufferType(self, alignment)
        self._used = 0
        # What buffers gave back. Finalizers only append: their thread may be in the middle of a
        # change. The lock is reentrant because a program's finalizers may ask for the memory, too.
        self._returned: deque[int] = deque()
        self._lock = new_rlock()
        self._faults = Faults()
        self._backends: weakref.WeakSet[SimBackend] = weakref.WeakSet()
        self._holds = 0

    @property
    def buffer_type(self) -> BufferType:
        """Its private memory."""
        return self._type

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        with self._lock:
            self._count_returned()
            return self.memory_size - self._used, self.memory_size

    def backend(
        self,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        max_queued: int | None = None,
        pool: ThreadPool | None = None,
    ) -> SimBackend:
        """A new stream of work on this device.

        Args:
            n_threads: the most threads that one graph uses; None: as many as ``pool`` has.
            use_ref: only the exact scalar kernels.
            max_queued: see `Backend.ready`.
            pool: worker threads; None: the pool that all CPU backends share.
        """
        backend = SimBackend(
            self, n_threads=n_threads, use_ref=use_ref, max_queued=max_queued, pool=pool
        )
        self._backends.add(backend)
        for _ in range(self._holds):
            backend.stream.native.hold()
        return backend

    def supports_op(self, tensor: Tensor) -> bool:
        """Whether the CPU kernels can run the node and it is not among ``unsupported``."""
        return tensor.op not in self.unsupported and node_problem(tensor) is None

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """True for its own memory; for host memory if it was made with ``reads_host``."""
        return buffer_type is self._type or (self.reads_host and buffer_type.is_host)

    def offload_op(self, tensor: Tensor) -> bool:
        """Whether the op is among ``offload``."""
        return tensor.op in self.offload

    def _check_op(self, node: Tensor) -> None:
        if node.op in self.unsupported:
            raise Unsupported(
                f"[SimDevice] {self.name} was told not to support {node.op!r}: {node!r}"
            )

    # -- holding and failing

    def hold(self) -> ExitStack:
        """Hold all backends of this device, including those opened while it is held."""
        with self._lock:
            self._holds += 1
        for backend in there(self._backends):
            backend.stream.native.hold()
        held = ExitStack()
        held.callback(self.release)
        return held

    def release(self) -> None:
        """Undo one `hold` of the device."""
        with self._lock:
            self._holds = max(0, self._holds - 1)
        for backend in there(self._backends):
            backend.stream.native.release()

    def fail_at(self, k: int, kind: Struck = "any", cause: BaseException | None = None) -> None:
        """Have the ``k``-th operation of that kind from now on fail; 0 is the next one.

        Args:
            k: how many pass before it.
            kind: "any" counts them all. An "alloc" raises AllocFailed at the call; the others fail
                their Futures.
            cause: what the failure is caused by; a DeviceError if not given.

        Raises:
            InvalidArgument: ``k`` is negative.
        """
        if k < 0:
            raise InvalidArgument(f"[SimDevice.fail_at] k={k} is negative")
        if cause is None:
            cause = DeviceError(f"[{self.name}] injected fault ({kind})")
        self._faults.add(k, kind, cause)

    def _take(self, size: int) -> None:
        fault = self._faults.next("alloc")
        if fault is not None:
            raise AllocFailed(f"[{self.name}] no memory for {size} bytes") from fault
        with self._lock:
            self._count_returned()
            if self._used + size > self.memory_size:
                raise AllocFailed(
                    f"[{self.name}] no memory for {size} bytes: {self._used} of {self.memory_size} "
                    "are in use"
                )
            self._used += size

    def _give_back(self, size: int) -> None:
        self._returned.append(size)

    def _count_returned(self) -> None:
        while self._returned:
            self._used -= self._returned.popleft()


def __dir__() -> list[str]:
    return __all__
