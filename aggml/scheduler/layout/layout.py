"""Layout: a program that can be enqueued: where each value lies, native plans, a list of actions.

Here: the result, and the way to it: `rewriting` -> `placing` -> `compiling_splits` -> `scripting`.
Not here: enqueuing (running/).

There are two kinds of layout. The compact one is what ggml has: all values share memory. It serves
one submission at a time. In the other, values that cross devices, inputs and results have memory
apart, once for each submission in flight, so that transfers run beside the computing of others.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aggml.errors import AlreadyAllocated
from aggml.scheduler.layout.place import offsetting, placing
from aggml.scheduler.layout.plans import compiling_splits
from aggml.scheduler.layout.rewrite import rewriting
from aggml.scheduler.layout.script import Script, scripting
from aggml.stream.slices import finish

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from aggml.memory.buffer import Buffer
    from aggml.scheduler.deciding.program import Program
    from aggml.scheduler.layout.memory import Key, Memory
    from aggml.scheduler.layout.plans import Side
    from aggml.stream.slices import Sliced
    from aggml.tensor import Tensor

__all__ = ["Layout", "laying_out", "measure"]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A program that can be enqueued.

    Attributes:
        program: what it is a layout of.
        slot: number of its memory apart; None if it is the compact one.
        script: the actions.
        twins: for each tensor of the graph, what stands for it here.
        buffers: those of the scheduler that it rests on, by key.
        recordings: submissions that were enqueued with it, by the form of their job; kept here by
            those who enqueue (running/), because they end with it.
    """

    program: Program
    slot: int | None
    script: Script
    twins: Mapping[Tensor, Tensor]
    buffers: Sequence[tuple[Key, list[Buffer]]]
    recordings: dict[Hashable, Any] = field(default_factory=dict)

    def is_current(self, memory: Memory) -> bool:
        """Whether its buffers are still those of the scheduler."""
        now = memory.buffers
        for key, have in self.buffers:  # noqa: SIM110 - each run asks
            if now.get(key) is not have:
                return False
        return True

    def __str__(self) -> str:
        where = "memory shared" if self.slot is None else f"memory apart, number {self.slot}"
        return f"layout of graph {self.program.uid}, {where}\n{self.script}"


def laying_out(program: Program, slot: int | None, memory: Memory, side: Side) -> Sliced[Layout]:
    """Give a program memory and plans, in small steps.

    Args:
        program: what is to run.
        slot: which memory apart; None for the compact layout.
        memory: the buffers of the scheduler, which grow if they have to.
        side: further backends, for transfers and for splits side by side.

    Raises:
        AllocFailed: no memory; what there was is as before.
    """
    yield from _placing_for_good(program)
    rewritten = yield from rewriting(program, apart=slot is not None)
    placed = yield from placing(rewritten, slot, memory)
    yield
    plans = yield from compiling_splits(placed, side)
    yield
    script = yield from scripting(placed, plans, side)
    return Layout(program, slot, script, rewritten.twins, placed.buffers)


def _placing_for_good(program: Program) -> Sliced[None]:
    """Memory for leafs that nobody placed and no run brings."""
    for b, buffer_type in enumerate(program.q.types):
        while group := [
            t for t in program.fixed if t.placement is None and program.found.backend[t] == b
        ]:
            with suppress(AlreadyAllocated):  # another task was first with one of them
                yield from buffer_type.allocating(group)


def measure(program: Program) -> tuple[int, ...]:
    """Bytes of the compact layout for each backend; a type that several share counts for each."""
    types = program.q.types
    rewritten = finish(rewriting(program, apart=False))
    sizes = finish(offsetting(rewritten, types)).sizes()
    return tuple([sizes[types.index(buffer_type)] for buffer_type in types])
