"""Memory of CUDA devices: device memory from the device's pool, and pinned host memory.

Here: buffer types, when each buffer is freed, registering host memory. Not here: the thread that
calls the driver while the event loop runs (memory/buffer_type.py), the pool (native/cuda/device.c),
scratch of plans (native/cuda/queue.c), copies (backend.py).
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.errors import InvalidHandle
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import BufferType, HostBufferType
from aggml.stream.failures import exception_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.backend.backend import Device
    from aggml.memory.buffer_type import Aside
    from aggml.native import _native
    from aggml.tensor import Tensor

__all__ = ["CUDABufferType", "PinnedBufferType", "register_memory"]

#: Kernels of quantized types may read whole groups of this many elements; ggml pads rows likewise.
_ROW = 512


class CUDABufferType(BufferType):
    """Memory of one device, which the host does not reach (ggml_backend_cuda_buffer_type)."""

    alignment = 128

    def __init__(self, device: Device, native: _native.CudaDevice, aside: Aside) -> None:
        self.name: str = device.name
        self.device = device
        self.native = native
        self.aside = aside

    def alloc_size(self, tensor: Tensor) -> int:
        """``nbytes``; for quantized types plus what pads the last row to a multiple of 512."""
        rest = tensor.ne[0] % _ROW if tensor.dtype.is_quantized else 0
        return tensor.nbytes + (tensor.dtype.row_size(_ROW - rest) if rest else 0)

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes, from the pool if that has enough.

        Raises:
            AllocFailed: the device has too little memory left.
            DeviceError: the device is lost.
        """
        n = self.checked_size(size)
        if n == 0:
            return Buffer(self, 0, 0, None)
        lost = self.native.lost
        if lost is not None:
            raise exception_of(lost)
        address, error = self.native.alloc(n)
        if error is not None:
            raise exception_of(error)
        buffer = Buffer(self, n, address, None)
        # No queued work uses the memory any more: queued work refers to the buffer.
        weakref.finalize(buffer, self.native.free, address).atexit = False
        return buffer


class PinnedBufferType(HostBufferType):
    """Host memory that the device copies from and to without staging (ggml's CUDA_Host).

    If the system cannot pin any more memory, a buffer is plain host memory.
    """

    def __init__(self, device: Device, native: _native.CudaDevice, aside: Aside) -> None:
        super().__init__("CUDA_Host", device)
        self.native = native
        self.aside = aside

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes. Slow (milliseconds): allocate once, in a thread.

        Raises:
            AllocFailed: no memory at all.
        """
        n = self.checked_size(size)
        address, error = self.native.alloc_host(n) if n else (0, None)
        address = 0 if error is not None else address
        return self.adopt(n, address, self.native.free_host, address)


@contextmanager
def register_memory(native: _native.CudaDevice, memory: object, name: str) -> Iterator[None]:
    """Register host memory with the driver, for direct access, while the block lasts.

    Raises:
        InvalidHandle: no contiguous buffer object.
        DeviceError, AllocFailed: the system cannot pin it.
    """
    try:
        flat: np.ndarray[Any, Any] = np.frombuffer(memory, np.uint8)  # type: ignore[call-overload]
    except (TypeError, ValueError, BufferError) as problem:
        raise InvalidHandle(
            f"[{name}.register_host] {type(memory).__name__} is no contiguous buffer: {problem}"
        ) from problem
    address = flat.ctypes.data
    error = native.register_host(address, flat.nbytes, not flat.flags.writeable)
    if error is not None:
        raise exception_of(error)
    try:
        yield
    finally:
        native.unregister_host(address)
