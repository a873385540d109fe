"""Buffers: who owns which bytes, with what alignment, host or not.

Here: BufferType and Buffer as a device implements them. Not here: where a tensor lies in one
(tensor/placement.py), several buffers as one (multi_buffer.py), transfers (backend/), lifetimes of
tensors inside a graph (allocator/).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING, Self

from aggml.errors import (
    AggmlError,
    AllocFailed,
    AlreadyAllocated,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    Misaligned,
    OutOfBounds,
)
from aggml.memory.shortage import amount, shortage
from aggml.native import _native
from aggml.process.alive import note
from aggml.stream.observe import born, watchers
from aggml.stream.slices import Away, finish
from aggml.tensor import ReadOnly, change
from aggml.tensor.checking import integer
from aggml.tensor.placement import Backing, BufferUsage, Placement, PlacementEpoch

if TYPE_CHECKING:
    from aggml.backend.device import Device
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = [
    "Buffer",
    "BufferType",
    "HostBufferType",
    "aligned",
    "host_tensor",
    "lying",
]


_put = object.__setattr__
_OF_BUFFER = frozenset({"base", "memory", "size"})


class BufferType(ABC):
    """A kind of memory of a device; compared by identity.

    Attributes:
        name: for messages.
        device: whose memory it is; None for host memory that belongs to no device.
        alignment: of tensors in it, in bytes; a power of two.
    """

    name: str = ""
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

    def alignment_of(self, tensor: Tensor) -> int:
        """What the address of this tensor has to be a multiple of; ``alignment`` or less."""
        return self.alignment

    @abstractmethod
    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes; 0 is legal.

        Raises:
            AllocFailed: no memory.
        """

    async def provide(self, size: int) -> Buffer:
        """`alloc_buffer`, off the loop where a driver may take milliseconds over it.

        Cancellation: abandons the wait; the memory is given back.
        """
        return self.alloc_buffer(size)

    def taking(self, size: int) -> Steps[Buffer]:
        """Either of the two, as the steps are driven."""
        request = _Request(self, size)
        yield request
        return request.outcome()

    def tensors_size(self, tensors: Iterable[Tensor]) -> int:
        """Bytes that `alloc_tensors` would take for all of them, padding included.

        Raises:
            As `alloc_tensors`, but for memory.
        """
        return sum(sum(sizes) for _, sizes in _ranges(self, _unplaced(tensors)))

    def alloc_tensors(self, tensors: Iterable[Tensor]) -> Buffer:
        """Memory for all given tensors, in order; all or nothing.

        Args:
            tensors: without memory, none a view; views lie where their storage lies. One that is
                given twice counts once.

        Returns:
            One buffer; a `MultiBuffer` where they take more than ``max_size``, filled in order, a
            tensor that is larger alone in its part. Nothing to do (no tensor, or none with bytes)
            gives an empty buffer: its size is 0.

        Raises:
            AlreadyAllocated, InvalidArgument, InvalidHandle: a tensor has memory, is a view, or is
                no tensor.
            AllocFailed: no memory.
        """
        return finish(self.allocating(tensors))

    def allocating(self, tensors: Iterable[Tensor]) -> Steps[Buffer]:
        """`alloc_tensors` in steps."""
        from aggml.memory.multi_buffer import MultiBuffer  # which is a Buffer

        made: list[Buffer] = []
        placed: list[tuple[Buffer, Tensor]] = []
        try:
            for group, sizes in _ranges(self, _unplaced(tensors)):
                size = sum(sizes)
                try:
                    buffer = yield from self.taking(size)
                except AllocFailed as error:
                    told = shortage(error, "alloc", self.name, size, group)
                    raise told from error.__cause__ or error
                made.append(buffer)
                offset = 0
                for tensor, size in zip(group, sizes, strict=True):
                    buffer.place(tensor, offset)
                    placed.append((buffer, tensor))
                    offset += size
        except BaseException:
            for buffer, tensor in placed:
                buffer.unplace(tensor)
            raise
        return made[0] if len(made) == 1 else MultiBuffer(made)

    def __repr__(self) -> str:
        return f"<BufferType {self.name}>"


