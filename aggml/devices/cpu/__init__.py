"""The CPU: native kernels on worker threads, host memory.

Here: the device and its backend. Not here: kernels and threads (native/), ordering and futures
(stream.py).
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from aggml.backend import Backend
from aggml.backend.backend import Device
from aggml.backend.family import Family
from aggml.backend.props import DeviceCaps, DeviceType
from aggml.devices.cpu.features import (
    CPUFeatures,
    compiled_features,
    feature_list,
    usable_features,
)
from aggml.devices.cpu.hbm import HBMBufferType, hbm_buffer_type
from aggml.devices.cpu.traits import TypeTraits, type_traits
from aggml.errors import InvalidArgument, InvalidHandle, Misaligned
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import HOST, BufferType, HostBufferType
from aggml.native import _native, cpu_mask, isas
from aggml.plan import compiling, node_problem
from aggml.stream import Stream
from aggml.stream.threadpool import ThreadPool, default_pool
from aggml.tensor.checking import integer
from aggml.tensor.placement import Backing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.graph import Graph
    from aggml.memory.graph_memory import GraphBuffer
    from aggml.plan import Plan
    from aggml.stream.future import Future
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = [
    "CPUBackend",
    "CPUDevice",
    "CPUFamily",
    "CPUFeatures",
    "HBMBufferType",
    "TypeTraits",
    "aggml_backend_init",
    "compiled_features",
    "hbm_buffer_type",
    "isas",
    "type_traits",
    "usable_features",
]

Array = np.ndarray[Any, Any]


class _MappedType(HostBufferType):
    """Memory of somebody else, where tensors lie as they lie."""

    def alignment_of(self, tensor: Tensor) -> int:
        """That of an element: views begin at any element as well, so all kernels can read it."""
        return tensor.dtype.alignment


class CPUBackend(Backend):
    """Ordered work on the worker threads.

    Args:
        n_threads: the most that one graph uses; None: all usable cores.
        use_ref: only the exact scalar kernels (ggml_backend_cpu_set_use_ref).
        isa: "scalar", "avx2", "avxvnni", "avx512", "zen4", "amx", "neon", "dotprod", "i8mm" to
            bound the kernels that are chosen; None: AGGML_ISA, else the best.
        max_queued: see `Backend.ready`.
        pool: worker threads; None: the pool that all CPU backends share.
    """

    def __init__(
        self,
        device: CPUDevice,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        isa: str | None = None,
        max_queued: int | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        if n_threads is not None:
            n_threads = integer(n_threads, "n_threads", "CPUDevice.backend")
            if not 1 <= n_threads <= 512:
                raise InvalidArgument(
                    f"[CPUDevice.backend] n_threads={n_threads} is not within 1..512"
                )
        workers = default_pool() if pool is None else pool
        if n_threads is not None and pool is None:
            workers.grow(n_threads, widen=False)  # more threads than cores for who asks for them
        self.cpu = cpu_mask("scalar" if use_ref else isa)
        self._use_ref = use_ref
        super().__init__(
            device,
            Stream(device.name, pool=workers, n_threads=n_threads or 0),
            max_queued=max_queued,
        )

    @property
    def use_ref(self) -> bool:
        """Whether only the exact scalar kernels are used."""
        return self._use_ref

    @property
    def pool(self) -> ThreadPool:
        """The worker threads; other backends may share them."""
        return self.stream.pool

    @property
    def n_threads(self) -> int:
        """The most threads that one graph uses."""
        return self.stream.native.n_threads or self.stream.pool.width

    @n_threads.setter
    def n_threads(self, n: int) -> None:
        if integer(n, "n_threads", "CPUBackend.n_threads") not in range(1, 513):
            raise InvalidArgument(f"[CPUBackend.n_threads] {n} is not within 1..512")
        self.stream.pool.grow(n, widen=False)
        self.stream.native.n_threads = n

    def _sibling(self) -> CPUBackend:
        assert isinstance(self.device, CPUDevice)
        other = CPUBackend(self.device, use_ref=self.use_ref, pool=self.pool)
        other.stream.native.n_threads = self.stream.native.n_threads
        other.cpu = self.cpu
        return other

    def _direct(self, plan: Plan) -> bool:
        return True

    def _repeats(self) -> object:
        return True

    def _set(self, tensor: Tensor, array: Array) -> Future[None]:
        return self.stream.copy(tensor, array, operation="set")

    def _get(self, tensor: Tensor, array: Array) -> Future[None]:
        return self.stream.copy(array, tensor, operation="get")

    def _set_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        return self.stream.copy_bytes(tensor, data, offset, to_tensor=True, operation="set")

    def _get_bytes(self, tensor: Tensor, data: Array, offset: int) -> Future[None]:
        return self.stream.copy_bytes(tensor, data, offset, to_tensor=False, operation="get")

    def _memset(self, tensor: Tensor, value: int, offset: int, size: int) -> Future[None]:
        return self.stream.fill(tensor, value, offset, size)

    def _copy(self, src: Tensor, dst: Tensor) -> Future[None]:
        return self.stream.copy(dst, src)

    def _clear(self, buffer: Buffer, value: int) -> Future[None]:
        return self.stream.clear(buffer, value)

    def _compile(self, graph: Graph, memory: GraphBuffer) -> Steps[Plan]:
        return compiling(graph, memory.locate, memory.scratch_size, self.cpu, pack=True)

    def _compute(self, plan: Plan, arena: Buffer | None) -> Future[None]:
        return self.stream.run_plan(plan, arena)


class CPUDevice(Device):
    """The processor of this machine; any number of backends."""

    name = "CPU"
    type = DeviceType.CPU
    caps = DeviceCaps(async_=True, host_buffer=False, buffer_from_host=True, events=True, mmap=True)

    def __init__(self) -> None:
        self.description = _model_name()
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
    def packed_bytes(self) -> int:
        """Bytes of packed copies of weights, which kernels of few columns multiply."""
        return _native.packed_bytes()

    @property
    def packed_limit(self) -> int:
        """Up to how many `packed_bytes` plans may make; at first half of the physical memory.

        Beyond it weights are multiplied as they lie. Setting it changes no plan that exists.
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
        """All host memory, whoever's it is."""
        return buffer_type.is_host

    def buffer_from_host(self, memory: object, *, max_tensor_size: int | None = None) -> Buffer:
        """Wrap bytes, an array, a memory map, ... without copying; read-only serves for weights.

        What speaks DLPack but has no buffer protocol will do, too. `Buffer.place` checks that each
        tensor lies at a multiple of its `DType.alignment`.

        Raises:
            InvalidHandle: not a contiguous buffer object.
            Misaligned: it does not begin at a whole element; where its elements are plain bytes, at
                a multiple of 2. `aggml.empty` gives memory that suits every device.
        """
        try:
            if not isinstance(memory, np.ndarray) and hasattr(memory, "__dlpack__"):
                memory = np.from_dlpack(cast("Any", memory)).reshape(-1)
            kind = memory.dtype if isinstance(memory, np.ndarray) else np.dtype(np.uint8)
            flat = (
                np.empty(0, np.uint8)
                if getattr(memory, "nbytes", None) == 0  # frombuffer takes none of no bytes
                else np.frombuffer(memory, np.uint8)  # type: ignore[call-overload]
            )
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise InvalidHandle(
                f"[CPUDevice.buffer_from_host] {type(memory).__name__} is no contiguous buffer: "
                f"{error}"
            ) from error
        address = flat.__array_interface__["data"][0]
        # What lies in plain bytes is not known yet, but next to nothing may lie at an odd address.
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
        buffer.exclusive = not buffer.writable  # who gave it may write it at any time
        buffer.backing = _backing(flat)
        return buffer


