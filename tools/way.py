"""The way of a graph through a backend and a scheduler: the functions that are entered, in order.

    python tools/way.py           # counts, the first time and again
    python tools/way.py --calls   # each function that is entered

If the next function that is entered belongs to another room, that is a move; a climb is a move to a
row above (the rows of tools/rooms.py). Returning to a caller is neither: what counts is where the
work goes on. Not counted: native functions, numpy.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rooms import ROW, room_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "aggml"
T = TypeVar("T")


class Call(NamedTuple):
    """A function that was entered."""

    room: str
    module: str
    name: str


class Way(NamedTuple):
    """The functions that were entered, in order."""

    calls: list[Call]

    @property
    def moves(self) -> list[tuple[Call, Call]]:
        """The moves from one room to another."""
        pairs = zip(self.calls, self.calls[1:], strict=False)
        return [(a, b) for a, b in pairs if a.room != b.room]

    @property
    def climbs(self) -> list[tuple[Call, Call]]:
        """The moves to a row above."""
        return [(a, b) for a, b in self.moves if ROW[b.room] > ROW[a.room]]

    def __str__(self) -> str:
        return f"{len(self.calls)} calls, {len(self.moves)} moves, {len(self.climbs)} climbs"


def way_of(function: Callable[[], object]) -> Way:
    """Call a function and note all functions of the package that are entered meanwhile."""
    calls: list[Call] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{PACKAGE}/"):
            module = ".".join(Path(path).relative_to(ROOT).with_suffix("").parts)
            calls.append(Call(room_of(module, "aggml"), module, frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return Way(calls)


def ways() -> dict[str, Way]:
    """The ways of `run` and `graph_compute` with one small graph, the first time and again."""
    import numpy as np

    import aggml

    with aggml.get_device("CPU").backend(n_threads=1) as backend:
        x = aggml.new_tensor("f32", ne=(8, 2), name="x").set_input()
        w = aggml.new_tensor("f32", ne=(8, 4), name="w")
        y = aggml.ops.mul_mat(w, x).set_name("y")
        graph = aggml.Graph(y)
        backend.alloc([w])
        backend.alloc_graph(graph)
        backend.set(w, np.ones((4, 8), np.float32)).get()
        ones = np.ones((2, 8), np.float32)
        asked: dict[str, Callable[[], aggml.Future[object]]] = {
            "run": lambda: backend.run(graph, {"x": ones}, "y"),
            "run, a list, another shape": lambda: backend.run(graph, {x: ones}, [y], shape=[(8,)]),
            "run, x as before": lambda: backend.run(graph, {}, y, reuse=["x"]),
            "graph_compute": lambda: backend.graph_compute(graph),
        }
        found = {}
        for name, ask in asked.items():
            found[f"{name}: first"] = way_of(ask)
            found[f"{name}: again"] = way_of(ask)
        backend.synchronize().wait()
    return found


def _finish(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine that only yields to the loop, without a loop: only its own calls count."""
    try:
        while True:
            if coroutine.send(None) is not None:
                raise RuntimeError("it waits for more than its turn")
    except StopIteration as done:
        result: T = done.value
        return result


def _submitted(submission: Coroutine[object, object, T], futures: list[T]) -> None:
    futures.append(_finish(submission))


async def _scheduled() -> dict[str, Way]:
    import numpy as np

    import aggml

    found = {}
    cpu = aggml.get_device("CPU")
    async with cpu.backend(n_threads=1) as backend, aggml.Scheduler([backend]) as scheduler:
        x = aggml.new_tensor("f32", ne=(8, 2), name="x").set_input()
        w = aggml.new_tensor("f32", ne=(8, 4), name="w")
        graph = aggml.Graph(aggml.ops.mul_mat(w, x).set_name("y"))
        backend.alloc([w])
        await backend.set(w, np.ones((4, 8), np.float32))
        ones = np.ones((2, 8), np.float32)
        # The first submission plans, the second prepares, the third repeats.
        for turn in ("first", "second", "again"):
            futures: list[aggml.Future[object]] = []
            submission = scheduler.submit(graph, {"x": ones}, "y")
            found[f"submit: {turn}"] = way_of(partial(_submitted, submission, futures))
            await futures[0]
            run = partial(scheduler.run, graph, {"x": ones}, "y")
            found[f"scheduler.run: {turn}"] = way_of(run)
            await scheduler.synchronize()
    return found


def scheduled() -> dict[str, Way]:
    """The ways of `Scheduler.submit` with one small graph and one backend.

    Planning yields to the event loop whenever a slice of time is over. On a busy machine that would
    happen more often and count as more climbs. So slices last 60 s here.
    """
    from aggml.stream import slices

    with mock.patch.object(slices, "SLICE_S", 60.0):
        return asyncio.run(_scheduled())


def main() -> None:
    """Print the ways."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", action="store_true", help="each function that is entered")
    calls = parser.parse_args().calls
    for name, way in (ways() | scheduled()).items():
        print(f"{name:34} {way}")
        for call in way.calls if calls else ():
            print(f"    {call.room:12} {call.module.removeprefix('aggml.')}.{call.name}")


if __name__ == "__main__":
    main()
