"""Helpers of the GPU benchmarks: timing, operands, plain copies, the time of one node.

Not here: the measurements (gpu.py, gpu_kernels.py).
"""

from __future__ import annotations

import importlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import aggml
from aggml import Graph
from benchmarks.model_files import stored
from benchmarks.timing import median

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aggml import Backend, Device, Tensor

RESULTS: Final = Path(__file__).resolve().parent / "results"
MIB: Final = 1 << 20


async def timed(rounds: int, work: Callable[[], Awaitable[object]]) -> float:
    """Median seconds of ``work``, after two runs that do not count."""
    found = []
    for i in range(rounds + 2):
        start = time.perf_counter()
        await work()
        if i >= 2:
            found.append(time.perf_counter() - start)
    return median(found)


def leaf(be: Backend, dtype: str, ne: Sequence[int], name: str) -> Tensor:
    """A tensor in memory of the backend, with random numbers: with zeros a GPU is faster."""
    tensor = aggml.new_tensor(dtype, ne=tuple(ne), name=name)
    be.alloc([tensor])
    if dtype == "i8":
        be.memset(tensor, 0x5A)
        return tensor
    rows = math.prod(tensor.ne[1:])
    some = np.random.default_rng(len(name)).standard_normal((min(rows, 256), tensor.ne[0]))
    raw = np.ascontiguousarray(stored(some.astype(np.float32), dtype)).view(np.uint8)
    piece = raw.reshape(-1)
    for at in range(0, tensor.nbytes, piece.nbytes):
        n = min(piece.nbytes, tensor.nbytes - at)
        be.set(tensor, piece[:n], offset=at, size=n)
    return tensor


def plain_copies(n: int, rounds: int, ordinal: int) -> tuple[float, float]:
    """Seconds of a copy of ``n`` pinned bytes to a device and back, by the driver's calls alone."""
    driver: Any = importlib.import_module("cuda.bindings.driver")

    def checked(answer: tuple[Any, ...]) -> Any:
        if int(answer[0]) != 0:
            raise RuntimeError(f"the driver answers {answer[0]!r}")
        return answer[1] if len(answer) > 1 else None

    context = checked(driver.cuDevicePrimaryCtxRetain(ordinal))
    checked(driver.cuCtxSetCurrent(context))
    host = checked(driver.cuMemHostAlloc(n, 1))
    memory = checked(driver.cuMemAlloc(n))
    stream = checked(driver.cuStreamCreate(1))

    def both(up: bool) -> float:
        found = []
        for i in range(rounds + 2):
            start = time.perf_counter()
            if up:
                checked(driver.cuMemcpyHtoDAsync(memory, host, n, stream))
            else:
                checked(driver.cuMemcpyDtoHAsync(host, memory, n, stream))
            checked(driver.cuStreamSynchronize(stream))
            if i >= 2:
                found.append(time.perf_counter() - start)
        return median(found)

    try:
        return both(up=True), both(up=False)
    finally:
        checked(driver.cuStreamDestroy(stream))
        checked(driver.cuMemFree(memory))
        checked(driver.cuMemFreeHost(host))


#: How many pieces of work a short and a long submission have.
DEPTHS: Final = (1, 5)


async def by_difference(
    rounds: int, submit: Callable[[int], Awaitable[object]], depths: tuple[int, int] = DEPTHS
) -> float:
    """Seconds of one piece of work: the difference of a long and a short submission, per piece.

    Both contain the fixed cost of a submission (the call, the wake-up: 20 to 60 us), which cancels
    out. Short and long ones take turns, so that a busy moment hits both.

    Args:
        rounds: how many of each, after two that do not count.
        submit: does the given number of pieces in one submission.
        depths: how many pieces a short and a long one have.
    """
    found: dict[int, list[float]] = {depth: [] for depth in depths}
    for i in range(rounds + 2):
        for depth in depths:
            start = time.perf_counter()
            await submit(depth)
            if i >= 2:
                found[depth].append(time.perf_counter() - start)
    short, long = (median(found[depth]) for depth in depths)
    # If noise exceeds the difference, the long submission gives an upper bound.
    return (long - short) / (depths[1] - depths[0]) if long > short else long / depths[1]


async def per_node(be: Backend, make: Callable[[], Sequence[Tensor]], rounds: int) -> float:
    """Seconds of one node, by difference; inf if the device cannot run it.

    Args:
        be: the backend.
        make: gives new nodes, the same number each time.
        rounds: see `by_difference`.
    """
    graphs = {depth: Graph(*[node for _ in range(depth) for node in make()]) for depth in DEPTHS}
    if not all(be.device.supports_op(node) for node in graphs[1].nodes):
        return math.inf
    for graph in graphs.values():
        await be.prepare(graph)
    seconds = await by_difference(rounds, lambda depth: be.graph_compute(graphs[depth]))
    for graph in graphs.values():
        assert graph.memory is not None
        graph.memory.close()
    return seconds / len(make())


async def bandwidth(device: Device, *, quick: bool) -> float:
    """GB/s of a copy within the device, bytes read and written, by difference."""
    n = MIB if quick else 512 * MIB
    async with device.backend() as be:
        one, two = leaf(be, "i8", (n,), "one"), leaf(be, "i8", (n,), "two")

        async def copies(depth: int) -> None:
            with be.batch():
                futures = [be.copy(one, two) for _ in range(depth)]
            await futures[-1]

        return 2 * n / await by_difference(2 if quick else 20, copies) / 1e9