class _Request(Away):
    """A buffer that a step waits for."""

    def __init__(self, kind: BufferType, size: int) -> None:
        self._kind = kind
        self._size = size
        self._made: Buffer | AggmlError | None = None

    def now(self) -> None:
        try:
            self._made = self._kind.alloc_buffer(self._size)
        except AggmlError as error:
            self._made = error

    async def later(self) -> None:
        try:
            self._made = await self._kind.provide(self._size)
        except AggmlError as error:
            self._made = error

    def outcome(self) -> Buffer:
        """The buffer, once it was asked for.

        Raises:
            What `BufferType.alloc_buffer` did.
        """
        if isinstance(self._made, AggmlError):
            raise self._made
        assert self._made is not None
        return self._made


_EVERY: weakref.WeakSet[Buffer] = weakref.WeakSet()


def lying(start: int, end: int) -> list[tuple[Tensor, int]]:
    """The placed tensors that have some of these addresses, with those of their first bytes.

    Looks at all buffers there are: for messages.
    """
    return sorted(
        (
            (tensor, tensor.placement.address)
            for buffer in list(_EVERY)
            if buffer.base < end and start < buffer.base + buffer.size
            for tensor in buffer.tensors
            if tensor.placement is not None
            and tensor.placement.address < end
            and start < tensor.placement.address + tensor.nbytes
        ),
        key=lambda found: found[1],
    )


