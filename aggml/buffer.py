"""Buffers: who owns which bytes, with what alignment, host or not; and where a tensor lies in one.

Here: BufferType and Buffer as a device implements them, Placement. Not here: transfers
(backend.py), lifetimes of tensors inside a graph (allocator/).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Self

from aggml.errors import (
    AlreadyAllocated,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    Misaligned,
    OutOfBounds,
)
from aggml.live import note
from aggml.native import _native

if TYPE_CHECKING:
    from aggml.device import Device
    from aggml.tensor import Tensor

__all__ = [
    "Buffer",
    "BufferType",
    "BufferUsage",
    "HostBufferType",
    "Placement",
    "PlacementEpoch",
    "aligned",
    "alloc_tensors",
    "host_tensor",
]


class BufferUsage(IntEnum):
    """What a buffer holds; guides placement and packing of weights (ggml_backend_buffer_usage)."""

    ANY = 0
    WEIGHTS = 1
    COMPUTE = 2


class PlacementEpoch:
    """Moves whenever a placement may have become invalid; plans look at it before anything else."""

    value = 0


class Placement:
    """Where a tensor that is no view lies.

    Made by ``Buffer.place``; the tensor keeps it, and so the buffer.

    Attributes:
        buffer: the Buffer.
        offset: bytes from its base.
        address: address of byte 0 as the device's kernels see it.
        storage: the native record that failures poison.
        readable: whether what lies there outlives one plan.
    """

    __slots__ = ("address", "buffer", "offset", "readable", "storage")

    def __init__(self, buffer: Buffer, offset: int, name: str) -> None:
        self.buffer = buffer
        self.offset = offset
        self.address = buffer.base + offset
        self.storage = _native.Storage(name)
        self.readable = True


class BufferType(ABC):
    """A kind of memory of a device; compared by identity.

    Attributes:
        name: for messages.
        device: whose memory it is; None for host memory that belongs to no device.
        alignment: of tensors in it, in bytes; a power of two.
    """

    name: str
    device: Device | None = None
    alignment: int = 32

    @property
    def max_size(self) -> int:
        """Bytes of the largest single buffer."""
        return (1 << 63) - 1

    @property
    def is_host(self) -> bool:
        """Whether the CPU may read and write the bytes in the standard layout."""
        return False

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes to reserve for a tensor: ``nbytes`` or more (ggml_backend_buft_get_alloc_size)."""
        return tensor.nbytes

    @abstractmethod
    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes; 0 is legal.

        Raises:
            AllocFailed: no memory.
        """

    def __repr__(self) -> str:
        return f"<BufferType {self.name}>"


class Buffer:
    """A block of memory of one type; freed once nobody refers to it, queued work included.

    Attributes:
        type: its BufferType.
        size: bytes; 0 is legal, then ``base`` is 0.
        base: address of byte 0 as the device sees it.
        memory: the object that owns the bytes (the buffer protocol for host memory).
        writable: False for a mapping that was opened for reading; writes are refused at the call.
    """

    def __init__(
        self,
        type: BufferType,  # noqa: A002 - named as the attribute
        size: int,
        base: int,
        memory: object,
        *,
        writable: bool = True,
    ) -> None:
        self.type = type
        self.size = size
        self.base = base
        self.memory = memory
        self.writable = writable
        self._usage = BufferUsage.ANY
        self._tensors: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self._closed = False
        if type.device is not None:
            note(type.device, self)

    @property
    def name(self) -> str:
        """That of its type."""
        return self.type.name

    @property
    def owner(self) -> Buffer:
        """The buffer whose end frees the bytes; it refers to no tensor, so native objects keep it.

        They take no part in the search for cycles: one that kept a tensor or a graph alive, and
        was kept by it, would never go.
        """
        return self

    @property
    def is_host(self) -> bool:
        """Whether the CPU may read and write the bytes in the standard layout."""
        return self.type.is_host

    @property
    def usage(self) -> BufferUsage:
        """What the buffer holds, as told; setting it makes plans look anew at what lies here."""
        return self._usage

    @usage.setter
    def usage(self, usage: BufferUsage) -> None:
        self._usage = BufferUsage(usage)
        PlacementEpoch.value += 1  # plans may now treat these tensors as weights, or no longer

    @property
    def closed(self) -> bool:
        """Whether it was closed: nothing can be placed in it any more."""
        return self._closed

    def place(self, tensor: Tensor, offset: int) -> None:
        """Let a tensor lie at ``offset`` (ggml_backend_tensor_alloc).

        Raises:
            InvalidArgument: the tensor is a view: views lie where their storage lies.
            AlreadyAllocated: it has memory.
            Misaligned, OutOfBounds: the place does not suit it.
            InvalidState: the buffer is closed.
        """
        if self._closed:
            raise InvalidState(f"[Buffer.place] {self!r} is closed")
        if tensor.view_src is not None:
            raise InvalidArgument(
                f"[Buffer.place] {tensor!r} is a view: it lies where its storage lies"
            )
        if tensor.placement is not None:
            raise AlreadyAllocated(
                f"[Buffer.place] {tensor!r} lies in {tensor.placement.buffer!r} already"
            )
        size = self.type.alloc_size(tensor)
        if offset < 0 or offset + size > self.size:
            raise OutOfBounds(
                f"[Buffer.place] {tensor!r} needs {size} bytes at {offset}, "
                f"beyond the {self.size} of {self!r}"
            )
        if size and (self.base + offset) % self.type.alignment:
            raise Misaligned(
                f"[Buffer.place] offset {offset} of {self!r} "
                f"is no multiple of {self.type.alignment}"
            )
        tensor.placement = Placement(self, offset, tensor.name)
        self._tensors.add(tensor)

    def close(self) -> None:
        """Unplace all tensors in here: later use of them raises NotAllocated.

        Work in flight keeps the bytes.
        """
        self._closed = True
        PlacementEpoch.value += 1
        for tensor in list(self._tensors):
            if tensor.placement is not None and tensor.placement.buffer is self:
                tensor.placement = None
        self._tensors.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<Buffer {self.type.name}, {self.size} bytes, {len(self._tensors)} tensors{state}>"


def aligned(size: int, alignment: int) -> int:
    """``size`` rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


