"""Servers of ggml's RPC: the time that issuing ahead saves, and how two servers overlap.

Issuing ahead: operations are sent before the earlier ones are done. The servers are processes of
this machine, some behind a proxy with a delay. Not here: the lag of the loop (ggml_devices.py).
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

import aggml
import aggml.devices.ggml as ggml
from aggml import Graph, Tensor, ops
from aggml.devices.ggml.backend import GgmlBackend
from aggml.devices.ggml.memory import result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BLOCKS, TIMES = 20, 20  # blocks in turns, and measurements in each
ROUNDS = 15
K, COLUMNS = 1024, 2048


def _port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _await_port(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.05)
    raise RuntimeError(f"nobody answers on port {port}")


@contextlib.contextmanager
def server(folder: Path, *, round_trip: float = 0.0) -> Iterator[Any]:
    """The device of a new server, one thread of ggml's CPU.

    Args:
        folder: where ggml's libraries and the server's program are.
        round_trip: seconds that the proxy adds to the way there and back.
    """
    port, near = _port(), _port()
    options = ["--port", str(port), "--threads", "1", "--device", "CPU"]
    quiet = subprocess.DEVNULL
    processes = [
        subprocess.Popen([str(folder / "ggml-rpc-server"), *options], stdout=quiet, stderr=quiet)
    ]
    try:
        _await_port(port)
        if round_trip:
            line = ["-m", "benchmarks.delay", str(near), str(port), str(round_trip / 2)]
            processes.append(subprocess.Popen([sys.executable, *line]))
            _await_port(near)
            port = near
        yield ggml.connect(f"127.0.0.1:{port}")[0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


# -- issuing ahead


def _triple(be: GgmlBackend, x: Tensor, y: Tensor, graph: Graph, data: Any) -> Any:
    """Set, compute, get; returns the Future of the result."""
    be.set(x, data)
    be.graph_compute(graph)
    return be.get(y)


async def _block(device: Any, *, issue_ahead: bool) -> dict[int, list[float]]:
    """Microseconds of one, and of three, times set, tiny graph, get; only the last is awaited."""
    be = GgmlBackend(device, result_of(device.native.stream("ahead", 1, issue_ahead)), None)
    x = aggml.new_tensor("f32", ne=(4,))
    y = ops.scale(x, 2.0)
    graph = Graph(y)
    be.alloc([x])
    be.alloc_graph(graph)
    data = np.ones(4, np.float32)
    took: dict[int, list[float]] = {1: [], 3: []}
    for n, times in took.items():
        for k in range(TIMES + 5):
            start = time.perf_counter()
            await [_triple(be, x, y, graph, data) for _ in range(n)][-1]
            if k >= 5:
                times.append((time.perf_counter() - start) * 1e6)
    await be.aclose()
    return took


async def ahead(device: Any) -> dict[str, Any]:
    """Measure with and without issuing ahead in turns, one backend at a time."""
    found: dict[tuple[bool, int], list[list[float]]] = {}
    for block in range(BLOCKS):
        for issue_ahead in (block % 2 == 0, block % 2 != 0):
            for n, times in (await _block(device, issue_ahead=issue_ahead)).items():
                found.setdefault((issue_ahead, n), []).append(times)
    figures: dict[str, Any] = {}
    for n in (1, 3):
        medians = {x: [statistics.median(b) for b in found[x, n]] for x in (True, False)}
        every = {x: statistics.median([t for b in found[x, n] for t in b]) for x in (True, False)}
        figures[f"{n} times set, graph, get: us, ahead"] = round(every[True], 1)
        figures[f"{n} times set, graph, get: us, one by one"] = round(every[False], 1)
        figures[f"{n} times set, graph, get: ratio"] = round(every[False] / every[True], 3)
        won = sum(a < b for a, b in zip(medians[True], medians[False], strict=True))
        figures[f"{n} times set, graph, get: blocks in which ahead was faster"] = won
    return figures | {"blocks": BLOCKS, "measurements in a block": TIMES}


# -- two servers


class _Stage:
    """Two products of 1024 x 1024 with 2048 columns; inputs and results are 8 MB."""

    def __init__(self, device: Any) -> None:
        self.be = device.backend()
        w = aggml.new_tensor("f32", ne=(K, K))
        self.x = aggml.new_tensor("f32", ne=(K, COLUMNS))
        self.y = ops.mul_mat(w, ops.mul_mat(w, self.x))
        self.graph = Graph(self.y)
        self.be.alloc([w, self.x])
        self.be.alloc_graph(self.graph)
        self.weights = w

    async def fill(self) -> None:
        """Set the weights."""
        await self.be.set(self.weights, np.random.default_rng(0).random((K, K), np.float32) / K)

    def start(self, data: Any) -> Any:
        """Start one item; returns the Future of its result."""
        self.be.set(self.x, data)
        self.be.graph_compute(self.graph)
        return self.be.get(self.y)


async def _seconds(rounds: int, *calls: Callable[[], Any]) -> list[list[float]]:
    took: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for times, call in zip(took, calls, strict=True):
            start = time.perf_counter()
            await call()
            times.append(time.perf_counter() - start)
    return took


async def two_servers(folder: Path) -> dict[str, Any]:
    """Four items on two servers; six items through both: one after the other, and overlapped."""
    data = np.random.default_rng(1).random((COLUMNS, K), np.float32)
    with server(folder) as one, server(folder) as other:
        a, b = _Stage(one), _Stage(other)
        for stage in (a, b):
            await stage.fill()
            await stage.start(data)

        async def serial() -> None:
            for stage in (a, b, a, b):
                await stage.start(data)

        async def overlapped() -> None:
            for future in [stage.start(data) for stage in (a, b, a, b)]:
                await future

        async def chain() -> None:
            for _ in range(6):
                await b.start(await a.start(data))

        async def pipeline() -> None:
            into, out_of = anyio.create_memory_object_stream[Any](2)

            async def first() -> None:
                with into:
                    for _ in range(6):
                        await into.send(await a.start(data))

            async with anyio.create_task_group() as group, out_of:
                group.start_soon(first)
                async for item in out_of:
                    await b.start(item)

        took = await _seconds(ROUNDS, serial, overlapped, chain, pipeline)
        await a.be.aclose()
        await b.be.aclose()
    s, o, c, p = (statistics.median(times) * 1e3 for times in took)
    return {
        "four items: ms, one after the other": round(s, 1),
        "four items: ms, overlapped": round(o, 1),
        "four items: ratio": round(s / o, 3),
        "six items through both: ms, one after the other": round(c, 1),
        "six items through both: ms, pipeline": round(p, 1),
        "six items through both: ratio": round(c / p, 3),
        "rounds in turns": ROUNDS,
    }
