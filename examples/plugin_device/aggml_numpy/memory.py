"""Memory of the device: arrays of bytes that no other device may use.

Here: a type of memory, and numpy arrays over tensors. Not here: transfers (backend.py).
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import aggml

if TYPE_CHECKING:
    from .device import NumpyDevice

__all__ = ["Array", "NumpyMemory", "seen"]

Array = np.ndarray[Any, Any]


class NumpyMemory(aggml.BufferType):
    """Memory of one device alone: ``is_host`` is False, so the CPU device does not use it."""

    alignment = 64

    def __init__(self, device: NumpyDevice, size: int) -> None:
        self.name = device.name
        self.device = device
        self.size = size
        self.used = 0
        self._lock = threading.Lock()

    @property
    def max_size(self) -> int:
        """All memory of the device may be one buffer."""
        return self.size

    def alloc_buffer(self, size: int) -> aggml.Buffer:
        """A new buffer. Its bytes are freed with the last reference; queued work holds one, too."""
        with self._lock:
            if self.used + size > self.size:
                raise aggml.AllocFailed(
                    f"[{self.name}] no memory for {size} bytes: {self.used} of {self.size} in use"
                )
            self.used += size
        block = np.zeros(size + self.alignment, np.uint8)
        start = -block.ctypes.data % self.alignment
        block = block[start : start + size]
        buffer = aggml.Buffer(self, size, block.ctypes.data if size else 0, block)
        weakref.finalize(buffer, self._give_back, size)
        return buffer

    def _give_back(self, size: int) -> None:
        with self._lock:
            self.used -= size


def seen(tensor: aggml.Tensor, block: object, offset: int) -> Array:
    """A tensor as a numpy array over its bytes: the axes in numpy order, with its strides."""
    return np.ndarray(
        tensor.ne[::-1], tensor.dtype.numpy, cast("Array", block), offset, tensor.nb[::-1]
    )
