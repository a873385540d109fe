"""Memory of several devices as one: a buffer whose tensors lie in parts on each device.

Here: buffers, the parts of each storage. The addresses in such a buffer are mere numbers: no kernel
uses them. Not here: how a tensor is split (split.py).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final, NamedTuple

from aggml.devices.meta.split import Extents, SplitState, check_state, state_by_name
from aggml.errors import AllocFailed, InvalidArgument, NotAllocated
from aggml.memory.buffer import Buffer, align_up
from aggml.memory.buffer_type import BufferType
from aggml.process.locks import new_lock
from aggml.tensor import change, cut, new_tensor
from aggml.tensor.checking import integer
from aggml.tensor.placement import BufferUsage, placing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from aggml.backend.backend import Device
    from aggml.tensor import Tensor
    from aggml.tensor.placement import Placement

__all__ = [
    "Each",
    "MetaBuffer",
    "MetaBufferType",
    "Shard",
    "has_shard",
    "keep_shard",
    "lay_shard",
    "shard_of",
]

#: A tensor for each device.
Each = tuple["Tensor", ...]
#: What has a value without being computed: leafs, and copies that a scheduler fills.
LEAFS: Final = ("none", "copy")
_FIRST: Final = 1 << 52  # no address of any machine


class Shard(NamedTuple):
    """The parts in which a storage really lies.

    Attributes:
        state: how it is split.
        each: the placed part on each device.
    """

    state: SplitState
    each: Each


class MetaBuffer(Buffer):
    """Memory of a `MetaDevice`; a tensor placed in it takes memory of each device.

    Attributes:
        shards: of each place. Not by offset: values of a graph take turns at one offset, and each
            has parts of its own, in which it can be read later. A shard ends with its place.
    """

    def __init__(self, type: MetaBufferType, size: int, base: int) -> None:  # noqa: A002 - as there
        self.shards: weakref.WeakKeyDictionary[Placement, Shard] = weakref.WeakKeyDictionary()
        super().__init__(type, size, base, None)

    def all_shards(self) -> list[Shard]:
        """The shards at this moment; other threads may add some meanwhile."""
        return list(self.shards.data.copy().values())  # type: ignore[attr-defined]

    def init_tensor(self, tensor: Tensor) -> None:
        """Allocate memory of each device for a leaf."""
        if tensor.op in LEAFS:
            shard_of(tensor)

    def free_tensor(self, tensor: Tensor) -> None:
        """Release the memory of a leaf on each device."""
        if tensor.placement is not None:
            self.shards.pop(tensor.placement, None)

    def _hand_on_usage(self) -> None:
        # Devices keep packed copies of weights.
        for shard in self.all_shards():
            for part in shard.each:
                if part.buffer is not None:
                    part.buffer.usage = self._usage


class MetaBufferType(BufferType):
    """The memory of several devices.

    Args:
        device: whose memory it is.
        types: the memory of each of its devices.
        shares: the part of a split tensor that each device has; together 1.
        split: says how a leaf is split; None, or its None: by name.
    """

    def __init__(
        self,
        device: Device,
        types: Sequence[BufferType],
        shares: Sequence[Fraction],
        split: Callable[[Tensor], SplitState | None] | None = None,
    ) -> None:
        self.name: str = device.name
        self.device = device
        self._owner = device
        self.types: tuple[BufferType, ...] = tuple(types)
        self._shares = tuple(shares)
        self._split = split
        self.alignment: int = max(one.alignment for one in types)
        self._lock = new_lock()
        self._next = _FIRST

    @property
    def max_size(self) -> int:
        """Bytes that the devices' largest buffers have together, at most their total memory."""
        _, total = self._owner.memory()
        most = sum(one.max_size for one in self.types)
        return min(most, total or most)

    def alloc_buffer(self, size: int) -> Buffer:
        """A buffer of ``size`` bytes. Memory is taken when tensors are placed in it.

        Raises:
            AllocFailed: more than the devices can have together.
            InvalidArgument: a negative size.
        """
        if integer(size, "size", f"{self.name}.alloc_buffer") < 0:
            raise InvalidArgument(f"[{self.name}] a buffer of {size} bytes: give 0 or more")
        if size > self.max_size:
            raise AllocFailed(f"[{self.name}] no memory for {size} bytes: at most {self.max_size}")
        with self._lock:
            base = self._next
            self._next += align_up(size, 1 << 12)
        return MetaBuffer(self, size, base if size else 0)

    def state_of(self, leaf: Tensor) -> SplitState:
        """How a leaf is split that is placed here.

        Raises:
            InvalidArgument: the user's function gave what is no state of it.
        """
        state = None if self._split is None else self._split(leaf)
        if state is not None:
            return check_state(leaf, state, len(self.types))
        return state_by_name(leaf, self._shares)

    def parts(self, dtype: object, each: Sequence[Extents], name: str) -> Each:
        """A placed leaf on each device, of the extents given for it.

        Raises:
            AllocFailed: a device has no memory for it.
        """
        made = []
        for one, ne in zip(self.types, each, strict=True):
            part = new_tensor(dtype, ne, cut(name))  # type: ignore[arg-type]
            one.alloc_tensors([part])
            change(part, "frozen", True)
            made.append(part)
        return tuple(made)


