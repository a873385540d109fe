"""A device of ggml, awaited, compared with the same library called in a thread (anyio).

    nice -n -10 python -m benchmarks.ggml_devices --out benchmarks/results/amd-epyc-zen4-4-ggml.json

Here: the time of one tiny graph, and the lag of the event loop while large graphs run. Not here:
servers (ggml_servers.py), kernels.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

import aggml
import aggml.devices.ggml as ggml
from benchmarks import ggml_servers


class _Params(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("memory", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Direct:
    """A product of square matrices on ggml's CPU, by ggml's own functions."""

    def __init__(self, folder: Path, n: int, threads: int) -> None:
        base: Any = ctypes.CDLL(str(folder / "libggml-base.so"))
        registry: Any = ctypes.CDLL(str(folder / "libggml.so"))
        pointer = ctypes.c_void_p
        for library, names in (
            (base, "ggml_init ggml_new_tensor_2d ggml_mul_mat ggml_new_graph ggml_get_data"),
            (base, "ggml_backend_dev_init ggml_backend_reg_get_proc_address"),
            (base, "ggml_backend_dev_backend_reg"),
            (registry, "ggml_backend_dev_by_name"),
        ):
            for name in names.split():
                getattr(library, name).restype = pointer
        base.ggml_init.argtypes = [_Params]
        context = pointer(base.ggml_init(_Params(3 * 4 * n * n + (1 << 20), None, False)))
        extents = [ctypes.c_int64(n)] * 2
        a, b = (pointer(base.ggml_new_tensor_2d(context, 0, *extents)) for _ in range(2))
        for tensor in (a, b):
            ctypes.memset(base.ggml_get_data(tensor), 0, 4 * n * n)
        self._graph = pointer(base.ggml_new_graph(context))
        base.ggml_build_forward_expand(self._graph, pointer(base.ggml_mul_mat(context, a, b)))
        device = pointer(registry.ggml_backend_dev_by_name(b"CPU"))
        self._backend = pointer(base.ggml_backend_dev_init(device, None))
        of = pointer(base.ggml_backend_dev_backend_reg(device))
        entry = base.ggml_backend_reg_get_proc_address(of, b"ggml_backend_set_n_threads")
        ctypes.CFUNCTYPE(None, pointer, ctypes.c_int)(entry)(self._backend, threads)
        self._compute = base.ggml_backend_graph_compute

    def compute(self) -> None:
        """Compute the product once, without the GIL."""
        self._compute(self._backend, self._graph)


async def _microseconds(call: Any, n: int) -> float:
    times = []
    for _ in range(n):
        start = time.perf_counter()
        await call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


async def _lag(call: Any, seconds: float) -> tuple[float, float]:
    """Median and 99th percentile, in ms, of how late a tick of 1 ms is while calls run."""
    late: list[float] = []
    async with anyio.create_task_group() as group:

        async def work() -> None:
            while True:
                await call()

        group.start_soon(work)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            await anyio.sleep(0.001)
            late.append((time.perf_counter() - start - 0.001) * 1e3)
        group.cancel_scope.cancel()
    late.sort()
    return statistics.median(late), late[int(len(late) * 0.99)]


ROUNDS, WINDOW = 30, 1.0


async def _ways(folder: Path, be: Any, n: int, threads: int) -> dict[str, Any]:
    """The same product, awaited and in a thread."""
    direct = Direct(folder, n, threads)
    a, b = aggml.new_tensor("f32", ne=(n, n)), aggml.new_tensor("f32", ne=(n, n))
    graph = aggml.Graph(aggml.ops.mul_mat(a, b))
    be.alloc_graph(graph)
    for tensor in (a, b):
        await be.set(tensor, np.zeros((n, n), np.float32))

    async def awaited() -> None:
        await be.graph_compute(graph)

    async def threaded() -> None:
        await anyio.to_thread.run_sync(direct.compute)

    return {"awaited": awaited, "in a thread": threaded}


async def _latency(folder: Path, device: Any) -> dict[str, Any]:
    """Microseconds of a tiny graph, one thread; medians of blocks in turns."""
    async with device.backend(n_threads=1) as be:
        ways = await _ways(folder, be, 16, 1)
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(10):
            for name, call in ways.items():
                took[name].append(await _microseconds(call, 200))
    return {f"tiny graph: us, {k}": round(statistics.median(v), 1) for k, v in took.items()}


async def _lags(folder: Path, device: Any, threads: int) -> dict[str, Any]:
    """Lag in ms while products of 1024 x 1024 run, and while nothing does; rounds in turns."""
    late: dict[str, list[tuple[float, float]]] = {}
    async with device.backend(n_threads=threads) as be:
        ways = await _ways(folder, be, 1024, threads)
        ways["idle"] = anyio.sleep_forever
        for _ in range(ROUNDS):
            for name, call in ways.items():
                late.setdefault(name, []).append(await _lag(call, WINDOW))
    found: dict[str, Any] = {"threads": threads, "rounds in turns": ROUNDS}
    for name, rounds in late.items():
        for what, values in zip(("median", "p99"), zip(*rounds, strict=True), strict=True):
            found[f"lag of 1 ms, {name}: {what}, ms"] = round(statistics.median(values), 3)
    return found


async def _measure(folder: Path) -> dict[str, Any]:
    device = next(d for d in ggml.load(folder) if d.name == "ggml:CPU")
    cores = len(os.sched_getaffinity(0))
    return await _latency(folder, device) | await _lags(folder, device, max(1, cores - 1))


async def _servers(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, seconds in (("", 0.0), (", 1 ms there and back", 1e-3)):
        with ggml_servers.server(folder, round_trip=seconds) as device:
            found[f"a server{name}"] = await ggml_servers.ahead(device)
    return found | {"two servers": await ggml_servers.two_servers(folder)}


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/ggml-0.3.36/bin"))
    parser.add_argument("--out", type=Path, help="a file for the figures")
    parser.add_argument("--machine", default="AMD EPYC (Zen 4), 4 virtual cores")
    given = parser.parse_args()
    found: dict[str, Any] = {
        "machine": given.machine,
        "ggml": "0.25.3 (llama-cpp-python 0.3.36)",
        "load at the start": round(os.getloadavg()[0], 1),
    }
    for loop in ("asyncio", "trio"):
        found[f"ggml's CPU, {loop}"] = anyio.run(_measure, given.folder, backend=loop)
    found |= anyio.run(_servers, given.folder)
    found["load at the end"] = round(os.getloadavg()[0], 1)
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
