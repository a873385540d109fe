"""SimDevice: an accelerator without hardware.

Here: the size of its memory, bandwidth, latency, speed, faults on demand. It sleeps real time,
computes with the CPU kernels and is written against the interfaces and the public Stream alone: the
worked example for authors of a device. Not here: its memory and its work (backend.py), kernels. No
other code knows it is simulated.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

from aggml.backend.backend import Device
from aggml.backend.props import DeviceCaps, DeviceType
from aggml.devices.sim.backend import SimBackend, SimBufferType
from aggml.errors import AllocFailed, DeviceError, InvalidArgument, Unsupported
from aggml.plan import node_problem
from aggml.process.alive import there
from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aggml.memory.buffer_type import BufferType
    from aggml.stream.threadpool import ThreadPool
    from aggml.tensor import Tensor

__all__ = ["SimDevice"]

Fault = Literal["alloc", "transfer", "compute", "any"]


class SimDevice(Device):
    """A simulated accelerator.

    Args:
        name: unique if it is to be registered.
        memory: bytes it has.
        alignment: of tensors in its memory, a power of two.
        bandwidth: bytes per second between host and device; None: as fast as memory.
        latency: seconds before a transfer begins.
        speed: floating point operations per second that it pretends to; None: as fast as the CPU
            kernels.
        unsupported: lower-case names of node ops that it cannot run ("soft_max", also for
            soft_max_ext).
        offload: node ops that it asks for though their weights are elsewhere.
        reads_host: whether its kernels read host memory directly.
    """

    type = DeviceType.GPU
    caps = DeviceCaps(async_=True, host_buffer=False, buffer_from_host=False, events=True)

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
        if alignment < 1 or alignment & (alignment - 1):
            raise InvalidArgument(f"[SimDevice] alignment={alignment} is no power of two")
        if (
            memory < 0
            or latency < 0
            or (bandwidth is not None and bandwidth <= 0)
            or (speed is not None and speed <= 0)
        ):
            raise InvalidArgument(
                f"[SimDevice] memory={memory}, latency={latency}, bandwidth={bandwidth}, "
                f"speed={speed}: not all positive"
            )
        self.name = name
        self.description = "simulated accelerator"
        self.memory_size = memory
        self.bandwidth = bandwidth
        self.latency = latency
        self.speed = speed
        self.unsupported = frozenset(unsupported)
        self.offload = frozenset(offload)
        self.reads_host = reads_host
        self._type = SimBufferType(self, alignment)
        self._used = 0
        self._lock = new_lock()
        # (operations still to pass, of which class, cause)
        self._faults: list[tuple[int, Fault, BaseException]] = []
        self._backends: weakref.WeakSet[SimBackend] = weakref.WeakSet()
        self._holds = 0

    @property
    def buffer_type(self) -> BufferType:
        """Its private memory."""
        return self._type

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
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
        """Its own memory; that of the host if it was made with ``reads_host``."""
        return buffer_type is self._type or (self.reads_host and buffer_type.is_host)

    def offload_op(self, tensor: Tensor) -> bool:
        """Whether the op is among ``offload``."""
        return tensor.op in self.offload

    def _check_op(self, node: Tensor) -> None:
        if node.op in self.unsupported:
            raise Unsupported(
                f"[SimDevice] {self.name} was told not to support {node.op!r}: {node!r}"
            )

    # -- standing still and failing

    def hold(self) -> ExitStack:
        """Hold all backends of this device, those opened meanwhile too."""
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

    def fail_at(self, k: int, of: Fault = "any", cause: BaseException | None = None) -> None:
        """Have the ``k``-th operation of that class from now on fail; 0 is the next one.

        Args:
            k: how many pass before it.
            of: "any" counts them all. An "alloc" raises AllocFailed at the call; the others fail
                their Futures.
            cause: what the failure is caused by; a DeviceError if not given.

        Raises:
            InvalidArgument: ``k`` is negative.
        """
        if k < 0:
            raise InvalidArgument(f"[SimDevice.fail_at] k={k} is negative")
        with self._lock:
            self._faults.append(
                (k, of, cause or DeviceError(f"[{self.name}] injected fault ({of})"))
            )

    def _fault(self, of: Fault) -> BaseException | None:
        with self._lock:
            kept, found = [], None
            for left, wanted, cause in self._faults:
                if wanted not in ("any", of):
                    kept.append((left, wanted, cause))
                elif left > 0 or found is not None:
                    kept.append((max(0, left - 1), wanted, cause))
                else:
                    found = cause
            self._faults = kept
            return found

    def _take(self, size: int) -> None:
        fault = self._fault("alloc")
        if fault is not None:
            raise AllocFailed(f"[{self.name}] no memory for {size} bytes") from fault
        with self._lock:
            if self._used + size > self.memory_size:
                raise AllocFailed(
                    f"[{self.name}] no memory for {size} bytes: {self._used} of {self.memory_size} "
                    "are in use"
                )
            self._used += size

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._used -= size
