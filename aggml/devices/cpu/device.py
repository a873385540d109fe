"""CPUDevice: the processor as a device: its memory, its name and cores, its backends.

Not here: what a backend does (backend.py), the family that the registry loads (family.py).
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from aggml.backend.backend import Device
from aggml.backend.props import DeviceCaps, DeviceType
from aggml.devices.cpu.backend import CPUBackend
from aggml.errors import InvalidArgument, InvalidHandle, Misaligned
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import HOST, BufferType, HostBufferType
from aggml.native import _native
from aggml.plan import node_problem
from aggml.tensor.checking import integer
from aggml.tensor.placement import Backing

if TYPE_CHECKING:
    from aggml.stream.threadpool import ThreadPool
    from aggml.tensor import Tensor

__all__ = ["CPUDevice", "CoreKinds"]


class CoreKinds(NamedTuple):
    """Cores that this process may use, by kind; a core counts once, however many hyperthreads."""

    performance: int
    efficiency: int

    def __str__(self) -> str:
        kinds = {"performance": self.performance, "efficiency": self.efficiency}
        counts = [f"{n} {kind}" for kind, n in kinds.items() if n]
        return f"{' and '.join(counts)} core{'s' if sum(self) > 1 else ''}"


class _MappedType(HostBufferType):
    """Memory that a caller owns, such as a mapped file; its tensors are used where they lie."""

    def alignment_of(self, tensor: Tensor) -> int:
        """The alignment of one element. That suffices: views may begin at any element, too."""
        return tensor.dtype.alignment


class CPUDevice(Device):
    """The processor of this machine; any number of backends."""

    name = "CPU"
    type = DeviceType.CPU
    caps: DeviceCaps = DeviceCaps(
        async_=True, host_buffer=False, buffer_from_host=True, events=True, mmap=True
    )

    def __init__(self) -> None:
        cores = self.cores
        self.description: str = f"{_model_name()}, {cores}" if cores else _model_name()
        self._mapped = _MappedType("CPU_Mapped")

    @property
    def buffer_type(self) -> BufferType:
        """Plain host memory."""
        return HOST

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of physical memory."""
        try:
            page = os.sysconf("SC_PAGE_SIZE")
            return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
        except (ValueError, OSError):
            return 0, 0

    @property
    def cores(self) -> CoreKinds | None:
        """How many fast and slow cores there are.

        None: the system does not tell, or no efficiency core is usable.
        """
        kinds = CoreKinds(*_native.core_kinds())
        return kinds if kinds.efficiency else None

    @property
    def packed_bytes(self) -> int:
        """Bytes of packed copies of weights; the kernels for few columns multiply with these."""
        return _native.packed_bytes()

    @property
    def packed_limit(self) -> int:
        """The most `packed_bytes` that plans may make; half of the physical memory at first.

        Beyond the limit, products read the weights unpacked. Setting it changes no existing plan.
        """
        return _native.packed_limit()

    @packed_limit.setter
    def packed_limit(self, nbytes: int) -> None:
        if integer(nbytes, "nbytes", "CPUDevice.packed_limit") not in range(1 << 63):
            raise InvalidArgument(f"[CPUDevice.packed_limit] {nbytes} is not within 0..2^63 - 1")
        _native.set_packed_limit(nbytes)

    def backend(
        self,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        isa: str | None = None,
        max_queued: int | None = None,
        pool: ThreadPool | None = None,
    ) -> CPUBackend:
        """A new stream of work; arguments as `CPUBackend`."""
        return CPUBackend(
            self, n_threads=n_threads, use_ref=use_ref, isa=isa, max_queued=max_queued, pool=pool
        )

    def supports_op(self, tensor: Tensor) -> bool:
        """Whether there is a kernel for the node."""
        return node_problem(tensor) is None

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """True for all host memory, whichever device made it."""
        return buffer_type.is_host

    def buffer_from_host(self, memory: object, *, max_tensor_size: int | None = None) -> Buffer:
        """Wrap bytes, an array, a memory map, ... without copying; weights may be read-only.

        An object that supports DLPack but not the buffer protocol is accepted as well.
        `Buffer.place` checks that each tensor lies at a multiple of its `DType.alignment`.

        Raises:
            InvalidHandle: not a contiguous buffer object.
            Misaligned: the memory does not begin at a whole element, or, if its elements are plain
                bytes, at a multiple of 2. `aggml.empty` gives memory that suits every device.
        """
        try:
            if not isinstance(memory, np.ndarray) and hasattr(memory, "__dlpack__"):
                memory = np.from_dlpack(cast("Any", memory)).reshape(-1)
            kind = memory.dtype if isinstance(memory, np.ndarray) else np.dtype(np.uint8)
            flat = (
                np.empty(0, np.uint8)
                if getattr(memory, "nbytes", None) == 0  # frombuffer refuses empty memory
                else np.frombuffer(memory, np.uint8)  # type: ignore[call-overload]
            )
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise InvalidHandle(
                f"[CPUDevice.buffer_from_host] {type(memory).__name__} is no contiguous buffer: "
                f"{error}"
            ) from error
        address = flat.__array_interface__["data"][0]
        # It is not known yet which tensors will lie in plain bytes. Hardly any may lie at an odd
        # address.
        needed = 2 if kind == np.uint8 else kind.alignment
        if flat.nbytes and address % needed:
            raise Misaligned(
                f"[CPUDevice.buffer_from_host] the memory begins at {address:#x}, no multiple of "
                f"{needed}; aggml.empty(shape, dtype) makes arrays that suit every device"
            )
        buffer = Buffer(
            self._mapped,
            flat.nbytes,
            address if flat.nbytes else 0,
            flat,
            writable=flat.flags.writeable,
        )
        buffer.exclusive = not buffer.writable  # the caller may write to it at any time
        buffer.backing = _backing(flat)
        return buffer


def _backing(memory: object) -> Backing:
    """Whether an array may be a mapped file: any may, unless numpy or Python owns its bytes."""
    while True:
        if isinstance(memory, memoryview):
            memory = memory.obj
        elif isinstance(memory, np.ndarray) and memory.base is not None:
            memory = memory.base
        else:
            ours = isinstance(memory, (np.ndarray, bytes, bytearray))
            return Backing.MEMORY if ours else Backing.MAY_BE_FILE


def _model_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "CPU"