def _backing(memory: object) -> Backing:
    """Whether the bytes of an array may be a file's: all may but those that numpy or Python own."""
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


class CPUFamily(Family):
    """The family of the one CPU device (ggml_backend_cpu_reg)."""

    name = "CPU"
    api_version = 1
    description = "native kernels on worker threads"

    def __init__(self) -> None:
        self._device = CPUDevice()

    @property
    def devices(self) -> Sequence[Device]:
        """Exactly one."""
        return (self._device,)

    def features(self) -> Mapping[str, str]:
        """Instruction sets that are compiled in and usable here, under ggml's names."""
        return feature_list()

    def extension(self, name: str) -> Callable[..., Any] | None:
        """Those of ggml that have a counterpart beyond the interfaces."""
        return _EXTENSIONS.get(name)


def _set_n_threads(backend: CPUBackend, n: int) -> None:
    backend.n_threads = n


_EXTENSIONS: dict[str, Callable[..., Any]] = {
    "ggml_backend_set_n_threads": _set_n_threads,
    "ggml_backend_get_features": feature_list,
    "ggml_backend_dev_get_extra_bufts": lambda _device: [],
    "ggml_threadpool_new": ThreadPool.from_params,
    "ggml_threadpool_free": ThreadPool.close,
}
_family = CPUFamily()


def aggml_backend_init() -> Family:
    """The family, for the registry."""
    return _family
