"""Layout: a program that can be enqueued: where each value lies, native plans, a list of actions.

Here: the result, and the way to it: `rewriting` -> `placing` -> `compiling_splits` -> `scripting`.
Not here: enqueuing (running/).

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

__all__ = ["Layout", "laying_out", "measure", "placing_for_good"]


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
        AllocFailed: no memory; the earlier buffers are unchanged.
    """
    yield from placing_for_good(program)
    rewritten = yield from rewriting(program, apart=slot is not None)
    placed = yield from placing(rewritten, slot, memory)
    yield
    plans = yield from compiling_splits(placed, side)
    yield
    script = yield from scripting(placed, plans, side)
    return Layout(program, slot, script, rewritten.twins, placed.buffers)


def placing_for_good(program: Program) -> Sliced[None]:
    """Give permanent memory to leafs that have none and that no run brings."""
    for b, buffer_type in enumerate(program.q.types):
        while group := [
            t for t in program.fixed if t.placement is None and program.found.backend[t] == b
        ]:
            with suppress(AlreadyAllocated):  # another task placed one of them first
                yield from buffer_type.allocating(group)


def measure(program: Program) -> tuple[int, ...]:
    """Bytes of the compact layout for each backend; a type that several share counts for each."""
    types = program.q.types
    rewritten = finish(rewriting(program, apart=False))
    sizes = finish(offsetting(rewritten, types)).sizes()
    return tuple([sizes[types.index(buffer_type)] for buffer_type in types])
