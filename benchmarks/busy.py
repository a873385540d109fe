"""The cost of a second process that burns one core: it is pinned to the first usable core.

Measured in turns, with the burner stopped and with it running. For tokens of one sequence, ours and
llama.cpp's, the figure is the share of the throughput that is lost, minus the share of the
processor that the burner took. A program that uses the rest of the processor has 0. A program whose
threads wait for each other has much more. For a graph of small and large nodes the figure is its
time beside the burner, divided by the time of one thread without the burner. Not here: throughput
without a burner (generation.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

import aggml
from aggml import DType, Graph, ops
from benchmarks import model_files
from benchmarks.generation import CTX, PEER, Peer
from benchmarks.models import load_decoder, open_model
from benchmarks.peers import MissingPeerError
from benchmarks.timing import Budget, Row, computed_in, median, progress, versus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

PART: Final = "busy"
DTYPE: Final = "q8_0"
MANY: Final = 7000  # rows of 64; gelu takes some 200 us for them
STEPS: Final = 24  # tokens in a turn, which takes about half a second
ROUNDS: Final = 9
MOST: Final = 0.2  # largest share of the throughput lost, beyond the burner's share
# The burner ends with its parent, even if that is killed.
BURN: Final = "import ctypes\nctypes.CDLL(None).prctl(1, 9)\nwhile True: pass"


async def measure(threads: int, *, quick: bool, missing: list[str]) -> list[Row]:
    """A row for the graph, and one for tokens."""
    if not hasattr(os, "sched_setaffinity"):
        missing.append(f"{PART}: this system pins no process to a core")
        return []
    progress(f"{PART}: small and large nodes")
    mixed = await _mixed(threads, rounds=2 if quick else ROUNDS)
    return [mixed, *await _tokens(threads, quick=quick, missing=missing)]


def _small_and_large() -> Graph:
    """20 times: 25 nodes of some 0.3 us, one after the other, then one node of some 200 us."""
    weights = aggml.new_tensor(DType.F32, ne=(64, 64), name="weights")
    many = aggml.new_tensor(DType.F32, ne=(64, MANY), name="many")
    y = aggml.new_tensor(DType.F32, ne=(64,), name="x")
    for _ in range(20):
        for _ in range(25):
            y = ops.mul_mat(weights, y)
        y = ops.view_1d(ops.gelu(ops.add(many, y)), 64, 0)
    return Graph(y)


async def _mixed(threads: int, rounds: int) -> Row:
    quiet, beside = [], []
    device = aggml.get_device("CPU")
    with _burner() as burner:
        async with device.backend(n_threads=1) as one, device.backend(n_threads=threads) as all_:
            graphs = [(backend, _small_and_large()) for backend in (one, all_)]
            for backend, graph in graphs:
                await backend.prepare(graph)
                for t in graph.leafs:
                    await backend.memset(t, 0)

            async def turn(which: int) -> float:
                backend, graph = graphs[which]
                spans = []
                for _ in range(50):
                    future = backend.graph_compute(graph)
                    await future
                    spans.append(computed_in(future))
                return 1e3 * sum(spans) / len(spans)

            await turn(1)
            for _ in range(rounds):
                quiet.append(await turn(0))
                burner.send_signal(signal.SIGCONT)
                beside.append(await turn(1))
                burner.send_signal(signal.SIGSTOP)
    what = f"20 x 25 small nodes and a large one, {threads} threads beside a busy process"
    peer = "one thread in quiet"
    return versus(PART, what, median(beside), "ms", peer, median(quiet), ("<=", 1.05))


async def _tokens(threads: int, *, quick: bool, missing: list[str]) -> list[Row]:
    shape = model_files.SMALL if quick else model_files.LARGE
    try:
        path = model_files.llama_file(DTYPE, shape)
    except MissingPeerError as error:
        missing.append(f"{PART}: {error}")
        return []
    progress(f"{PART}: {DTYPE}")
    ids = np.random.default_rng(1).integers(0, shape.vocabulary, (STEPS, 1)).tolist()
    peer = Peer(path, threads, shape)
    async with aggml.get_device("CPU").backend(n_threads=threads) as backend:
        with await open_model(path) as file:
            model = await load_decoder(backend, file, ctx=CTX)

        async def ours() -> None:
            for i, tokens in enumerate(ids):
                await model.decode(tokens, [i])

        async def theirs() -> None:
            peer.call("begin")
            peer.call("steps", ids)

        try:
            own = await _beyond(ours, rounds=2 if quick else ROUNDS)
            peers = {}
            if peer.child is None:
                missing.append(f"{PEER}: {peer.note}")
            else:
                peers[PEER] = await _beyond(theirs, rounds=2 if quick else ROUNDS)
        finally:
            peer.close()
    what = f"one sequence, {DTYPE}, beside a busy process: lost beyond its share"
    budgets = () if quick else (Budget("", "<=", 100 * MOST),)
    percent = {name: 100 * value for name, value in peers.items()}
    return [Row(PART, what, 100 * own, "%", percent, {}, budgets, peer.note)]


async def _beyond(work: Callable[[], Awaitable[None]], rounds: int) -> float:
    """The share of throughput lost beside the burner, minus its share of the processor: median."""
    found = []
    with _burner() as burner:
        await work()
        for _ in range(rounds):
            start = time.perf_counter()
            await work()
            quiet = time.perf_counter() - start
            burner.send_signal(signal.SIGCONT)
            before, start = _processor_time(burner.pid), time.perf_counter()
            await work()
            beside = time.perf_counter() - start
            taken = (_processor_time(burner.pid) - before) / (beside * len(os.sched_getaffinity(0)))
            burner.send_signal(signal.SIGSTOP)
            found.append(1 - quiet / beside - taken)
    return median(found)


@contextlib.contextmanager
def _burner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that can burn the first usable core; it is stopped at first."""
    with subprocess.Popen([sys.executable, "-c", BURN]) as process:
        try:
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
            time.sleep(0.3)  # until it has begun
            process.send_signal(signal.SIGSTOP)
            yield process
        finally:
            process.kill()


def _processor_time(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
