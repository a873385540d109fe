"""Memory of the device: arrays of bytes that nobody else may touch.

Here: a type of memory, and tensors seen as arrays. Not here: transfers (backend.py).
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
    """Private memory of one device; the CPU's kernels are kept out, as ``is_host`` is False."""

    alignment = 64

    def __init__(self, device: NumpyDevice, size: int) -> None:
        self.name = device.name
        self.device = device
        self.size = size
        self.used = 0
        self._lock = threading.Lock()

    @property
    def max_size(self) -> int:
        """All that there is."""
        return self.size

    def alloc_buffer(self, size: int) -> aggml.Buffer:
        """A new buffer; its bytes go when nobody refers to it, queued work included."""
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
    """A tensor as an array over the bytes that hold it: its axes in numpy order, its strides."""
    return np.ndarray(
        tensor.ne[::-1], tensor.dtype.numpy, cast("Array", block), offset, tensor.nb[::-1]
    )
