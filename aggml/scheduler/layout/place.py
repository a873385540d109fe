"""The second step of a layout: each new storage gets an address.

Here: which storages share memory, which have memory of a single submission, and the blocks that
stacks of experts are copied to. Not here: lifetimes and offsets (the allocator), the buffers
themselves (memory.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggml.errors import AllocFailed
from aggml.graph import graph_of
from aggml.memory.allocator.lifetimes import layout_steps
from aggml.memory.buffer import align_up
from aggml.scheduler.layout.memory import EXPERT_BLOCKS, Unshared
from aggml.tensor import change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aggml.memory.allocator.lifetimes import GraphLayout, Sizing
    from aggml.memory.buffer import Buffer
    from aggml.memory.buffer_type import BufferType
    from aggml.scheduler.deciding.program import SplitGraph
    from aggml.scheduler.deciding.split import Copy
    from aggml.scheduler.layout.memory import Key, SharedBuffers
    from aggml.scheduler.layout.rewrite import Rewritten
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["Placed", "assign_offsets", "find_uses", "place_twins"]


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A rewritten program with memory.

    Attributes:
        rewritten: the program. Those of its storages that several actions touch now have a
            `Placement`.
        slot: the number of its memory apart; None if all values share memory.
        addresses: of the storages that a single plan touches: they have no `Placement`.
        scratch: for each site the key of the memory that its splits share with others.
        buffers: all memory that it rests on, by key.
        blocks_of: for copies of experts that do not share memory with values, the number of the
            block that has them.
    """

    rewritten: Rewritten
    slot: int | None
    addresses: Mapping[Tensor, int]
    scratch: Sequence[Key]
    buffers: Sequence[tuple[Key, list[Buffer]]]
    blocks_of: Mapping[Copy, int]

    @property
    def blocks(self) -> tuple[Buffer, ...]:
        """All buffers."""
        return tuple([block for _, have in self.buffers for block in have])


class _Taken:
    """The buffers of the scheduler that one layout takes, in the order of taking.

    Args:
        memory: the buffers of the scheduler.
    """

    def __init__(self, memory: SharedBuffers) -> None:
        self._memory = memory
        self.buffers: list[tuple[Key, list[Buffer]]] = []

    def take(self, key: Key, buffer_type: BufferType, sizes: Sequence[int]) -> Sliced[list[Buffer]]:
        """Take buffers of at least these sizes."""
        have = yield from self._memory.grow(key, buffer_type, sizes)
        self.buffers.append((key, have))
        return have


def place_twins(rewritten: Rewritten, slot: int | None, memory: SharedBuffers) -> Sliced[Placed]:
    """Give each new storage an address, and a `Placement` if several actions touch it.

    Args:
        rewritten: what to place.
        slot: which memory apart; None: all values share memory.
        memory: the buffers of the scheduler, which grow if they have to.

    Raises:
        AllocFailed: no memory; what there was is as before.
    """
    experts = [copy for copy in rewritten.copies if copy in rewritten.program.experts]
    if slot is None and experts:
        try:
            return (yield from _place(rewritten, slot, memory, experts))
        except AllocFailed as error:  # no room for blocks: experts share memory with values
            error.__traceback__ = None  # its frames have the blocks that there were
            for copy in experts:
                change(rewritten.copies[copy], "placement", None)
            memory.forget_experts()
    return (yield from _place(rewritten, slot, memory, ()))


def _place(
    rewritten: Rewritten, slot: int | None, memory: SharedBuffers, experts: Sequence[Copy]
) -> Sliced[Placed]:
    """As `place_twins`; the copies ``experts`` get blocks of their own."""
    taken = _Taken(memory)
    if slot is not None:
        yield from _place_apart(rewritten, slot, taken)
    blocks_of = yield from _place_experts(rewritten, experts, taken)
    buffer_types = [rewritten.program.q.types[site.backend] for site in rewritten.sites]
    alone = _is_alone(rewritten, apart=slot is not None)
    scratch: list[Key] = [
        ("own", *site) if own else ("type", id(buffer_type))
        for site, buffer_type, own in zip(rewritten.sites, buffer_types, alone, strict=True)
    ]
    types = [
        Unshared(buffer_type) if own else buffer_type
        for buffer_type, own in zip(buffer_types, alone, strict=True)
    ]
    offsets = yield from assign_offsets(rewritten, types)
    blocks: list[list[Buffer]] = []
    for i, chunks in enumerate(offsets.chunks):
        first = scratch.index(scratch[i])  # several sites may share memory
        if first == i:
            blocks.append((yield from taken.take(scratch[i], buffer_types[i], chunks)))
        else:
            blocks.append(blocks[first])
    addresses: dict[Tensor, int] = {}
    shared = rewritten.shared
    for tensor, found in offsets.slots.items():
        i = found.buffer_id
        if blocks[i]:
            block = blocks[i][found.chunk]
        else:  # all that lies there has no bytes
            block = (yield from taken.take(scratch[i], buffer_types[i], [0]))[0]
        if tensor in shared:
            block.place(tensor, found.offset)
        else:
            addresses[tensor] = block.base + found.offset
    return Placed(rewritten, slot, addresses, scratch, taken.buffers, blocks_of)


