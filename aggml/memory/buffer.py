"""Buffer: a block of memory, and placing tensors in it.

Here: the class, which devices may subclass. Not here: kinds of memory, which make buffers
(buffer_type.py), the record of a tensor's place (tensor/placement.py), several buffers as one
(multi_buffer.py), transfers (backend/), lifetimes of tensors inside a graph (allocator/).
"""

from __future__ import annotations

import weakref
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, Self

from aggml.errors import (
    AlreadyAllocated,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    Misaligned,
    OutOfBounds,
    ReadOnly,
)
from aggml.native import _native
from aggml.process.alive import note, there
from aggml.stream.observe import notify_new_memory, observers
from aggml.tensor import change
from aggml.tensor.placement import Backing, BufferUsage, Placement, PlacementEpoch, placing

if TYPE_CHECKING:
    from aggml.process.alive import Named
    from aggml.tensor import Tensor

__all__ = ["Buffer", "TypeOfBuffer", "align_up", "find_tensors", "usage_of"]


_put = object.__setattr__
_OF_BUFFER = frozenset({"base", "memory", "size"})


class TypeOfBuffer(Protocol):
    """The part of a buffer type that a buffer uses; `aggml.BufferType` is the whole interface."""

    @property
    def name(self) -> str:
        """The name, for messages."""
        ...

    @property
    def device(self) -> Named | None:
        """The device that the memory belongs to."""
        ...

    @property
    def alignment(self) -> int:
        """Addresses of tensors in a buffer are multiples of this number of bytes."""
        ...

    @property
    def max_size(self) -> int:
        """Bytes of the largest single buffer."""
        ...

    @property
    def is_host(self) -> bool:
        """Whether the CPU may read and write the bytes."""
        ...

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes to reserve for a tensor."""
        ...

    def alignment_of(self, tensor: Tensor) -> int:
        """The address of this tensor has to be a multiple of this number of bytes."""
        ...


_EVERY: weakref.WeakSet[Buffer] = weakref.WeakSet()


def find_tensors(start: int, end: int) -> list[tuple[Tensor, int]]:
    """The placed tensors that overlap these addresses, with the addresses of their first bytes.

    It searches all existing buffers; used for messages.
    """
    return sorted(
        (
            (tensor, tensor.placement.address)
            for buffer in there(_EVERY)
            if buffer.base < end and start < buffer.base + buffer.size
            for tensor in buffer.tensors
            if tensor.placement is not None
            and tensor.placement.address < end
            and start < tensor.placement.address + tensor.nbytes
        ),
        key=lambda found: found[1],
    )


class Buffer:
    """A block of memory of one type; freed once no object and no queued work refers to it.

    Devices may subclass it to override the hooks `init_tensor`, `free_tensor` and `reset`.

    Attributes:
        size: bytes; 0 is legal, then ``base`` is 0.
        base: address of byte 0 as the device sees it.
        memory: the object that owns the bytes (the buffer protocol for host memory).
        writable: False for a mapping that was opened for reading; writes are refused at the call.
        exclusive: False if weights may change without a write to their tensor: the memory is a
            caller's array, or tensors overlap.
        backing: whether the memory may be a mapped file, which a thread that serves a loop must
            not read while it is on the disk.
        is_file: it is a private mapping of a file, and nobody writes to it but operations. Then
            pages of weights of which the CPU has a packed copy are given back to the system.

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
    is_file: bool = False

    def __init__(
        self,
        type: TypeOfBuffer,  # noqa: A002 - named as the attribute
        size: int,
        base: int,
        memory: object,
        *,
        writable: bool = True,
    ) -> None:
        if not hasattr(type, "alignment_of"):
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
        # A subclass with another owner has no memory itself: it shows that of another buffer.
        if observers and size and self.__class__.owner is Buffer.owner:
            notify_new_memory(base, base + size, self)
        if type.device is not None:
            note(type.device, self)
        _EVERY.add(self)

    def __setattr__(self, name: str, value: object) -> None:
        # Tensors that lie here have been given addresses.
        if name in _OF_BUFFER and name in self.__dict__:
            raise ReadOnly(f"[Buffer.{name}] {self!r} cannot be changed")
        _put(self, name, value)

    @property
    def type(self) -> Any:  # noqa: ANN401 - a BufferType, which knows buffers
        """Its `BufferType`."""
        return self._type

    @property
    def name(self) -> str:
        """The name of its type (ggml_backend_buffer_name)."""
        return self._type.name

    @property
    def alignment(self) -> int:
        """The alignment of its type in bytes (ggml_backend_buffer_get_alignment)."""
        return self._type.alignment

    @property
    def max_size(self) -> int:
        """The `max_size` of its type: the most bytes of any buffer, not the size of this one."""
        return self._type.max_size

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that the tensor takes in here: `BufferType.alloc_size`."""
        return self._type.alloc_size(tensor)

    @property
    def owner(self) -> Buffer:
        """The buffer whose end frees the bytes; native objects refer to this one.

        It refers to no tensor. Native objects are invisible to Python's garbage collector: a cycle
        through one of them and a tensor or graph would never be freed.
        """
        return self

    @property
    def is_host(self) -> bool:
        """Whether the CPU may read and write the bytes in the standard layout."""
        return self._type.is_host

    @property
    def usage(self) -> BufferUsage:
        """What the buffer is used for. Setting it makes plans check its tensors again.

        Raises:
            InvalidArgument: set to something else.
        """
        return self._usage

    @usage.setter
    def usage(self, usage: BufferUsage) -> None:
        if isinstance(usage, str):
            raise InvalidArgument(
                f"[Buffer.usage] {usage!r} is none of {list(BufferUsage)}: names are for alloc"
            )
        found = usage_of(usage, "Buffer.usage")
        with placing:  # a tensor that is placed meanwhile sees that it is among weights
            self._usage = found
            if self._usage is BufferUsage.WEIGHTS and self._has_overlaps():
                self.exclusive = False
            weights = self._usage is BufferUsage.WEIGHTS
        if weights and isinstance(self.memory, _native.Memory) and _native.banks() > 1:
            for tensor in self._find_placed():  # move rows next to the cores that will read them
                _native.place(self.base + _offset(tensor), tensor.nbytes)
        self._hand_on_usage()
        PlacementEpoch.move()  # plans may now treat these tensors as weights, or no longer

    def _hand_on_usage(self) -> None:
        """A buffer of several parts sets the usage of each."""

    @property
    def closed(self) -> bool:
        """Whether it was closed; then no tensor can be placed in it."""
        return self._closed

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that lie in the buffer now, by offset. Views are not listed."""
        return sorted(self._find_placed(), key=_offset)

    def _has_overlaps(self) -> bool:
        end = 0
        for tensor in self.tensors:
            start = _offset(tensor)
            if tensor.nbytes and start < end:
                return True
            end = max(end, start + tensor.nbytes)
        return False

    def _overlaps(self, tensor: Tensor) -> bool:
        start, end = _offset(tensor), _offset(tensor) + tensor.nbytes
        others = [t for t in self._find_placed() if t is not tensor]
        return any(_offset(t) < end and start < _offset(t) + t.nbytes for t in others)

    def _find_placed(self) -> list[Tensor]:
        return [
            t
            for t in there(self._tensors)
            if t.placement is not None and t.placement.buffer is self
        ]

    # -- what a device may add

    def init_tensor(self, tensor: Tensor) -> None:
        """Hook: ``tensor`` has just been placed (ggml_backend_buffer_init_tensor).

        If it raises, the placement is undone.
        """

    def free_tensor(self, tensor: Tensor) -> None:
        """Hook: ``tensor`` is about to lose its place."""

    def reset(self) -> None:
        """Drop what `init_tensor` made; bytes and placements stay (ggml_backend_buffer_reset)."""

    # -- placing

    def place(self, tensor: Tensor, offset: int) -> None:
        """Let a tensor lie at ``offset`` (ggml_backend_tensor_alloc).

        Raises:
            InvalidHandle: ``tensor`` is no tensor, or ``offset`` no integer.
            InvalidArgument: the tensor is a view: views lie where their storage lies.
            AlreadyAllocated: it has memory.
            Misaligned, OutOfBounds: the place does not suit it.
            InvalidState: the buffer is closed.
        """
        with placing:
            self._place(tensor, offset)

    def _place(self, tensor: Tensor, offset: int) -> None:
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
            raise InvalidArgument(f"[Buffer.place] {tensor!r} is a view: place its storage instead")
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
            PlacementEpoch.move()
            self._tensors.discard(tensor)
            raise
        if self._usage is BufferUsage.WEIGHTS and self.exclusive and self._overlaps(tensor):
            self.exclusive = False
            PlacementEpoch.move()

    def unplace(self, tensor: Tensor) -> None:
        """Undo `place`: later use of the tensor raises NotAllocated.

        Work in flight keeps the bytes.

        Raises:
            InvalidHandle: no tensor.
            InvalidArgument: it does not lie in here.
        """
        if not hasattr(tensor, "placement"):
            raise InvalidHandle(f"[Buffer.unplace] {tensor!r} is no tensor")
        with placing:
            placement = tensor.placement
            if placement is None or placement.buffer is not self:
                raise InvalidArgument(f"[Buffer.unplace] {tensor!r} does not lie in {self!r}")
            self.free_tensor(tensor)
            change(tensor, "placement", None)
            tensor._span = None  # it refers to the placement, which would keep the buffer alive
            PlacementEpoch.move()  # after the change: who sees the new epoch sees the change
            self._tensors.discard(tensor)

    def close(self) -> None:
        """Unplace all tensors of the buffer: later use of them raises NotAllocated.

        Work in flight keeps the bytes.
        """
        with placing:
            self._closed = True
            for tensor in self._find_placed():
                self.unplace(tensor)
            PlacementEpoch.move()
            self._tensors.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<Buffer {self.type.name}, {self.size} bytes, {len(self._tensors)} tensors{state}>"


def align_up(size: int, alignment: int) -> int:
    """``size`` rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


def _offset(tensor: Tensor) -> int:
    return 0 if tensor.placement is None else tensor.placement.offset


def usage_of(usage: object, what: str) -> BufferUsage:
    """A usage given as the enum, its value, or its lower-case name.

    Raises:
        InvalidArgument: it is none of them.
    """
    try:
        if isinstance(usage, str):
            return BufferUsage[usage.upper()]
        return BufferUsage(usage)  # type: ignore[arg-type]
    except (KeyError, ValueError):
        names = ", ".join(f'"{member.name.lower()}"' for member in BufferUsage)
        raise InvalidArgument(f"[{what}] usage={usage!r} is none of {names}") from None