class Buffer:
    """A block of memory of one type; freed once nobody refers to it, queued work included.

    Devices may subclass it for the hooks `init_tensor`, `free_tensor` and `reset`.

    Attributes:
        size: bytes; 0 is legal, then ``base`` is 0.
        base: address of byte 0 as the device sees it.
        memory: the object that owns the bytes (the buffer protocol for host memory).
        writable: False for a mapping that was opened for reading; writes are refused at the call.
        exclusive: False if weights may change without a write to their tensor: the memory is a
            caller's array, or tensors overlap.
        backing: whether the memory may be a mapped file, which a thread that serves a loop must
            not read while it is on the disk.

    Raises:
        InvalidHandle: ``type`` is no buffer type.
        InvalidArgument: a negative size.
    """

    size: int = 0
    base: int = 0
    memory: object = None
    writable: bool = True
    exclusive: bool = True
    backing: Backing = Backing.MEMORY

    def __init__(
        self,
        type: BufferType,  # noqa: A002 - named as the attribute
        size: int,
        base: int,
        memory: object,
        *,
        writable: bool = True,
    ) -> None:
        if not isinstance(type, BufferType):
            raise InvalidHandle(f"[Buffer] {type!r} is no buffer type")
        if size < 0:
            raise InvalidArgument(f"[Buffer] size={size} is negative")
        self._type = type
        self.size = size
        self.base = base
        self.memory = memory
        self.writable = writable
        self.exclusive = True
        self._usage = BufferUsage.ANY
        self._tensors: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self._closed = False
        # A class that has another owner shows memory that is another buffer's.
        if watchers and size and self.__class__.owner is Buffer.owner:
            born(base, base + size, self)
        if type.device is not None:
            note(type.device, self)
        _EVERY.add(self)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _OF_BUFFER and name in self.__dict__:  # what lies here was given its address
            raise ReadOnly(f"[Buffer.{name}] {self!r} cannot be changed")
        _put(self, name, value)

    @property
    def type(self) -> BufferType:
        """Its BufferType."""
        return self._type

    @property
    def name(self) -> str:
        """That of its type."""
        return self._type.name

    @property
    def alignment(self) -> int:
        """That of its type."""
        return self._type.alignment

    @property
    def max_size(self) -> int:
        """That of its type, not the size of this buffer."""
        return self._type.max_size

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that the tensor takes in here: `BufferType.alloc_size`."""
        return self._type.alloc_size(tensor)

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
        self._usage = _usage(usage)
        if self._usage is BufferUsage.WEIGHTS:
            if self._overlapping():
                self.exclusive = False
            if isinstance(self.memory, _native.Memory) and _native.banks() > 1:
                for tensor in self._lying():  # rows lie next to the cores that will read them
                    _native.place(self.base + _offset(tensor), tensor.nbytes)
        PlacementEpoch.value += 1  # plans may now treat these tensors as weights, or no longer

    @property
    def closed(self) -> bool:
        """Whether it was closed: nothing can be placed in it any more."""
        return self._closed

    @property
    def tensors(self) -> list[Tensor]:
        """What lies in here now, by offset; views lie with their storage and are not listed."""
        return sorted(self._lying(), key=_offset)

    def _overlapping(self) -> bool:
        end = 0
        for tensor in self.tensors:
            start = _offset(tensor)
            if tensor.nbytes and start < end:
                return True
            end = max(end, start + tensor.nbytes)
        return False

    def _overlaps(self, tensor: Tensor) -> bool:
        start, end = _offset(tensor), _offset(tensor) + tensor.nbytes
        others = [t for t in self._lying() if t is not tensor]
        return any(_offset(t) < end and start < _offset(t) + t.nbytes for t in others)

    def _lying(self) -> list[Tensor]:
        return [t for t in self._tensors if t.placement is not None and t.placement.buffer is self]

    # -- what a device may add

    def init_tensor(self, tensor: Tensor) -> None:
        """Hook: ``tensor`` has just been placed (ggml_backend_buffer_init_tensor).

        What it raises undoes the placement.
        """

    def free_tensor(self, tensor: Tensor) -> None:
        """Hook: ``tensor`` is about to lose its place."""

    def reset(self) -> None:
        """Drop what `init_tensor` made; bytes and placements stay (ggml_backend_buffer_reset)."""

    # -- placing

    def place(self, tensor: Tensor, offset: int) -> None:
        """Let a tensor lie at ``offset`` (ggml_backend_tensor_alloc).

        Raises:
            InvalidHandle: no tensor, or an offset that is no integer.
            InvalidArgument: the tensor is a view: views lie where their storage lies.
            AlreadyAllocated: it has memory.
            Misaligned, OutOfBounds: the place does not suit it.
            InvalidState: the buffer is closed.
        """
        if self._closed:
            raise InvalidState(f"[Buffer.place] {self!r} is closed")
        if not hasattr(tensor, "placement"):
            raise InvalidHandle(f"[Buffer.place] {tensor!r} is no tensor")
        if type(offset) is not int:
            try:
                offset = index(offset)
            except TypeError:
                raise InvalidHandle(f"[Buffer.place] offset={offset!r} is no integer") from None
        if tensor.view_src is not None:
            raise InvalidArgument(
                f"[Buffer.place] {tensor!r} is a view: it lies where its storage lies"
            )
        if tensor.placement is not None:
            raise AlreadyAllocated(
                f"[Buffer.place] {tensor!r} lies in {tensor.placement.buffer!r} already"
            )
        size = self._type.alloc_size(tensor)
        if offset < 0 or size < 0 or offset + size > self.size:
            raise OutOfBounds(
                f"[Buffer.place] {tensor!r} needs {size} bytes at {offset}, "
                f"beyond the {self.size} of {self!r}"
            )
        address, needed = self.base + offset, self._type.alignment_of(tensor)
        if size and address % needed:
            raise Misaligned(
                f"[Buffer.place] offset {offset} of {self!r}: {tensor!r} would lie at "
                f"{address:#x}, no multiple of {needed}; "
                "aggml.empty(shape, dtype) makes arrays that suit every device"
            )
        change(tensor, "placement", Placement(self, offset, tensor.name, size))
        self._tensors.add(tensor)
        try:
            self.init_tensor(tensor)
        except BaseException:
            change(tensor, "placement", None)
            self._tensors.discard(tensor)
            raise
        if self._usage is BufferUsage.WEIGHTS and self.exclusive and self._overlaps(tensor):
            self.exclusive = False
            PlacementEpoch.value += 1

    def unplace(self, tensor: Tensor) -> None:
        """Undo `place`: later use of the tensor raises NotAllocated.

        Work in flight keeps the bytes.

        Raises:
            InvalidHandle: no tensor.
            InvalidArgument: it does not lie in here.
        """
        if not hasattr(tensor, "placement"):
            raise InvalidHandle(f"[Buffer.unplace] {tensor!r} is no tensor")
        placement = tensor.placement
        if placement is None or placement.buffer is not self:
            raise InvalidArgument(f"[Buffer.unplace] {tensor!r} does not lie in {self!r}")
        PlacementEpoch.value += 1
        self.free_tensor(tensor)
        change(tensor, "placement", None)
        self._tensors.discard(tensor)

    def close(self) -> None:
        """Unplace all tensors in here: later use of them raises NotAllocated.

        Work in flight keeps the bytes.
        """
        self._closed = True
        for tensor in self._lying():
            self.unplace(tensor)
        PlacementEpoch.value += 1
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


def _offset(tensor: Tensor) -> int:
    return 0 if tensor.placement is None else tensor.placement.offset


def _usage(usage: object) -> BufferUsage:
    try:
        return BufferUsage(usage)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidArgument(f"[Buffer.usage] {usage!r} is none of {list(BufferUsage)}") from None


def _unplaced(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors, each once; refuses what cannot be placed."""
    if not isinstance(tensors, Iterable):
        raise InvalidHandle(f"[alloc] {tensors!r} is no list of tensors")
    given = list(tensors)
    for tensor in given:
        if not hasattr(tensor, "placement"):
            raise InvalidHandle(f"[alloc] {tensor!r} is no tensor")
    unique = list(dict.fromkeys(given))
    for tensor in unique:
        if tensor.view_src is not None:
            raise InvalidArgument(f"[alloc] {tensor!r} is a view: allocate its storage instead")
        if tensor.placement is not None:
            raise AlreadyAllocated(
                f"[alloc] {tensor!r} lies in {tensor.placement.buffer!r} already"
            )
    return unique


