"""A device of ggml awaited, against the same library called in a thread (anyio.to_thread).

    python -m benchmarks.ggml_devices build/ggml-0.3.36/bin

Here: the time of one tiny graph, and the lag of the loop while large ones run. Not here: kernels.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

import aggml
import aggml.devices.ggml as ggml


class _Params(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("memory", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Direct:
    """A product of squares on ggml's CPU, by its own functions, memory in ggml's context."""

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
        """Once, without the GIL."""
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


async def _measure(folder: Path) -> None:
    device = next(d for d in ggml.load(folder) if d.name == "ggml:CPU")
    for n in (16, 1024):
        direct = Direct(folder, n, 1)
        a, b = aggml.new_tensor("f32", ne=(n, n)), aggml.new_tensor("f32", ne=(n, n))
        graph = aggml.Graph(aggml.ops.mul_mat(a, b))
        async with device.backend(n_threads=1) as be:
            be.alloc_graph(graph)
            for tensor in (a, b):
                await be.set(tensor, np.zeros((n, n), np.float32))

            async def awaited(be: Any = be, graph: Any = graph) -> None:
                await be.graph_compute(graph)

            async def threaded(direct: Direct = direct) -> None:
                await anyio.to_thread.run_sync(direct.compute)

            for name, call in (("awaited", awaited), ("to_thread", threaded)):
                await _microseconds(call, 20)
                took = await _microseconds(call, 2000 if n < 100 else 20)
                median, late = await _lag(call, 2.0)
                print(f"{n:5} {name:10} {took:9.1f} us   lag {median:.2f} ms, p99 {late:.2f} ms")


def main() -> None:
    """Prints a line for each way and size, on asyncio and trio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/ggml-0.3.36/bin"))
    folder = parser.parse_args().folder
    for loop in ("asyncio", "trio"):
        print(loop)
        anyio.run(_measure, folder, backend=loop)


if __name__ == "__main__":
    main()
