"""``python -m benchmarks.many_awaits``: a million awaits on each kind of loop, in three threads.

Tasks of several loops await runs, reads, calls of Python, delays and failures, their own and those
of other tasks. They are cancelled, run out of time, and hand Futures to other threads. Every await
has to give the right result, and memory must not grow. Not here: what an await costs (awaits.py).
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np

import aggml
from aggml import Graph, ops
from aggml.devices.cpu import CPUDevice
from aggml.devices.sim import SimDevice

N = 16
THREADS = 3
CLIENTS = 32
LOST = 120.0  # seconds after which an await counts as lost

Array = np.ndarray[Any, Any]


def resident() -> int:
    """Bytes of resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return 0


class Worker:
    """A backend with a placed graph, y = 2 x, and a vector that is read."""

    def __init__(self, be: aggml.Backend) -> None:
        self.be = be
        self.x = aggml.new_tensor("f32", ne=(N,), name="x").set_input()
        self.y = ops.add(self.x, self.x)
        self.graph = Graph(self.y)
        be.alloc_graph(self.graph)
        self.kept = aggml.new_tensor("f32", ne=(N,), name="kept")
        be.alloc([self.kept])
        be.set(self.kept, vector(1)).get()

    def queue(self, dice: random.Random) -> tuple[str, aggml.Future[Any], Any]:
        """Queue an operation; returns its name, its Future, and the result that it must have."""
        value = dice.randrange(1000)
        what = dice.choices(["run", "get", "call", "fail", "delay"], [8, 4, 1, 1, 1])[0]
        if what == "run":
            x = vector(value)
            return what, self.be.run(self.graph, {self.x: x}, self.y), 2 * x
        if what == "get":
            return what, self.be.get(self.kept), vector(1)
        if what == "call":
            return what, self.be.stream.call(abs, -value), value
        if what == "fail":
            return what, self.be.stream.fail(KeyError(value)), value
        return what, self.be.stream.delay(value * 1e-8), None


def vector(start: int) -> Array:
    return np.arange(N, dtype=np.float32) + start


class Soak:
    """The work with one kind of loop, in several threads, until a number of awaits are done."""

    def __init__(self, loop: str, awaits: int, seed: int) -> None:
        self.loop, self.awaits, self.seed = loop, awaits, seed
        pool = aggml.ThreadPool(2)
        cpu, sim = aggml.get_device("CPU"), SimDevice(latency=1e-5)
        assert isinstance(cpu, CPUDevice)
        self.workers = [Worker(cpu.backend(pool=pool)) for _ in range(2)]
        self.workers += [Worker(sim.backend(pool=pool)) for _ in range(2)]
        self.counts = [Counter[str]() for _ in range(THREADS)]
        self.handed: deque[tuple[str, aggml.Future[Any], Any]] = deque()
        self.wrong: list[str] = []

    def total(self) -> int:
        return sum(counts["awaits"] for counts in self.counts)

    def judge(self, what: str, wanted: object, value: object, error: Exception | None) -> str:
        if error is None:
            right = np.array_equal(value, wanted) if what in ("run", "get") else value == wanted  # type: ignore[arg-type]
            if what == "fail" or not right:
                self.wrong.append(f"{what}: {value!r} and not {wanted!r}")
            return "values"
        if isinstance(error, aggml.Aborted) and what == "run":
            return "aborted"
        root = error.__cause__
        if what != "fail" or not isinstance(root, KeyError) or root.args != (wanted,):
            self.wrong.append(f"{what}: {error!r}")
        return "failures"

    async def client(self, dice: random.Random, counts: Counter[str]) -> None:
        while self.total() < self.awaits and not self.wrong:
            if self.handed and dice.random() < 0.2:
                try:
                    work = self.handed.popleft()
                    counts["taken over"] += 1
                except IndexError:  # another thread has taken it
                    continue
            else:
                work = dice.choice(self.workers).queue(dice)
                if dice.random() < 0.1 and len(self.handed) < 1000:
                    self.handed.append(work)
            what, future, wanted = work
            how = dice.random()
            limit = dice.choice([0.0, 1e-5, 1e-4]) if how < 0.15 else LOST
            with anyio.move_on_after(limit) as scope:
                if 0.15 <= how < 0.3:
                    self.tasks[threading.get_ident()].start_soon(cancel, scope, dice.randrange(6))
                try:
                    if how > 0.9:
                        value = await future.shield()
                    elif how > 0.8:
                        value = (await aggml.gather(future))[0]
                    else:
                        value = await future
                except aggml.AggmlError as error:
                    counts[self.judge(what, wanted, None, error)] += 1
                else:
                    counts[self.judge(what, wanted, value, None)] += 1
            counts["awaits"] += 1
            if scope.cancelled_caught:
                counts["cancelled" if how >= 0.15 else "timed out"] += 1
                if limit == LOST and how >= 0.3:
                    self.wrong.append(f"{what}: {future!r} is lost")

    async def clients(self, i: int) -> None:
        async with anyio.create_task_group() as tasks:
            self.tasks[threading.get_ident()] = tasks
            for k in range(CLIENTS):
                dice = random.Random(f"{self.seed} {self.loop} {i} {k}")
                tasks.start_soon(self.client, dice, self.counts[i])

    def run(self) -> bool:
        """Do all the work and print the figures; returns whether all results were right."""
        self.tasks: dict[int, Any] = {}
        threads = [
            threading.Thread(
                target=anyio.run, args=(self.clients, i), kwargs={"backend": self.loop}
            )
            for i in range(THREADS)
        ]
        began, marks = time.monotonic(), []
        for thread in threads:
            thread.start()
        for share in range(1, 11):
            while self.total() < self.awaits * share // 10 and any(t.is_alive() for t in threads):
                time.sleep(0.05)
                for worker in self.workers:  # failures of cancelled waits are kept until asked for
                    self.counts[0]["unseen"] += len(worker.be.stream.failures())
            marks.append(resident() >> 10)
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
        while self.handed:
            what, future, wanted = self.handed.popleft()
            try:
                self.judge(what, wanted, future.get(LOST), None)
            except (aggml.AggmlError, TimeoutError) as error:
                self.judge(what, wanted, None, error)
        for worker in self.workers:
            worker.be.stream.failures()
            run = worker.be.run(worker.graph, {worker.x: vector(3)}, worker.y)
            self.judge("run", 2 * vector(3), run.get(LOST), None)
            worker.be.close()
        gc.collect()
        counts = sum(self.counts, Counter[str]())
        told = ", ".join(f"{counts[name]:,} {name}" for name in sorted(counts))
        print(f"{self.loop}: {told}; {len(self.wrong)} wrong or lost; {took:.0f} s")
        print(f"{self.loop}: kB resident at each tenth: {' '.join(map(str, marks))}", flush=True)
        for line in self.wrong[:5]:
            print(f"  {line}")
        return not self.wrong


async def cancel(scope: anyio.CancelScope, turns: int) -> None:
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--awaits", type=int, default=1_000_000, help="how many, on each loop")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loop", choices=("asyncio", "trio"), action="append")
    given = parser.parse_args()
    gc.freeze()
    right = [
        Soak(loop, given.awaits, given.seed).run() for loop in given.loop or ("asyncio", "trio")
    ]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
