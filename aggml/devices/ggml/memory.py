"""Memory of ggml devices: buffer types as the rest of the package knows them.

A device whose kernels read host memory has plain host memory: what ggml would allocate is the same.
Here: buffers of the others, and host memory that such a device allocates for faster transfers. Not
here: formats that a library packs weights in (packed.py), addresses (native/ggml/memory.c), copies
(backend.py).
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aggml.errors import AllocFailed, InvalidArgument
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import HOST, BufferType, HostBufferType
from aggml.ops.table import NUMBERS
from aggml.stream import Stream
from aggml.stream.failures import exception_of
from aggml.tensor.checking import integer

if TYPE_CHECKING:
    from aggml.native import _native
    from aggml.tensor import Tensor

__all__ = ["GgmlBufferType", "GgmlHostType", "Owner", "PinnedType", "checked_size", "taken"]


class Owner(Protocol):
    """What is known here of a device."""

    name: str

    @property
    def native(self) -> _native.GgmlDevice:
        """As the binding has it."""
        ...

    def question(self, tensor: Tensor) -> _native.GgmlPlan:
        """One node, as the library is asked about it."""
        ...


def checked_size(size: object, name: str) -> int:
    """A number of bytes that somebody asks for.

    Raises:
        InvalidArgument, InvalidHandle: negative, or no integer.
        AllocFailed: more than any machine has.
    """
    n = integer(size, "size", f"{name}.alloc_buffer")
    if n < 0:
        raise InvalidArgument(f"[{name}] a buffer of {n} bytes")
    if n >= 1 << 55:
        raise AllocFailed(f"[{name}] no memory for {n} bytes")
    return n


def taken(answer: tuple[Any, _native.Error | None]) -> Any:  # noqa: ANN401 - of the binding
    """What a call of the library gave, or its failure as an exception."""
    found, error = answer
    if error is not None:
        raise exception_of(error)
    return found


class GgmlHostType(HostBufferType):
    """Host memory of a device whose kernels compute there."""

    def __init__(self, device: Owner, alignment: int) -> None:
        super().__init__(device.name, device)
        self.alignment = max(alignment, HOST.alignment)


class GgmlBufferType(BufferType):
    """Memory of one device, which the host does not reach."""

    def __init__(self, device: Owner, alignment: int, max_size: int) -> None:
        self.name = device.name
        self.device = device
        self.alignment = alignment
        self._ggml = device
        self._max_size = max_size
        self._aside: Stream | None = None

    @property
    def max_size(self) -> int:
        """As the library tells it."""
        return self._max_size

    def alloc_size(self, tensor: Tensor) -> int:
        """What the library says that it takes: some ops need more than their result."""
        plain = tensor.op == "none" and not tensor.dtype.is_quantized
        if plain or tensor.op not in NUMBERS:  # a scheduler has tensors that only hold a copy
            return tensor.nbytes
        return max(tensor.nbytes, self._ggml.question(tensor).alloc_size())

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes.

        Raises:
            AllocFailed: the device has not as many left.
            DeviceError: the device is lost.
        """
        n = checked_size(size, self.name)
        if n == 0:
            return Buffer(self, 0, 0, None)
        if n > self._max_size:
            raise AllocFailed(f"[{self.name}] no memory for {n} bytes: at most {self._max_size}")
        try:
            native = taken(self._ggml.native.alloc(n))
        except AllocFailed as error:
            raise AllocFailed(f"[{self.name}] no memory for {n} bytes: {error}") from error
        return Buffer(self, n, native.base, native)

    async def provide(self, size: int) -> Buffer:
        """`alloc_buffer` on a thread of the device's: a driver or a server may take long."""
        if self._aside is None:
            self._aside = Stream(f"memory of {self.name}")
        buffer: Buffer = await self._aside.call(self.alloc_buffer, size, operation="alloc")
        return buffer


class PinnedType(HostBufferType):
    """Host memory that transfers of a device take as it is ("Vulkan_Host")."""

    def __init__(self, device: Owner) -> None:
        super().__init__(f"{device.name}_Host", device)
        self._ggml = device

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes; plain host memory where the device has no more.

        Raises:
            AllocFailed: no memory at all.
        """
        n = checked_size(size, self.name)
        native, error = self._ggml.native.alloc(n, True) if n else (None, None)
        if native is None or error is not None:
            plain = HOST.alloc_buffer(n)
            return Buffer(self, n, plain.base, plain.memory)
        block = (ctypes.c_uint8 * n).from_address(native.base)
        array = np.ctypeslib.as_array(block)
        ctypes.memset(native.base, 0, n)  # as all host memory here: the same in every run
        weakref.finalize(block, _let_go, native).atexit = False
        return Buffer(self, n, native.base, array)


def _let_go(native: object) -> None:
    """Nothing: the reference goes with the call."""