def alloc_tensors(buffer_type: BufferType, tensors: Iterable[Tensor]) -> Buffer:
    """One buffer that holds all given tensors, in order; all or nothing.

    Raises:
        AlreadyAllocated, InvalidArgument, InvalidHandle: a tensor has memory, is a view, or is no
            tensor.
        AllocFailed: no memory.
    """
    if not isinstance(tensors, Iterable):
        raise InvalidHandle(f"[alloc] {tensors!r} is no list of tensors")
    given = list(tensors)
    for tensor in given:
        if not hasattr(tensor, "placement"):
            raise InvalidHandle(f"[alloc] {tensor!r} is no tensor")
    unique = list(dict.fromkeys(given))
    offsets, offset = [], 0
    for tensor in unique:
        if tensor.view_src is not None:
            raise InvalidArgument(f"[alloc] {tensor!r} is a view: allocate its storage instead")
        if tensor.placement is not None:
            raise AlreadyAllocated(
                f"[alloc] {tensor!r} lies in {tensor.placement.buffer!r} already"
            )
        offsets.append(offset)
        offset += aligned(buffer_type.alloc_size(tensor), buffer_type.alignment)
    buffer = buffer_type.alloc_buffer(offset)
    for tensor, at in zip(unique, offsets, strict=True):
        buffer.place(tensor, at)
    return buffer


class HostBufferType(BufferType):
    """Plain host memory: what any device can copy from and to, and the CPU computes in."""

    alignment = 32

    def __init__(self, name: str, device: Device | None = None) -> None:
        self.name = name
        self.device = device

    @property
    def is_host(self) -> bool:
        """Always."""
        return True

    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes that begins at a multiple of 64.

        Raises:
            AllocFailed: no memory.
        """
        memory = _native.Memory(size, 64)
        return Buffer(self, size, memory.address, memory)


HOST = HostBufferType("CPU")


def host_tensor(like: Tensor) -> Tensor:
    """A contiguous tensor of the same type and extents in plain host memory, to stage a copy."""
    from aggml.tensor import new_tensor

    staging = new_tensor(like.dtype, like.ne, name=f"{like.name} (staged)")
    alloc_tensors(HOST, [staging])
    return staging
