"""Layout: a program that can be enqueued: where each value lies, native plans, a list of actions.

Here: the result, and the way to it: `rewrite`, `place_twins`, `compile_splits`, `write_script`. Not
here: enqueuing (running/).

There are two kinds of layout. In the compact layout all values share memory, as in ggml; it serves
one submission at a time. In the other kind, inputs, results and values that cross devices have
memory apart: separate memory for each submission in flight. So the transfers of one submission run
while another one computes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aggml.errors import AlreadyAllocated
from aggml.scheduler.layout.place import assign_offsets, place_twins
from aggml.scheduler.layout.plans import compile_splits
from aggml.scheduler.layout.rewrite import rewrite
from aggml.scheduler.layout.script import Script, write_script
from aggml.stream.slices import finish

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from aggml.memory.buffer import Buffer
    from aggml.scheduler.deciding.program import SplitGraph
    from aggml.scheduler.layout.memory import Key, SharedBuffers
    from aggml.scheduler.layout.plans import Side
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["Layout", "lay_out", "measure", "place_permanently"]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A program that can be enqueued.

    Attributes:
        program: the program that it places.
        slot: number of its memory apart; None if it is the compact layout.
        script: the actions.
        twins: for each tensor of the graph, the tensor that stands for it here.
        buffers: the scheduler's buffers that it uses, by key.
        recordings: submissions that were enqueued with it, by the form of their job. running/ keeps
            them here because they become invalid together with the layout.
    """

    program: SplitGraph
    slot: int | None
    script: Script
    twins: Mapping[Tensor, Tensor]
    buffers: Sequence[tuple[Key, list[Buffer]]]
    recordings: dict[Hashable, Any] = field(default_factory=dict)

    def is_current(self, memory: SharedBuffers) -> bool:
        """Whether its buffers are still those of the scheduler."""
        now = memory.buffers
        for key, have in self.buffers:  # noqa: SIM110 - each run asks
            if now.get(key) is not have:
                return False
        return True

    def __str__(self) -> str:
        where = "memory shared" if self.slot is None else f"memory apart, number {self.slot}"
        return f"layout of graph {self.program.uid}, {where}\n{self.script}"


def lay_out(
    program: SplitGraph, slot: int | None, memory: SharedBuffers, side: Side
) -> Sliced[Layout]:
    """Give a program memory and plans, in small steps.

    Args:
        program: what is to run.
        slot: which memory apart; None for the compact layout.
        memory: the buffers of the scheduler, which grow if they have to.
        side: further backends, for transfers and for splits side by side.

    Raises:
        AllocFailed: no memory; the earlier buffers are unchanged.
    """
    yield from place_permanently(program)
    rewritten = yield from rewrite(program, apart=slot is not None)
    placed = yield from place_twins(rewritten, slot, memory)
    yield
    plans = yield from compile_splits(placed, side)
    yield
    script = yield from write_script(placed, plans, side)
    return Layout(program, slot, script, rewritten.twins, placed.buffers)


def place_permanently(program: SplitGraph) -> Sliced[None]:
    """Give permanent memory to leafs that have none and that no run brings."""
    for b, buffer_type in enumerate(program.q.types):
        while group := [
            t for t in program.fixed if t.placement is None and program.found.backend[t] == b
        ]:
            with suppress(AlreadyAllocated):  # another task placed one of them first
                yield from buffer_type.alloc_steps(group)


def measure(program: SplitGraph) -> tuple[int, ...]:
    """Bytes of the compact layout for each backend; a type that several share counts for each."""
    types = program.q.types
    rewritten = finish(rewrite(program, apart=False))
    sizes = finish(assign_offsets(rewritten, types)).sizes()
    return tuple([sizes[types.index(buffer_type)] for buffer_type in types])
