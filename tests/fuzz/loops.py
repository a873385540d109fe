"""Fuzzer: one scheduler and one backend, tasks of several loops and threads, cancelled at random.

Each thread has a loop of its own, of asyncio or trio. Its tasks submit, run, prepare and evaluate
graphs, leave evaluations early, ask for admission, and are cancelled after random checkpoints. A
device is told to fail now and then. Every result that comes is right, nothing hangs, and in the
end everybody may submit. Not here: one loop (cancellation.py), threads on backends (threads.py).
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
from fuzz.rounds import Report, one_by_one

import aggml
from aggml import Graph, Scheduler, new_tensor, ops
from aggml.devices.sim import SimDevice

__all__ = ["SHORT", "run"]

SHORT = 6
N = 6
PATIENCE_S = 60
KINDS = ("run", "run", "submit", "prepare", "evaluate", "leave", "drop", "ready")


class _Program:
    """What all threads share."""

    def __init__(self, choose: random.Random) -> None:
        self.sims = [SimDevice("A"), SimDevice("B")]
        self.backends: list[aggml.Backend] = [
            self.sims[0].backend(max_queued=choose.choice((1, 2, None))),
            aggml.get_device("CPU").backend(n_threads=1),
        ]
        self.sched = Scheduler(
            self.backends,
            parallel=choose.choice((True, False)),
            max_in_flight=choose.choice((1, 2, 4)),
        )
        self.faults = choose.random() < 0.4
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.shared = [self.graph(k) for k in range(2)]

    def graph(self, k: int) -> tuple[Graph, aggml.Tensor, aggml.Tensor, float]:
        x = new_tensor("f32", ne=(N,), name="x").set_input()
        middle = ops.scale_bias(x, 2.0, 0.0)
        y = ops.scale_bias(middle, 1.0, float(k))
        self.sched.set_tensor_backend(middle, self.backends[0])
        self.sched.set_tensor_backend(y, self.backends[k % 2])
        return Graph(y), x, y, float(k)

    async def task(self, seed: str) -> None:
        choose = random.Random(seed)
        for _ in range(choose.randrange(1, 6)):
            kind = choose.choice(KINDS)
            self.counts[kind] += 1
            if self.faults and choose.random() < 0.2:
                self.sims[0].fail_at(choose.randrange(4), choose.choice(("transfer", "compute")))
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    if choose.random() < 0.4:
                        tasks.start_soon(self.cancel, scope, choose.randrange(12))
                    await self.one(kind, choose)
                    scope.cancel()

    async def cancel(self, scope: anyio.CancelScope, after: int) -> None:
        for _ in range(after):
            await anyio.lowlevel.checkpoint()
        self.counts["cancelled"] += 1
        scope.cancel()

    async def one(self, kind: str, choose: random.Random) -> None:
        graph, x, y, k = choose.choice(self.shared) if choose.random() < 0.6 else self.graph(3)
        value = np.full(N, choose.randrange(100), np.float32)
        try:
            if kind == "ready":
                await self.backends[0].ready()
                return
            if kind == "prepare":
                await self.sched.prepare(graph)
                return
            if kind in ("evaluate", "leave", "drop"):
                steps = self.sched.evaluate(graph, {x: value})
                if kind == "drop":
                    await anext(steps)
                    return
                async for _, array in steps:  # noqa: B007 the last one is looked at below
                    if kind == "leave":
                        break
                del steps
                if kind == "leave":
                    return
            elif kind == "submit":
                future = await self.sched.submit(graph, {x: value}, y)
                await anyio.lowlevel.checkpoint()
                array = await future
            else:
                array = await self.sched.run(graph, {x: value}, y)
        except aggml.AggmlError as error:
            if not self.faults:
                raise
            self.counts[f"failed: {type(error).__name__}"] += 1
            return
        expected = 2 * value + k
        assert np.array_equal(array, expected), f"{kind}: {array}, not {expected}"  # pyright: ignore[reportPossiblyUnboundVariable]

    def work(self, seeds: list[str], loop: str) -> None:
        async def main() -> None:
            async with anyio.create_task_group() as tasks:
                for seed in seeds:
                    tasks.start_soon(self.task, seed)

        try:
            anyio.run(main, backend=loop)
        except BaseException as error:
            self.problems.append(f"{type(error).__name__}: {error!r}")


async def _program(choose: random.Random) -> Counter[str]:
    program = _Program(choose)
    threads = []
    for _ in range(choose.randrange(2, 4)):
        seeds = [str(choose.random()) for _ in range(choose.randrange(1, 5))]
        loop = choose.choice(("asyncio", "trio"))
        threads.append(threading.Thread(target=program.work, args=(seeds, loop), daemon=True))
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE_S
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join, max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert not program.problems, "; ".join(program.problems)
    for sim in program.sims:
        sim._faults.clear()
    program.faults = False
    with anyio.fail_after(PATIENCE_S):
        await program.one("run", choose)
        await program.one("evaluate", choose)
    program.sched.close()
    for be in program.backends:
        await be.aclose()
    return program.counts


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """See `fuzz.rounds.Fuzzer`. Which thread comes first is the system's choice, not the seed's."""
    return one_by_one(_program, seed, programs, loop, first)
