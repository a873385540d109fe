"""Placement: where a tensor lies, in what kind of buffer, and whether anything was written there.

Here: the record that a tensor keeps of its place. Not here: making places and undoing them, which
is a buffer's work (memory/buffer.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from aggml.errors import ReadOnly
from aggml.native import _native
from aggml.process.locks import new_rlock
from aggml.process.numbers import Numbers

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence


__all__ = [
    "BROUGHT",
    "EMPTY",
    "KEPT",
    "Backing",
    "BufferUsage",
    "Holder",
    "Placement",
    "PlacementEpoch",
    "fill",
    "placing",
]


#: Held while tensors get a place, or lose it. "It has no place" and "now it has one" are a single
#: step for all threads, and so are all places of one graph. It is reentrant, because the hooks of
#: buffers and the garbage collector may run in between; nobody waits with it for another thread.
placing: threading.RLock = new_rlock()


class BufferUsage(IntEnum):
    """The use of a buffer, which decides about placing and packing (ggml_backend_buffer_usage)."""

    ANY = 0
    WEIGHTS = 1
    COMPUTE = 2


class PlacementEpoch:
    """A counter that moves whenever a placement may have become invalid; plans check it first.

    Each value is used once, so two threads that move it do not undo each other's move.
    """

    value: int = 0
    _numbers = Numbers(1)

    @classmethod
    def move(cls) -> None:
        """Make all plans check their placements again."""
        cls.value = next(cls._numbers)


class Backing(IntEnum):
    """Whether reading memory may block on a disk (``ag_backing`` of native/runtime/runtime.h)."""

    MEMORY = 0  #: pages of this process
    MAY_BE_FILE = 1  #: a mapped file, or memory of others; the kernel tells which pages are present
    UNTOLD = 2  #: a mapped file that is not ours: the kernel calls all of its pages present


class Holder(Protocol):
    """What is known here of the buffer that a tensor lies in; the whole is `aggml.Buffer`."""

    size: int
    base: int
    memory: object
    writable: bool
    exclusive: bool
    backing: Backing
    is_file: bool

    @property
    def type(self) -> Any:  # noqa: ANN401 - a BufferType
        """Its `aggml.BufferType`."""
        ...

    @property
    def name(self) -> str:
        """That of its type."""
        ...

    @property
    def alignment(self) -> int:
        """That of its type."""
        ...

    @property
    def is_host(self) -> bool:
        """Whether the CPU may read and write the bytes."""
        ...

    @property
    def owner(self) -> Holder:
        """The buffer whose end frees the bytes."""
        ...

    @property
    def usage(self) -> BufferUsage:
        """What the buffer holds."""
        ...

    @usage.setter
    def usage(self, usage: BufferUsage) -> None: ...
    @property
    def closed(self) -> bool:
        """Whether it was closed: nothing can be placed in it any more."""
        ...

    @property
    def tensors(self) -> Sequence[Any]:
        """The tensors that lie in it."""
        ...

    def place(self, tensor: Any, offset: int) -> None:  # noqa: ANN401 - a tensor
        """Let a tensor lie at ``offset``."""
        ...

    def unplace(self, tensor: Any) -> None:  # noqa: ANN401 - a tensor
        """Undo `place`."""
        ...

    def close(self) -> None:
        """Unplace all tensors in it."""
        ...


#: Whether what lies in a place was written: never; by what lasts; by a run, for that run alone.
EMPTY, KEPT, BROUGHT = 0, 1, 2


_put = object.__setattr__
_OF_PLACE = frozenset({"address", "buffer", "offset", "storage"})


class Placement:
    """Where a tensor that is no view lies.

    Made by ``Buffer.place``; the tensor keeps it, and so the buffer.

    Attributes:
        buffer: the Buffer.
        offset: bytes from its base.
        address: address of byte 0 as the device's kernels see it.
        storage: the native record that failures poison.
        readable: whether the contents outlive one plan.
        filled: EMPTY, KEPT or BROUGHT; see inputs.py.
    """

    __slots__ = (
        "__weakref__",  # a buffer may keep more for each place, for as long as it is one
        "_exported",
        "address",
        "buffer",
        "filled",
        "offset",
        "readable",
        "storage",
    )

    buffer: Holder
    offset: int
    address: int
    storage: _native.Storage
    filled: int

    def __init__(self, buffer: Holder, offset: int, name: str, size: int) -> None:
        address = buffer.base + offset
        _put(self, "buffer", buffer)
        _put(self, "offset", offset)
        _put(self, "address", address)
        storage = _native.Storage(name, address, size, buffer.backing, buffer.is_file)
        _put(self, "storage", storage)
        self.readable: bool = True
        self._exported = False
        # Memory that a caller brought, or a file, has a value, and its owner may change it.
        self.filled = EMPTY if buffer.exclusive and buffer.writable else KEPT

    def __setattr__(self, name: str, value: object) -> None:
        if name in _OF_PLACE:
            raise ReadOnly(
                f"[Placement.{name}] the place of a tensor in {self.buffer!r} cannot be changed"
            )
        _put(self, name, value)

    @property
    def exported(self) -> bool:
        """Whether code outside of aggml holds a view through which it may write."""
        return self._exported

    @exported.setter
    def exported(self, exported: bool) -> None:
        if exported is not self._exported:
            self._exported = exported
            self.filled = KEPT
            PlacementEpoch.move()  # no plan may rely on a packed copy of what lies here


#: Sets the field ``filled`` of a placement, in a fifth of the time of an assignment.
fill: Callable[[Placement, int], None] = Placement.filled.__set__  # type: ignore[attr-defined, misc]
