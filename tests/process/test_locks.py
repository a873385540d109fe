"""Locks: process/locks.py makes all of them; no finalizer waits for one that its thread holds."""

from __future__ import annotations

import ast
import gc
import re
import sys
import weakref
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio
import numpy as np
import pytest
from support import N, in_a_thread, ramp, sum_on

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice
from aggml.process import locks
from aggml.stream.admission import Admission
from aggml.stream.fifo import FifoLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

PACKAGE = Path(aggml.__file__).parent
FORBIDDEN = {
    "threading": {
        "Lock",
        "RLock",
        "Condition",
        "Event",
        "Semaphore",
        "BoundedSemaphore",
        "Barrier",
    },
    "_thread": {"allocate_lock", "RLock", "LockType"},
    "queue": {"Queue", "SimpleQueue", "LifoQueue", "PriorityQueue"},
    "multiprocessing": {"Lock", "RLock", "Condition", "Event", "Queue"},
}
HOME = PACKAGE / "process" / "locks.py"


def forbidden(source: str) -> list[int]:
    """The lines that make a lock, or what contains one, by another way than process/locks.py."""
    tree = ast.parse(source)
    names: dict[str, str] = {}  # as the file calls it: the module
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN:
            lines += [node.lineno for a in node.names if a.name in FORBIDDEN[node.module]]
    lines += [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in FORBIDDEN.get(names.get(node.value.id, ""), ())
        and isinstance(node.ctx, ast.Load)
    ]
    return lines


def annotated(source: str) -> set[int]:
    """The lines of annotations, which make nothing."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if part is not None:
                found.add(part.lineno)
    return found


def test_the_lint_finds_what_it_is_for() -> None:
    assert forbidden("import threading as t\na = t.Lock()") == [2]
    assert forbidden("from threading import Thread, RLock") == [1]
    assert forbidden("import queue\n\nx = [queue.SimpleQueue()]") == [3]
    assert forbidden("import threading\nthreading.Thread()") == []


@pytest.mark.long
def test_all_locks_are_released_in_the_child_of_a_fork() -> None:
    found = []
    word = re.compile("|".join(sorted(set().union(*FORBIDDEN.values()))))
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        if path != HOME and word.search(source):  # else there is nothing to find in its tree
            lines = set(forbidden(source)) - annotated(source)
            found += [f"{path.relative_to(PACKAGE)}:{line}" for line in sorted(lines)]
    assert found == [], "use process/locks.py: new_lock, new_rlock"


# -- finalizers


class _Trap:
    """Drops garbage with finalizers, and collects it, at each line that runs with a lock held."""

    def __init__(self, make: Callable[[], list[Any]], device: SimDevice) -> None:
        self.make, self.device = make, device
        self.ready: list[list[Any]] = []
        self.sprung = 0
        self.at: set[str] = set()
        self.places: Counter[tuple[str, int]] = Counter()

    def __enter__(self) -> Self:
        self.ready = [self._cycle() for _ in range(150)]
        gc.disable()
        sys.settrace(self._call)
        return self

    def _cycle(self) -> list[Any]:
        cycle = self.make()
        cycle.append(cycle)
        return cycle

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()
        self.ready.clear()
        gc.collect()

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(f"{PACKAGE}/") else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        place = frame.f_code.co_filename, frame.f_lineno
        if self.places[place] < 2 and self.ready and any(map(_held, list(locks._locks))):
            self.places[place] += 1
            self.sprung += 1
            self.at.add(Path(frame.f_code.co_filename).stem)
            self.ready.pop()
            sys.settrace(None)
            try:
                gc.collect(0 if self.sprung % 8 else 2)
            finally:
                sys.settrace(self._call)
        return self._line


def _held(lock: Any) -> bool:
    owned = getattr(lock, "_is_owned", None)
    return bool(owned()) if owned is not None else bool(lock.locked())


@pytest.fixture
def trap() -> Iterator[_Trap]:
    device = SimDevice("SIM")
    be = device.backend()
    cpu = aggml.get_device("CPU").backend(n_threads=1)
    sched = Scheduler([be, cpu])
    s = sum_on(cpu)
    admission, turns = Admission(1), FifoLock()
    tensor_of_callbacks = new_tensor("f32", ne=(N,))

    def make() -> list[Any]:
        """One of each object of ours that has a finalizer, none of them finished."""
        tensor = new_tensor("f32", ne=(N,))
        be.alloc([tensor])
        x = new_tensor("f32", ne=(N,)).set_input()
        graph = Graph(ops.neg(x))
        completions: Any = aggml.as_completed([s.run(cpu, ramp(), ramp())])
        other = device.backend()
        return [
            tensor,
            graph,
            completions,
            sched.evaluate(graph, {x: ramp()}),
            admission.admit(),
            turns.acquire(),
            other,
            weakref.ref(graph, lambda _: (device.memory(), Graph(ops.neg(tensor_of_callbacks)))),
        ]

    yield _Trap(make, device)
    sched.close()
    be.close()
    cpu.close()


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_finalizers_may_run_wherever_a_lock_is_held(trap: _Trap, loop: str) -> None:
    device = trap.device  # the same as that of the garbage, and so the same locks

    async def main() -> None:
        backends = [device.backend(max_queued=2), aggml.get_device("CPU").backend(n_threads=1)]
        sched = Scheduler(backends, max_in_flight=2)
        with trap:
            for k in range(6):
                tensor = new_tensor("f32", ne=(N + k,))
                backends[0].alloc([tensor])
                await backends[0].ready()
                await backends[0].set(tensor, ramp(N + k))
                x = new_tensor("f32", ne=(N + k,), name="x").set_input()
                y = ops.neg(x)
                graph = Graph(y)
                sched.set_tensor_backend(y, backends[k % 2])
                value = ramp(N + k)
                assert np.array_equal(await sched.run(graph, {x: value}, y), -value)
                assert np.array_equal(await sched.run(graph, {x: value}, y), -value)
                async for _ in sched.evaluate(graph, {x: value}):
                    break
                assert await backends[1].stream.call(lambda: 7) == 7
                device.fail_at(3, "alloc")
                device._faults.clear()
        sched.close()
        for be in backends:
            await be.aclose()

    in_a_thread(lambda: anyio.run(main, backend=loop))
    assert trap.sprung > 60
    assert {"admission", "__init__", "planner", "submitter", "faults"} <= trap.at
