"""Layout: a program with memory: where each value lies, native plans, and a list of actions.

Here: the result, and the steps to it (rewriting.py, placing.py, script.py, in that order). Not
here: enqueuing (run.py).

Two kinds. The compact one is what ggml has: all values share memory. It serves one submission at a
time. In the other, values that cross devices, inputs and results have memory apart, once for each
submission in flight, so that transfers run beside the computing of others.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from aggml.errors import AlreadyAllocated
from aggml.scheduler.layout.memory import Memory
from aggml.scheduler.layout.script import Scripting
from aggml.stream.slices import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from aggml.backend import Backend
    from aggml.memory.buffer import Buffer
    from aggml.native import _native
    from aggml.scheduler.deciding.program import Program
    from aggml.scheduler.layout.actions import Action
    from aggml.scheduler.running.prepared import Recording
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = ["Layout", "materialising", "measure"]


class Layout:
    """A program that can be enqueued: actions in order, and where results are.

    Attributes:
        program: what it is a layout of.
        slot: number of its memory apart; None if it is the compact one.
        script: the actions.
        twins: for each tensor of the graph, what stands for it here.
        streams: all streams that the script uses.
        touched: for each backend, streams that touch memory the user placed there.
        foreign: for a stream that orders access to memory the user placed, other streams that
            touch it.
        sharers: for each backend where the user placed memory, other given ones that reach it.
        writes_placed: indexes of backends whose user-placed memory is written.
        recordings: submissions that were enqueued, by the form of their job.
    """

    def __init__(self, program: Program, slot: int | None) -> None:
        self.program = program
        self.slot = slot
        self.script: list[Action] = []
        self.twins: dict[Tensor, Tensor] = {}
        self.streams: list[_native.Stream] = []
        self.touched: dict[int, set[_native.Stream]] = {}
        self.foreign: dict[_native.Stream, list[_native.Stream]] = {}
        self.sharers: dict[int, list[Backend]] = {}
        self.writes_placed: list[int] = []
        self.buffers: list[tuple[Hashable, list[Buffer]]] = []
        self.recordings: dict[Hashable, Recording] = {}

    def is_current(self, memory: Memory) -> bool:
        """Whether its buffers are still those of the scheduler."""
        now = memory.buffers
        for key, have in self.buffers:  # noqa: SIM110 - each run asks
            if now.get(key) is not have:
                return False
        return True


def materialising(
    program: Program,
    slot: int | None,
    memory: Memory,
    lane: Callable[[str, int], Backend],
) -> Steps[Layout]:
    """Give a program memory and plans, in small steps.

    Args:
        program: what is to run.
        slot: which memory apart; None for the compact layout.
        memory: the buffers of the scheduler, which grow if they have to.
        lane: the backend that carries a kind of operation out for a backend, by name and index.

    Raises:
        AllocFailed: no memory; what there was is as before.
    """
    maker = Scripting(program, Layout(program, slot), memory, lane)
    for b, kind in enumerate(program.q.types):
        while group := [
            t for t in program.fixed if t.placement is None and program.found.backend[t] == b
        ]:
            with suppress(AlreadyAllocated):  # another task was first with one of them
                yield from kind.allocating(group)
    maker.leafs()
    for i in range(len(program.splits)):
        maker.split(i)
        yield
    yield from maker.place()
    yield
    plans = yield from maker.compile()
    yield
    maker.actions(plans)
    return maker.layout


def measure(program: Program) -> tuple[int, ...]:
    """Bytes of the compact layout for each backend; a type that several share counts for each."""

    def none(name: str, b: int) -> Backend:
        raise AssertionError(f"no lane is needed to measure: {name} {b}")

    maker = Scripting(program, Layout(program, None), Memory(), none)
    maker.leafs()
    for i in range(len(program.splits)):
        maker.split(i)
    types = program.q.types
    leafs = [t for t in maker.twins.values() if t.op == "none"]
    sizes = finish(maker.allocation(leafs, types)).sizes()
    return tuple([sizes[types.index(kind)] for kind in types])
