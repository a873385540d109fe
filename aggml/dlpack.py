"""from_dlpack: arrays of other libraries as tensors, without copying.

Not here: tensors as arrays of other libraries (tensor/dlpack.py); copies in stream order
(`Backend.set`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from aggml.dtype import DType
from aggml.errors import InvalidArgument, InvalidHandle, LayoutMismatch, Unsupported
from aggml.registry import get_device
from aggml.tensor import MAX_DIMS, new_tensor
from aggml.tensor.spans import bits_of

if TYPE_CHECKING:
    from aggml.backend.backend import Device
    from aggml.tensor import Tensor

__all__ = ["from_dlpack"]

_CPU = 1  # kDLCPU


def from_dlpack(x: object, *, name: str = "", device: Device | None = None) -> Tensor:
    """A leaf that lies in the memory of ``x``, which it keeps alive; nothing is copied.

    Args:
        x: an object that supports DLPack (numpy, PyTorch, JAX, ...): contiguous, in host memory, at
            most 4 axes. If it is read-only, so is the tensor. It may begin at any whole element;
            arrays of `aggml.empty` suit devices that need more alignment.
        name: of the tensor.
        device: the device that will use it; the CPU if not given.

    Returns:
        A placed tensor; its ``shape`` is that of ``x`` after leading 1s are dropped.

    Raises:
        InvalidHandle: ``x`` does not support DLPack.
        Unsupported: not host memory; an element type that has no counterpart.
        LayoutMismatch: not contiguous, or more than 4 axes.
        Misaligned: it begins in the middle of an element (a view of bytes), or at an address that
            the device cannot use: copy it to an array of `aggml.empty`, or use `Backend.set`.
    """
    what = "from_dlpack"
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        raise InvalidHandle(f"[{what}] {type(x).__name__} has no __dlpack__ and __dlpack_device__")
    where = cast("Any", x).__dlpack_device__()
    if where[0] != _CPU:
        raise Unsupported(f"[{what}] the array lies on DLPack device {tuple(where)}, not the host")
    try:
        # A numpy array is used directly: it may be bfloat16, which numpy's DLPack does not support.
        array = x if isinstance(x, np.ndarray) else np.from_dlpack(cast("Any", x))
        dtype = DType.parse(array.dtype)
    except (RuntimeError, BufferError, TypeError, InvalidArgument) as error:
        raise Unsupported(f"[{what}] {type(x).__name__}: {error}") from error
    if array.ndim > MAX_DIMS or not array.flags.c_contiguous:
        raise LayoutMismatch(
            f"[{what}] shape {array.shape} with strides {array.strides}: needed is a contiguous "
            f"array of at most {MAX_DIMS} axes"
        )
    tensor = new_tensor(dtype, tuple(reversed(array.shape)) or (1,), name)
    owner = get_device("CPU") if device is None else device
    flat = bits_of(array.reshape(-1)) if array.size else np.empty(0, np.uint8)
    owner.buffer_from_host(flat).place(tensor, 0)
    return tensor
