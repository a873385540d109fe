"""Memory of ggml devices: their buffer types for the rest of the package.

A device whose kernels read host memory uses plain host memory; ggml would allocate the same.
Here: buffers of all other devices, and the host memory that they allocate for faster transfers. Not
here: formats in which a library packs weights (packed.py), addresses (native/ggml/memory.c), copies
(backend.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aggml.errors import AllocFailed
from aggml.memory.buffer import Buffer
from aggml.memory.buffer_type import HOST, Aside, BufferType, HostBufferType
from aggml.ops.table import NUMBERS
from aggml.stream.failures import exception_of

if TYPE_CHECKING:
    from aggml.devices.ggml.target import GgmlTarget
    from aggml.native import _native
    from aggml.tensor import Tensor

__all__ = ["GgmlBufferType", "GgmlHostType", "PinnedType", "result_of"]


def result_of(answer: tuple[Any, _native.Error | None]) -> Any:  # noqa: ANN401 - of the binding
    """The result of a call of the library; a failure is raised as an exception."""
    found, error = answer
    if error is not None:
        raise exception_of(error)
    return found


class GgmlHostType(HostBufferType):
    """Host memory of a device whose kernels compute in host memory."""

    def __init__(self, device: GgmlTarget, alignment: int) -> None:
        super().__init__(device.name, device)
        self.alignment: int = max(alignment, HOST.alignment)


class GgmlBufferType(BufferType):
    """Memory of one device, which the host does not reach."""

    def __init__(self, device: GgmlTarget, alignment: int, max_size: int) -> None:
        self.name: str = device.name
        self.device = device
        self.alignment = alignment
        self._ggml = device
        self._max_size = max_size
        self.aside = Aside(device.name)

    @property
    def max_size(self) -> int:
        """Bytes of the largest single buffer, as the library reports it."""
        return self._max_size

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that the library reports for a tensor: some ops need more than their result."""
        plain = tensor.op == "none" and not tensor.dtype.is_quantized
        if plain or tensor.op not in NUMBERS:  # a scheduler has tensors that only hold a copy
            return tensor.nbytes
        return max(tensor.nbytes, self._ggml.question(tensor).alloc_size())

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes.

        Raises:
            AllocFailed: the device has too little memory left.
            DeviceError: the device is lost.
        """
        n = self.checked_size(size)
        if n == 0:
            return Buffer(self, 0, 0, None)
        if n > self._max_size:
            raise AllocFailed(f"[{self.name}] no memory for {n} bytes: at most {self._max_size}")
        try:
            native = result_of(self._ggml.native.alloc(n))
        except AllocFailed as error:
            raise AllocFailed(f"[{self.name}] no memory for {n} bytes: {error}") from error
        return Buffer(self, n, native.base, native)


class PinnedType(HostBufferType):
    """Host memory that a device transfers from and to without staging ("Vulkan_Host")."""

    def __init__(self, device: GgmlTarget) -> None:
        super().__init__(f"{device.name}_Host", device)
        self._ggml = device

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes; plain host memory if the device has none left.

        Raises:
            AllocFailed: no memory at all.
        """
        n = self.checked_size(size)
        native, error = self._ggml.native.alloc(n, True) if n else (None, None)
        address = 0 if native is None or error is not None else native.base
        return self.adopt(n, address, _let_go, native)


def _let_go(native: object) -> None:
    """Do nothing: ``native`` is released when this call returns."""
