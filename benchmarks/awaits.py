"""The cost of awaiting native work, compared with anyio.to_thread.run_sync on the same loop.

Each loop has these comparisons: a tiny graph; 200 us of work, measured from its end to the resumed
task, also compared with a bare C thread, once with all workers awake and once after a pause; a
worker that had fallen asleep. A further row tells how long a call of `run` holds the loop. Not
here: work done meanwhile.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import numpy as np

import aggml
from aggml import Backend, Graph, Tensor, ops
from benchmarks.bare_thread import BareThread
from benchmarks.peers import MissingPeerError
from benchmarks.timing import (
    Budget,
    Row,
    Sample,
    absolute,
    computed_in,
    interleaved,
    median,
    progress,
    seconds_of,
    versus,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PART = "await"
TO_THREAD = "to_thread.run_sync"
WORK = 200e-6


async def measure(loop: str, *, quick: bool) -> list[Row]:
    """All rows of this file on the running loop, which is called ``loop``."""
    async with aggml.get_device("CPU").backend() as be:
        graph, x, y = _tiny(be)
        data = np.ones(16, np.float32)
        await be.set(x, data)
        rows = await _tiny_graph(be, graph, loop, 300 if quick else 5000)
        rows += await _after_work(be, loop, 50 if quick else 500)
        rows += await _asleep(be, graph, loop, 20 if quick else 200)
        rows += await _run_call(be, graph, x, y, data, loop, 300 if quick else 5000)
    return rows


def _tiny(be: Backend) -> tuple[Graph, Tensor, Tensor]:
    x = aggml.new_tensor("f32", ne=(16,), name="x").set_input()
    y = ops.add(x, x)
    graph = Graph(y)
    be.alloc_graph(graph)
    return graph, x, y


def _nothing() -> None:
    pass


async def _tiny_graph(be: Backend, graph: Graph, loop: str, rounds: int) -> list[Row]:
    async def ours() -> float:
        start = time.perf_counter()
        await be.graph_compute(graph)
        return time.perf_counter() - start

    async def peer() -> float:
        start = time.perf_counter()
        await anyio.to_thread.run_sync(_nothing)
        return time.perf_counter() - start

    return [
        _compare(f"tiny graph, submit to resumed, {loop}", await _both(ours, peer, rounds), 1 / 8)
    ]


async def _after_work(be: Backend, loop: str, rounds: int) -> list[Row]:
    graph = await _graph_of(be, WORK)
    hash_it = _hash_of(WORK)

    async def ours() -> float:
        future = be.graph_compute(graph)
        await future
        resumed = time.perf_counter()
        return resumed - (future.times.done or math.nan)

    async def peer() -> float:
        done = await anyio.to_thread.run_sync(hash_it)
        return time.perf_counter() - done

    async def awake() -> float:
        await be.graph_compute(graph)  # now no worker sleeps
        return await ours()

    what = f"200 us of work, completion to resumed, {loop}"
    samples = {"aggml": ours, "peer": peer}
    try:
        with BareThread() as thread:
            samples["awake"] = awake
            samples["bare"] = functools.partial(thread.sample, WORK, loop)
            samples["apart"] = functools.partial(thread.sample, WORK, loop, apart=True)
            found = await interleaved(samples, rounds)
    except MissingPeerError as error:
        progress(str(error))
        return [_compare(what, await _both(ours, peer, rounds))]
    return [
        _compare(what, found),
        _beside_bare(f"{what}, all workers awake, bare", found, "awake", "bare"),
        # A worker sleeps, and the one that works does so on another core than the loop's.
        _beside_bare(f"{what}, after a pause, bare", found, "aggml", "apart"),
    ]


def _beside_bare(what: str, found: dict[str, list[float]], ours: str, bare: str) -> Row:
    where = {"bare": "bare C thread, the loop's core", "apart": "bare C thread, another core"}
    peers = {name: median(found[x]) * 1e6 for x, name in where.items()}
    budgets = [Budget(where[bare], "<=", 1.5)]
    return Row(PART, what, median(found[ours]) * 1e6, "us", peers, budgets=budgets)


async def _asleep(be: Backend, graph: Graph, loop: str, rounds: int) -> list[Row]:
    async def ours() -> float:
        await anyio.sleep(0.01)  # it spins for some hundred microseconds, then sleeps
        start = time.perf_counter()
        await be.graph_compute(graph)
        return time.perf_counter() - start

    async def peer() -> float:
        await anyio.sleep(0.01)
        start = time.perf_counter()
        await anyio.to_thread.run_sync(_nothing)
        return time.perf_counter() - start

    return [
        _compare(f"worker asleep, submit to resumed, {loop}", await _both(ours, peer, rounds), 0.4)
    ]


async def _run_call(
    be: Backend, graph: Graph, x: Tensor, y: Tensor, data: np.ndarray, loop: str, rounds: int
) -> list[Row]:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        future = be.run(graph, {x: data}, y)
        taken.append(time.perf_counter() - start)
        await future
    what = f"run again, one input, one output: Python on the loop, {loop}"
    return [absolute(PART, what, median(taken) * 1e6, "us", ("<=", 7))]


async def _both(ours: Sample, peer: Sample, rounds: int) -> dict[str, list[float]]:
    return await interleaved({"aggml": ours, "peer": peer}, rounds)


def _compare(what: str, found: dict[str, list[float]], budget: float | None = None) -> Row:
    ours, peer = (median(found[x]) * 1e6 for x in ("aggml", "peer"))
    limit = None if budget is None else ("<=", budget)
    return versus(PART, what, ours, "us", TO_THREAD, peer, limit)


async def _graph_of(be: Backend, seconds: float) -> Graph:
    """A graph that takes about this long: one product; its columns are added until it does."""
    w = aggml.new_tensor("f32", ne=(256, 256), name="w")
    be.alloc([w])
    await be.memset(w, 0)
    columns = 16
    while True:
        x = aggml.new_tensor("f32", ne=(256, columns), name="x").set_input()
        graph = Graph(ops.mul_mat(w, x))
        be.alloc_graph(graph)
        await be.memset(x, 0)
        spans = []
        for _ in range(9):
            future = be.graph_compute(graph)
            await future
            spans.append(computed_in(future))
        if median(spans) >= seconds or columns > 1 << 20:
            return graph
        columns += columns // 4


def _hash_of(seconds: float) -> Callable[[], float]:
    """Work without the GIL that takes about this long and says when it ended."""
    size = 1 << 16
    while True:
        work = _hashing(bytes(size))
        if median([seconds_of(work) for _ in range(5)]) >= seconds:
            return work
        size += size // 4


def _hashing(data: bytes) -> Callable[[], float]:
    def work() -> float:
        hashlib.sha256(data)
        return time.perf_counter()

    return work
