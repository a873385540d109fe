"""Memory of CUDA devices: of the device itself, from its pool, and pinned host memory.

Here: buffer types, the thread that asks the driver while a loop goes on, who frees what and when;
registration of host memory. Not here: the pool (native/cuda/device.c), scratch of plans
(native/cuda/queue.c), copies (backend.py).
"""

from __future__ import annotations

import ctypes
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.errors import AllocFailed, InvalidArgument, InvalidHandle
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import HOST, BufferType, HostBufferType
from aggml.stream import Stream
from aggml.stream.failures import exception_of
from aggml.tensor.checking import integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aggml.backend.backend import Device
    from aggml.native import _native
    from aggml.stream.future import Future
    from aggml.tensor import Tensor

__all__ = ["Aside", "CUDABufferType", "PinnedBufferType", "registered"]

#: Kernels of quantized types may read whole runs of this many elements: ggml pads rows alike.
_ROW = 512


def _size(size: object, name: str) -> int:
    n = integer(size, "size", f"{name}.alloc_buffer")
    if n < 0:
        raise InvalidArgument(f"[{name}] a buffer of {n} bytes")
    if n >= 1 << 62:
        raise AllocFailed(f"[{name}] no memory for {n} bytes")
    return n


class Aside:
    """Calls of a device that may take long, one after the other, and after no queued work.

    Their thread is in the driver nearly all of the time, without the GIL; it is started by the
    first call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._stream: Stream | None = None

    def call(self, function: Callable[..., Any], *args: object) -> Future[Any]:
        """A Future of ``function(*args)``."""
        if self._stream is None:
            self._stream = Stream(f"memory of {self._name}")
        return self._stream.call(function, *args, operation="alloc")


class CUDABufferType(BufferType):
    """Memory of one device, which the host does not reach (ggml_backend_cuda_buffer_type)."""

    alignment = 128

    def __init__(self, device: Device, native: _native.CudaDevice, aside: Aside) -> None:
        self.name = device.name
        self.device = device
        self.native = native
        self._aside = aside

    def alloc_size(self, tensor: Tensor) -> int:
        """``nbytes``, and for quantized rows what fills the last one up to 512 elements."""
        rest = tensor.ne[0] % _ROW if tensor.dtype.is_quantized else 0
        return tensor.nbytes + (tensor.dtype.row_size(_ROW - rest) if rest else 0)

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes, out of the pool if that holds enough.

        Raises:
            AllocFailed: the device has not as many left.
            DeviceError: the device is lost.
        """
        n = _size(size, self.name)
        if n == 0:
            return Buffer(self, 0, 0, None)
        lost = self.native.lost
        if lost is not None:
            raise exception_of(lost)
        address, error = self.native.alloc(n)
        if error is not None:
            raise exception_of(error)
        buffer = Buffer(self, n, address, None)
        # Nothing that is queued uses it any more: what is, refers to the buffer.
        weakref.finalize(buffer, self.native.free, address).atexit = False
        return buffer

    async def provide(self, size: int) -> Buffer:
        """`alloc_buffer` on a thread of the device's: mapping memory takes milliseconds."""
        buffer: Buffer = await self._aside.call(self.alloc_buffer, size)
        return buffer


class PinnedBufferType(HostBufferType):
    """Host memory that copies to and from devices take as it is (ggml's CUDA_Host).

    Where the system pins no more, it is plain host memory.
    """

    def __init__(self, device: Device, native: _native.CudaDevice, aside: Aside) -> None:
        super().__init__("CUDA_Host", device)
        self.native = native
        self._aside = aside

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes. Slow (milliseconds): allocate once, in a thread.

        Raises:
            AllocFailed: no memory at all.
        """
        n = _size(size, self.name)
        address, error = self.native.alloc_host(n) if n else (0, None)
        if not address or error is not None:
            plain = HOST.alloc_buffer(n)
            return Buffer(self, n, plain.base, plain.memory)
        block = (ctypes.c_uint8 * n).from_address(address)
        array = np.ctypeslib.as_array(block)
        # As all host memory here: the same in every run. NumPy would keep the GIL.
        ctypes.memset(address, 0, n)
        weakref.finalize(block, self.native.free_host, address).atexit = False
        return Buffer(self, n, address, array)

    async def provide(self, size: int) -> Buffer:
        """`alloc_buffer` on a thread of the device's: pinning takes milliseconds."""
        buffer: Buffer = await self._aside.call(self.alloc_buffer, size)
        return buffer


@contextmanager
def registered(native: _native.CudaDevice, memory: object, name: str) -> Iterator[None]:
    """Have the driver reach host memory directly for as long as the block lasts.

    Raises:
        InvalidHandle: no contiguous buffer object.
        DeviceError, AllocFailed: the system does not pin it.
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
