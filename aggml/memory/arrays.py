"""empty: host arrays whose alignment suits every device.

Not here: arrays as tensors (aggml/dlpack.py), the memory of buffers (buffer.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeGuard

import numpy as np

from aggml.dtype import DType
from aggml.errors import AllocFailed, InvalidArgument, LayoutMismatch
from aggml.tensor.checking import integer

if TYPE_CHECKING:
    from aggml.dtype import DTypeLike

__all__ = ["ALIGNMENT", "empty"]

# The largest alignment that a device needs: CUDA's 256. Kernels read cache lines of 64 bytes,
# copies whole pages.
ALIGNMENT: Final = 256


def empty(shape: SupportsIndex | Iterable[SupportsIndex], dtype: DTypeLike) -> np.ndarray[Any, Any]:
    """Make an array of undefined content, with an alignment that suits every device.

    `from_dlpack` and `Device.buffer_from_host` take it without a copy, and transfers from and to it
    run at full speed. It is an ordinary numpy array with an ordinary lifetime.

    Args:
        shape: extents in numpy's order, in elements; an integer makes one axis.
        dtype: a DType, its name, or a numpy type; the latter may be one that ggml does not have,
            such as ``np.uint8`` for bytes.

    Returns:
        A contiguous array that begins at a multiple of 256 bytes. For quantized types it is uint8
        with the bytes of a row in the last axis; for bf16 it is ``ml_dtypes.bfloat16``.

    Raises:
        InvalidHandle: ``shape`` holds no integers, or ``dtype`` is no type.
        InvalidArgument: a negative extent; no such type.
        LayoutMismatch: the last axis cuts a block of a quantized type.
        AllocFailed: no memory.
    """
    what = "empty"
    given = shape if isinstance(shape, Iterable) and not isinstance(shape, str) else (shape,)
    extents = tuple([integer(n, "an extent of shape", what) for n in given])
    if any(n < 0 for n in extents):
        raise InvalidArgument(f"[{what}] shape={extents} has a negative extent")
    element_type: np.dtype[Any] = np.dtype(np.uint8)
    if (isinstance(dtype, np.dtype) or _is_scalar_type(dtype)) and np.dtype(dtype).kind in "biufc":
        element_type = np.dtype(dtype)
    else:
        element = DType.parse(dtype)
        if element.numpy is not None:
            element_type = element.numpy
        elif not extents or extents[-1] % element.blck_size:
            raise LayoutMismatch(
                f"[{what}] rows of {extents} are no whole number of {element.type_name} blocks "
                f"of {element.blck_size}"
            )
        else:
            extents = (*extents[:-1], element.row_size(extents[-1]))
    n = element_type.itemsize
    for extent in extents:
        n *= extent
    try:
        # Pages that are never written cost nothing, so the 256 bytes before and behind are cheap.
        room = np.empty(n + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError, OverflowError) as error:
        raise AllocFailed(
            f"[{what}] no memory for {n} bytes: {element_type} of {extents}"
        ) from error
    start = -room.__array_interface__["data"][0] % ALIGNMENT
    return room[start : start + n].view(element_type).reshape(extents)


def _is_scalar_type(dtype: object) -> TypeGuard[type[np.generic]]:
    return isinstance(dtype, type) and issubclass(dtype, np.generic)