def _is_alone(rewritten: Rewritten, *, apart: bool) -> list[bool]:
    """For each site, whether no other site takes from the same memory.

    The streams of two sites run concurrently. So every site other than the backend's own stream has
    its own memory; with memory apart, so do backends that share a type.
    """
    types = rewritten.program.q.types
    is_shared = [sum(1 for other in types if other is buffer_type) > 1 for buffer_type in types]
    return [site.side > 0 or (apart and is_shared[site.backend]) for site in rewritten.sites]


def assign_offsets(rewritten: Rewritten, types: Sequence[Sizing]) -> Sliced[GraphLayout]:
    """Offsets of what has no memory yet, as ggml's graph allocator finds them.

    Args:
        rewritten: the storages, and the order in which they are needed.
        types: of the memory of each site.
    """
    leafs = rewritten.leafs
    graph = graph_of(rewritten.order, leafs, rewritten.kept)
    yield
    at = [rewritten.home.get(leaf, 0) for leaf in leafs]
    return (
        yield from layout_steps(graph, rewritten.sites_of_order, at, types=types, reuse_inputs=True)
    )


def _place_apart(rewritten: Rewritten, slot: int, taken: _Taken) -> Sliced[None]:
    """Memory of this submission alone for what other streams than the computing one touch."""
    program, twins, home = rewritten.program, rewritten.twins, rewritten.home
    tensors = [twins[t] for t in program.direct]
    tensors += [
        target
        for copy, target in rewritten.copies.items()
        # Copies of weights stay where memory is shared: they are too large to have many.
        if program.is_upload(copy) or program.q.buffer(copy.tensor.root) is None
    ]
    tensors += [twins[t] for t in program.crossing if twins[t] in home]
    tensors += [t for t in rewritten.kept if t in home]
    tensors += [t for t in rewritten.order if t in rewritten.across]
    by_backend: dict[int, list[Tensor]] = {}
    for tensor in dict.fromkeys(tensors):
        by_backend.setdefault(home[tensor], []).append(tensor)
    for b, group in by_backend.items():
        buffer_type = program.q.types[b]
        offsets, size = [], 0
        for tensor in group:
            offsets.append(size)
            size += align_up(buffer_type.alloc_size(tensor), buffer_type.alignment)
        (block,) = yield from taken.take(("slot", slot, b), buffer_type, [size])
        for tensor, offset in zip(group, offsets, strict=True):
            block.place(tensor, offset)


def find_uses(program: SplitGraph) -> dict[Copy, range]:
    """For each copy, the splits from the one that it is made for to the last one that reads it."""
    found: dict[Copy, range] = {}
    for i, split in enumerate(program.splits):
        for copy in (*split.inputs, *split.swaps.values()):
            found[copy] = range(found[copy].start if copy in found else i, i + 1)
    return found


def _place_experts(
    rewritten: Rewritten, experts: Sequence[Copy], taken: _Taken
) -> Sliced[dict[Copy, int]]:
    """Blocks for copies of experts, in turn, so that one is filled while others are in use.

    A copy whose turn comes while its block is still needed has none: it shares memory with values.

    Args:
        rewritten: has the copies.
        experts: the copies, in the order in which they are needed.
        taken: the buffers of this layout.

    Returns:
        The number of each copy's block among those of its backend.
    """
    program, copies = rewritten.program, rewritten.copies
    types, used = program.q.types, find_uses(program)
    blocks_of: dict[Copy, int] = {}
    sizes: dict[int, list[int]] = {}  # of each backend's blocks
    held: dict[int, list[Copy]] = {}  # what each block was given to last
    turn: dict[int, int] = {}
    for copy in experts:
        b = copy.backend
        have, last, number = sizes.setdefault(b, []), held.setdefault(b, []), turn.get(b, 0)
        size = types[b].alloc_size(copies[copy])
        if number == len(have):
            have.append(size)
            last.append(copy)
        elif used[last[number]].stop <= used[copy].start:
            have[number] = max(have[number], size)
            last[number] = copy
        else:
            continue
        blocks_of[copy] = number
        turn[b] = (number + 1) % EXPERT_BLOCKS
    for b, wanted in sizes.items():
        blocks: list[Buffer] = []
        for number, size in enumerate(wanted):
            blocks += yield from taken.take(("experts", b, number), types[b], [size])
        for copy, number in blocks_of.items():
            if copy.backend == b:
                blocks[number].place(copies[copy], 0)
    return blocks_of
