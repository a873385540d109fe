"""Kinds of memory: BufferType, which makes buffers and fills them with tensors; plain host memory.

Here: the interface that a device implements, and dividing many tensors among buffers. Not here:
placing one tensor (buffer.py), several buffers as one (multi_buffer.py).
"""

from __future__ import annotations

import ctypes
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from aggml.errors import (
    AggmlError,
    AllocFailed,
    AlreadyAllocated,
    InvalidArgument,
    InvalidHandle,
)
from aggml.memory.buffer import Buffer, align_up, usage_of
from aggml.memory.multi_buffer import MultiBuffer
from aggml.memory.shortage import amount, shortage
from aggml.native import _native
from aggml.process.locks import new_lock
from aggml.stream import Stream
from aggml.stream.slices import Away, finish
from aggml.tensor import cut, new_tensor
from aggml.tensor.checking import integer

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.process.alive import Named
    from aggml.stream.future import Future
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor
    from aggml.tensor.placement import BufferUsage

__all__ = ["HOST", "Aside", "BufferType", "HostBufferType", "host_tensor"]


class Aside:
    """A thread for slow calls of a device, which run in turn and do not wait for queued work.

    The thread spends nearly all of its time in the driver, without the GIL. The first call starts
    it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._stream: Stream | None = None
        self._starting = new_lock()

    def call(self, function: Callable[..., Any], *args: object) -> Future[Any]:
        """A Future of ``function(*args)``."""
        with self._starting:  # two streams would not run the calls in turn
            if self._stream is None:
                self._stream = Stream(f"memory of {self._name}")
        return self._stream.call(function, *args, operation="alloc")


class BufferType(ABC):
    """A kind of memory of a device; compared by identity.

    Attributes:
        name: for messages.
        device: the device that the memory belongs to; None for host memory of no device.
        alignment: of tensors in it, in bytes; a power of two.
        aside: the thread that makes the buffers of `provide`; None: the caller makes them itself.
    """

    name: str = ""
    device: Named | None = None
    alignment: int = 32
    aside: Aside | None = None

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
        """The address of this tensor is a multiple of this many bytes; ``alignment`` or less."""
        return self.alignment

    @abstractmethod
    def alloc_buffer(self, size: int) -> Buffer:
        """A new buffer of ``size`` bytes; 0 is legal.

        Raises:
            AllocFailed: no memory.
        """

    async def provide(self, size: int) -> Buffer:
        """`alloc_buffer`, off the event loop where a driver may need milliseconds for it.

        Cancellation: abandons the wait; the memory is given back.
        """
        if self.aside is None:
            return self.alloc_buffer(size)
        buffer: Buffer = await self.aside.call(self.alloc_buffer, size)
        return buffer

    def checked_size(self, size: object) -> int:
        """The size of a new buffer as an integer, checked.

        Raises:
            InvalidArgument, InvalidHandle: it is negative, or no integer.
            AllocFailed: no machine has that many bytes.
        """
        n = integer(size, "size", f"{self.name}.alloc_buffer")
        if n < 0:
            raise InvalidArgument(f"[{self.name}] a buffer of {n} bytes: give 0 or more")
        if n >= 1 << 55:
            raise AllocFailed(f"[{self.name}] no memory for {amount(n)}")
        return n

    def take_buffer(self, size: int) -> Sliced[Buffer]:
        """A new buffer, by `provide` if the steps run on an event loop, else by `alloc_buffer`."""
        request = _Request(self, size)
        yield request
        return request.outcome()

    def tensors_size(self, tensors: Iterable[Tensor]) -> int:
        """Bytes that `alloc_tensors` would take for all of them, padding included.

        Raises:
            As `alloc_tensors`, except AllocFailed.
        """
        return sum(sum(sizes) for _, sizes in _ranges(self, _refuse_placed(tensors)))

    def alloc_tensors(
        self, tensors: Iterable[Tensor], usage: BufferUsage | str | None = None
    ) -> Buffer:
        """Memory for all given tensors, in order; all or nothing.

        Args:
            tensors: none may have memory or be a view (views lie where their storage lies). A
                tensor that is given twice counts once.
            usage: of the buffer; None: any.

        Returns:
            One buffer; or, if they need more than ``max_size``, a `MultiBuffer` whose parts are
            filled in order. A tensor larger than ``max_size`` gets a part of its own. No tensors,
            or none with bytes, give an empty buffer of size 0.

        Raises:
            AlreadyAllocated, InvalidArgument, InvalidHandle: a tensor has memory, is a view, or is
                no tensor.
            InvalidArgument: ``usage`` is no usage.
            AllocFailed: no memory.
        """
        return finish(self.alloc_steps(tensors, usage))

    def alloc_steps(
        self, tensors: Iterable[Tensor], usage: BufferUsage | str | None = None
    ) -> Sliced[Buffer]:
        """`alloc_tensors` in small steps."""
        use = None if usage is None else usage_of(usage, "alloc")
        made: list[Buffer] = []
        placed: list[tuple[Buffer, Tensor]] = []
        try:
            for group, sizes in _ranges(self, _refuse_placed(tensors)):
                size = sum(sizes)
                try:
                    buffer = yield from self.take_buffer(size)
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
                place = tensor.placement  # another task may have closed the buffer meanwhile
                if place is not None and place.buffer is buffer:
                    buffer.unplace(tensor)
            raise
        memory = made[0] if len(made) == 1 else MultiBuffer(made)
        if use is not None:
            memory.usage = use
        return memory

    def __repr__(self) -> str:
        return f"<BufferType {self.name}>"


class _Request(Away):
    """A buffer that is being made on another thread while a step waits for it."""

    def __init__(self, buffer_type: BufferType, size: int) -> None:
        self._type = buffer_type
        self._size = size
        self._made: Buffer | AggmlError | None = None

    def now(self) -> None:
        try:
            self._made = self._type.alloc_buffer(self._size)
        except AggmlError as error:
            self._made = error

    async def later(self) -> None:
        try:
            self._made = await self._type.provide(self._size)
        except AggmlError as error:
            self._made = error

    def outcome(self) -> Buffer:
        """The buffer, once it was made.

        Raises:
            The exception of `BufferType.alloc_buffer`.
        """
        if isinstance(self._made, AggmlError):
            raise self._made
        assert self._made is not None
        return self._made


def _refuse_placed(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors without repetition; refuses those that cannot be placed."""
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