def _place(tensor: Tensor, what: str) -> tuple[Placement, MetaBuffer]:
    placement = tensor.placement
    block = None if placement is None else placement.buffer.owner
    if placement is None or not isinstance(block, MetaBuffer):
        raise NotAllocated(f"[{what}] {tensor!r} has no memory on these devices: call alloc_graph")
    return placement, block


def shard_of(storage: Tensor) -> Shard:
    """The parts of a storage; those of a leaf are made if there are none yet.

    Raises:
        NotAllocated: it has no memory, or is a node that was never computed.
        AllocFailed: a device has no memory for its part.
    """
    placement, block = _place(storage, "MetaBuffer")
    found = block.shards.get(placement)
    if found is not None:
        return found
    if storage.op not in LEAFS:
        raise NotAllocated(
            f"[MetaBuffer] {storage!r} was not computed yet: compute its graph first"
        )
    buffer_type: MetaBufferType = block.type
    state = buffer_type.state_of(storage)
    extents = [state.part(storage.ne, i) for i in range(len(buffer_type.types))]
    with placing:  # two threads must not write to parts of their own
        found = block.shards.get(placement)
        if found is not None:
            return found
        each = buffer_type.parts(storage.dtype, extents, storage.name)
        if block.usage is not BufferUsage.ANY:
            for part in each:
                assert part.buffer is not None
                part.buffer.usage = block.usage
        return keep_shard(storage, state, each)


def has_shard(storage: Tensor, each: Each) -> bool:
    """Whether just these tensors are the parts of a storage."""
    placement, block = _place(storage, "MetaBuffer")
    found = block.shards.get(placement)
    return found is not None and found.each is each


def keep_shard(storage: Tensor, state: SplitState, each: Each) -> Shard:
    """Note where the parts of a storage lie."""
    placement, block = _place(storage, "MetaBuffer")
    made = Shard(state, each)
    block.shards[placement] = made
    return made


def lay_shard(node: Tensor, state: SplitState, each: Each) -> None:
    """Give memory to the parts of a node that can be read after a run, at the same place each time.

    Raises:
        AllocFailed: a device has no memory for its part.
    """
    placement, block = _place(node, "MetaBuffer")
    old = block.shards.get(placement)
    buffer_type: MetaBufferType = block.type
    if old is not None and old.state == state:
        places = [part.placement for part in old.each]
    else:
        extents = [part.ne for part in each]
        places = [part.placement for part in buffer_type.parts(node.dtype, extents, node.name)]
    for part, place in zip(each, places, strict=True):
        change(part, "placement", place)
    keep_shard(node, state, each)
