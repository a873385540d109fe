"""Rows of f16 and bf16 to f32 and back, compared with a plain copy of the same number of bytes.

All threads, arrays far larger than any cache. Not here: quantized types.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import numpy as np

import aggml
from benchmarks.timing import Row, interleaved, median, versus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PART = "conversions"
ROWS, COLUMNS = 8192, 4096


async def measure(threads: int, *, quick: bool) -> list[Row]:
    """Bytes read and written per second, as a share of the bytes that a copy moves."""
    rounds = 3 if quick else 15
    floats = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    rows = []
    for name in ("f16", "bf16"):
        narrow = aggml.quantize(floats, name)
        moved = floats.nbytes + narrow.nbytes
        source = np.zeros(moved // 2, np.uint8)
        for what, work in (
            (f"rows of {name} to f32", partial(_widen, narrow, name)),
            (f"rows of f32 to {name}", partial(_narrow, floats, name)),
        ):
            contenders = {"ours": _timed(work), "copy": _timed(partial(_copy, source, threads))}
            found = await interleaved(contenders, rounds)
            ours, copied = (moved / median(found[x]) / 1e9 for x in ("ours", "copy"))
            rows.append(versus(PART, what, ours, "GB/s", "plain copy", copied, (">=", 0.5)))
    return rows


def _timed(work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        start = time.perf_counter()
        await work()
        return time.perf_counter() - start

    return sample


async def _widen(blocks: np.ndarray, name: str) -> None:
    await aggml.dequantize_async(blocks, name, ne=(COLUMNS, ROWS))


async def _narrow(floats: np.ndarray, name: str) -> None:
    await aggml.quantize_async(floats, name)


async def _copy(source: np.ndarray, threads: int) -> None:
    """Copy with numpy, a part in each thread, into new memory; numpy releases the GIL."""
    target = np.empty_like(source)
    shares = zip(np.array_split(source, threads), np.array_split(target, threads), strict=True)

    async def copy(x: np.ndarray, y: np.ndarray) -> None:
        await anyio.to_thread.run_sync(lambda: np.copyto(y, x))

    async with anyio.create_task_group() as tasks:
        for x, y in shares:
            tasks.start_soon(copy, x, y)