def _ranges(buffer_type: BufferType, tensors: list[Tensor]) -> list[tuple[list[Tensor], list[int]]]:
    """Tensors and their padded sizes, in ranges that each fit in a buffer of ``max_size``.

    ggml_backend_alloc_ctx_tensors_from_buft divides them in the same way. The last range may be
    empty.
    """
    ranges: list[tuple[list[Tensor], list[int]]] = [([], [])]
    total = 0
    for tensor in tensors:
        size = align_up(buffer_type.alloc_size(tensor), buffer_type.alignment)
        if total and total + size > buffer_type.max_size:
            ranges.append(([], []))
            total = 0
        ranges[-1][0].append(tensor)
        ranges[-1][1].append(size)
        total += size
    return ranges


class HostBufferType(BufferType):
    """Plain host memory: every device can copy from and to it, and the CPU computes in it."""

    alignment = 32

    def __init__(self, name: str, device: Named | None = None) -> None:
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
            InvalidArgument, InvalidHandle: the size is negative, or no integer.
        """
        n = self.checked_size(size)
        try:
            memory = _native.Memory(n, 64)
        except MemoryError as error:
            raise AllocFailed(f"[{self.name}] no memory for {amount(n)}") from error
        return Buffer(self, n, memory.address, memory)

    def adopt(self, size: int, address: int, free: Callable[..., object], *args: object) -> Buffer:
        """A buffer over host memory that a driver allocated; plain memory if ``address`` is 0.

        ``free(*args)`` is called when the memory is no longer in use.
        """
        if not address:
            plain = HOST.alloc_buffer(size)
            return Buffer(self, size, plain.base, plain.memory)
        block = (ctypes.c_uint8 * size).from_address(address)
        array = np.ctypeslib.as_array(block)
        # Zeroed like all host memory here: the same in every run. NumPy would hold the GIL.
        ctypes.memset(address, 0, size)
        weakref.finalize(block, free, *args).atexit = False
        return Buffer(self, size, address, array)


HOST = HostBufferType("CPU")


def host_tensor(like: Tensor) -> Tensor:
    """A contiguous tensor of the same type and extents in plain host memory, to stage a copy."""
    staging = new_tensor(like.dtype, like.ne[: like.ndim], name=cut(f"{like.name} (staged)"))
    HOST.alloc_tensors([staging])
    return staging
