"""A tensor's bytes as an array of numpy or of another library that reads DLPack, without copying.

Here: tensors in host memory shown to others. Not here: memory of others shown to tensors
(aggml/dlpack.py), transfers in order (backend/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aggml.dtype import DType
from aggml.errors import InvalidArgument, NotAllocated, Unsupported

if TYPE_CHECKING:
    from aggml.tensor.layout import Extents
    from aggml.tensor.placement import Placement

__all__ = ["CPU_DLPACK", "Exportable", "array_over", "dlpack_of", "host_view"]

Array = np.ndarray[Any, Any]
CPU_DLPACK = (1, 0)  # kDLCPU, device 0


class Exportable(Protocol):
    """What is known here of a tensor: its layout, and where its storage lies."""

    @property
    def dtype(self) -> DType:
        """Its element type."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in the order of numpy."""
        ...

    @property
    def ndim(self) -> int:
        """The rank that was built."""
        ...

    @property
    def nb(self) -> Extents:
        """Strides in bytes, innermost first."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the end of the last element."""
        ...

    @property
    def nelements(self) -> int:
        """Number of elements."""
        ...

    @property
    def view_offs(self) -> int:
        """Where it begins in the storage of its root."""
        ...

    @property
    def root(self) -> Exportable:
        """The tensor that has the storage."""
        ...

    @property
    def placement(self) -> Placement | None:
        """Where it lies, if it is a root."""
        ...


def host_view(tensor: Exportable, what: str) -> Array:
    """See `Tensor.host_view`."""
    placement = tensor.root.placement
    if placement is None:
        raise NotAllocated(f"[{what}] {tensor!r} has no memory: call Backend.alloc first")
    buffer = placement.buffer
    if not buffer.is_host:
        raise Unsupported(f"[{what}] {tensor!r} lies in {buffer!r}, which the host cannot read")
    if not placement.readable:
        raise NotAllocated(
            f"[{what}] {tensor!r} shares its memory with other nodes, which overwrite it; "
            "flag it with set_output() to read it"
        )
    if not tensor.nelements:
        return array_over(tensor, np.empty(0, np.uint8), 0)
    try:
        flat = np.frombuffer(buffer.owner.memory, np.uint8)  # type: ignore[call-overload]
    except (TypeError, ValueError, BufferError) as error:
        raise Unsupported(f"[{what}] the memory of {buffer!r} cannot be shown: {error}") from error
    start = placement.address + tensor.view_offs - flat.__array_interface__["data"][0]
    if start < 0 or start + tensor.nbytes > flat.nbytes:
        raise Unsupported(f"[{what}] {tensor!r} lies outside the memory of the owner of {buffer!r}")
    if flat.flags.writeable:
        placement.exported = True
    return array_over(tensor, flat, start)


def array_over(tensor: Exportable, flat: Array, start: int) -> Array:
    """``tensor`` as an array over bytes that begin with its first element at ``flat[start]``.

    The array has the shape `Tensor.shape` and the strides of the tensor; quantized types are bytes.
    """
    dtype = tensor.dtype
    element: np.dtype[Any] = np.dtype(np.uint8) if dtype.numpy is None else dtype.numpy
    shape = tensor.shape
    strides = tensor.nb[tensor.ndim - 1 :: -1]
    if dtype.is_quantized:
        shape, strides = (*shape[:-1], dtype.row_size(shape[-1])), (*strides[:-1], 1)
    if not tensor.nelements:
        return np.empty(shape, element)
    return np.ndarray(shape, element, flat, start, strides)


def dlpack_of(tensor: Exportable, what: str, **options: Any) -> Any:  # noqa: ANN401 - a capsule
    """See `Tensor.__dlpack__`."""
    if tensor.dtype is DType.BF16:
        raise Unsupported(
            f"[{what}] {tensor!r}: numpy's DLPack knows no bfloat16; host_view() shows it, "
            "and its .view(numpy.uint16) can be passed through DLPack"
        )
    view = host_view(tensor, what)
    if not view.flags.writeable:
        raise InvalidArgument(f"[{what}] {tensor!r} is read-only, which DLPack cannot promise")
    try:
        return view.__dlpack__(**options)
    except (BufferError, ValueError) as error:  # numpy 2.3 and before tells devices by ValueError
        raise Unsupported(f"[{what}] {tensor!r}: {error}") from error
