"""Tensors and arrays as the native layer wants them: spans, storages, bits.

Here: a tensor's address, extents and strides as one native object, made once per placement.
Not here: what may be transferred (checking.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from aggml.errors import NotAllocated
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.tensor.tensor import Tensor

__all__ = ["bits_of", "is_whole", "span_of", "storage_of", "storages_of"]


def storage_of(tensor: Tensor) -> tuple[_native.Storage, ...]:
    """The storage a tensor lies in; none if it has no memory."""
    placement = tensor.root.placement
    return () if placement is None else (placement.storage,)


def storages_of(tensors: Sequence[Tensor]) -> tuple[_native.Storage, ...]:
    """The storages the tensors lie in, in their order; those without memory are left out."""
    return tuple([s for t in tensors for s in storage_of(t)])


def is_whole(tensor: Tensor, offset: int, size: int) -> bool:
    """Whether these bytes of the tensor's span are all bytes of its storage."""
    return tensor.view_src is None and offset == 0 and size == tensor.nbytes


def span_of(tensor: Tensor) -> _native.Span:
    """The tensor as transfers see it; kept with the tensor for as long as its placement stands.

    Items are elements, or the bytes of the rows of a quantized type.

    Raises:
        NotAllocated: the tensor has no memory.
    """
    placement = tensor.root.placement
    if placement is None:
        raise NotAllocated(f"[Stream] {tensor!r} has no memory: call Backend.alloc first")
    cached = tensor._span
    if cached is not None and cached[0] is placement:
        return cast("_native.Span", cached[1])
    if tensor.dtype.is_quantized:
        ne, nb, size = (tensor.dtype.row_size(tensor.ne[0]), *tensor.ne[1:]), (1, *tensor.nb[1:]), 1
    else:
        ne, nb, size = tensor.ne, tensor.nb, tensor.dtype.type_size
    whole = tensor.view_src is None or (
        tensor.is_contiguously_allocated and tensor.nbytes == tensor.root.nbytes
    )
    address = placement.address + tensor.view_offs
    span = _native.Span(address, ne, nb, size, whole, placement.storage, placement.buffer.owner)
    tensor._span = (placement, span)
    return span


def bits_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same bytes under a type that the buffer protocol knows (bfloat16 is not among them)."""
    return array.view(np.uint16) if array.dtype.kind == "V" and array.dtype.itemsize == 2 else array
