"""CUDADevice: one GPU: its properties, supported ops, memory; it opens backends.

Here: the device and its modules. Not here: cuda-python (driver.py), kernels (launch.py has their
interface).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aggml.backend.backend import Device
from aggml.backend.props import DeviceCaps, DeviceType
from aggml.devices.cuda.backend import CUDABackend
from aggml.devices.cuda.driver import Missing, entries
from aggml.devices.cuda.memory import CUDABufferType, PinnedBufferType, register_memory
from aggml.devices.cuda.module import Module
from aggml.errors import InvalidState
from aggml.memory.buffer_type import Aside
from aggml.native import _native
from aggml.ops import table
from aggml.stream.exit import at_exit
from aggml.stream.failures import exception_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from aggml.devices.cuda.driver import DeviceFacts
    from aggml.devices.cuda.launch import Kernels
    from aggml.memory.buffer_type import BufferType
    from aggml.tensor import Tensor

__all__ = ["CUDADevice"]

#: From this many rows on, a product is worth running here although its weights are elsewhere.
_OFFLOAD_ROWS = 32
_NO_BATCH = table.with_trait("NO_BATCH")
_BATCH_1 = table.with_trait("BATCH_1")
_BATCH_2 = table.with_trait("BATCH_2")


def _set_entries() -> None:
    names = _native.cuda_entries()
    found = entries(names)
    if not _native.cuda_set_entries(found):
        lacking = ", ".join(name for name in names if not found[name])
        raise Missing(f"[cuda] the driver is too old or incomplete, it lacks {lacking}")


def _end() -> None:
    _native.cuda_stop(5.0)  # seconds: issued work is done by then, unless the device hangs


at_exit(_end)


class CUDADevice(Device):
    """A GPU.

    Args:
        facts: the device's properties, read from the driver.
        kernels: the kernels that it runs.

    Raises:
        Missing: the driver lacks a function.
    """

    def __init__(self, facts: DeviceFacts, kernels: Kernels) -> None:
        _set_entries()
        self.name: str = f"CUDA{facts.ordinal}"
        self.description: str = facts.name
        self.type = DeviceType.IGPU if facts.integrated else DeviceType.GPU
        self.caps: DeviceCaps = DeviceCaps(host_buffer=True, mmap=not facts.integrated)
        self.device_id: str | None = facts.pci
        self.facts = facts
        self.kernels = kernels
        wanted = os.environ.get("AGGML_CUDA_REGISTER", "0") not in ("", "0")
        # Pages of a mapped file can only be registered as read-only, which not every GPU supports.
        self.registers_files: bool = wanted and facts.read_only
        self.native: _native.CudaDevice = _native.CudaDevice(facts.ordinal, self.name)
        if kernels.blas is not None:
            self.native.set_blas(kernels.blas)
        #: Runs driver calls that may take long and belong to no backend.
        self.aside: Aside = Aside(self.name)
        self._type = CUDABufferType(self, self.native, self.aside)
        self._pinned = PinnedBufferType(self, self.native, self.aside)
        self._modules: dict[str, Module] = {}
        self._pid = os.getpid()

    @property
    def buffer_type(self) -> BufferType:
        """Its own memory."""
        return self._type

    @property
    def host_buffer_type(self) -> BufferType:
        """Pinned host memory."""
        return self._pinned

    def memory(self) -> tuple[int, int]:
        """Free and total bytes; 0 and 0 if the driver does not say. May create the context."""
        if self._pid != os.getpid() or self.native.lost is not None:
            return 0, 0
        free, total, error = self.native.memory()
        return (free, total) if error is None else (0, 0)

    def backend(
        self,
        *,
        n_threads: int | None = None,
        use_ref: bool = False,
        max_queued: int | None = None,
    ) -> CUDABackend:
        """A new stream of work on this device.

        Args:
            n_threads: ignored.
            use_ref: ignored.
            max_queued: see `Backend.ready`.

        Raises:
            DeviceError: the device is lost.
            InvalidState: this process is a fork of the one that opened the device: CUDA does not
                survive a fork.
        """
        if self._pid != os.getpid():
            raise InvalidState(
                f"[CUDADevice.backend] {self.name} belongs to the parent process: CUDA cannot be "
                "used after fork, start workers with spawn"
            )
        lost = self.native.lost
        if lost is not None:
            raise exception_of(lost)
        return CUDABackend(self, self, max_queued=max_queued)

    def supports_op(self, tensor: Tensor) -> bool:
        """Whether there is a kernel for the node that reaches the memory of its sources."""
        for source in tensor.src:
            placement = None if source is None else source.root.placement
            if placement is not None:
                buffer_type = placement.buffer.type
                if isinstance(buffer_type, CUDABufferType) and buffer_type is not self._type:
                    return False
        return tensor.op in table.IDLE or self.kernels.supports(tensor)

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """True for its own memory only."""
        return buffer_type is self._type

    def offload_op(self, tensor: Tensor) -> bool:
        """Whether the node has 32 rows or more, as in ggml."""
        if tensor.op in _NO_BATCH:
            return False
        if tensor.op in _BATCH_1:
            rows = tensor.ne[1]
        elif tensor.op in _BATCH_2:
            rows = tensor.ne[2]
        else:
            rows = tensor.ne[1] * tensor.ne[2] * tensor.ne[3]
        return rows >= _OFFLOAD_ROWS

    def register_host(self, memory: object) -> AbstractContextManager[None]:
        """Pin host memory while a ``with`` block lasts. Slow: call it in a thread.

        Raises:
            InvalidHandle: no contiguous buffer object.
            DeviceError, AllocFailed: the system cannot pin it.
        """
        return register_memory(self.native, memory, self.name)

    def module(self, name: str) -> Module:
        """The module of that name; it is compiled at its first use."""
        return self._modules.setdefault(
            name, Module(self.native, self.kernels, self.facts.arch, name)
        )

    def image(self, name: str) -> bytes:
        """The cubin of a module; slow when it has to be compiled.

        Raises:
            Unsupported: it is in no cache and NVRTC is not installed.
        """
        return self.kernels.module(name, self.facts.arch)