def _ranges(kind: BufferType, tensors: list[Tensor]) -> list[tuple[list[Tensor], list[int]]]:
    """Tensors and their padded sizes, cut where a buffer of ``kind`` would grow beyond max_size.

    ggml_backend_alloc_ctx_tensors_from_buft cuts alike; the last range may be empty.
    """
    ranges: list[tuple[list[Tensor], list[int]]] = [([], [])]
    total = 0
    for tensor in tensors:
        size = aligned(kind.alloc_size(tensor), kind.alignment)
        if total and total + size > kind.max_size:
            ranges.append(([], []))
            total = 0
        ranges[-1][0].append(tensor)
        ranges[-1][1].append(size)
        total += size
    return ranges


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
            InvalidArgument, InvalidHandle: a negative size, or none.
        """
        if integer(size, "size", f"{self.name}.alloc_buffer") < 0:
            raise InvalidArgument(f"[{self.name}] a buffer of {size} bytes")
        try:
            memory = _native.Memory(size, 64)
        except (MemoryError, TypeError, OverflowError) as error:  # beyond what C has numbers for
            raise AllocFailed(f"[{self.name}] no memory for {amount(size)}") from error
        return Buffer(self, size, memory.address, memory)


HOST = HostBufferType("CPU")


def host_tensor(like: Tensor) -> Tensor:
    """A contiguous tensor of the same type and extents in plain host memory, to stage a copy."""
    from aggml.tensor import cut, new_tensor

    staging = new_tensor(like.dtype, like.ne[: like.ndim], name=cut(f"{like.name} (staged)"))
    HOST.alloc_tensors([staging])
    return staging
