"""The cost of a pipeline per item and stage, beside bare anyio memory streams between tasks.

Not here: pipelines of models, whose stages take far longer than this.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio

from aggml.pipeline import Stage, run
from benchmarks.timing import Row, interleaved, median, progress, versus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

PART = "pipeline"
STAGES = 4
BUFFER = 8


async def measure(loop: str, *, quick: bool) -> list[Row]:
    """All rows of this file on the running loop, which is called ``loop``."""
    items = 500 if quick else 5000
    rounds = 5 if quick else 30
    rows = []
    for workers, ordered in ((1, True), (4, True), (4, False)):
        how = f"{workers} worker{'s' * (workers > 1)}, {'' if ordered else 'not '}in order"
        progress(f"pipeline, {loop}, {how}")

        async def ours(workers: int = workers, ordered: bool = ordered) -> float:
            stages = [Stage(_same, workers=workers)] * STAGES
            begin = time.perf_counter()
            async with run(range(items), *stages, buffer=BUFFER, ordered=ordered) as results:
                async for _ in results:
                    pass
            return (time.perf_counter() - begin) / items / STAGES

        async def bare(workers: int = workers) -> float:
            begin = time.perf_counter()
            await _bare(_same, items, workers)
            return (time.perf_counter() - begin) / items / STAGES

        found = await interleaved({"aggml": ours, "bare": bare}, rounds)
        rows.append(
            versus(
                PART, f"per item and stage, {how}, {loop}", median(found["aggml"]), "s",
                "anyio streams", median(found["bare"]), ("<=", 2.0),
            )
        )  # fmt: skip
    return rows


async def _same(x: int) -> int:
    return x


async def _bare(fn: Callable[[Any], Awaitable[Any]], items: int, workers: int) -> None:
    """The same stages as tasks with anyio's streams between them; nothing else is kept of them."""

    async def feed(to: MemoryObjectSendStream[Any]) -> None:
        async with to:
            for i in range(items):
                await to.send(i)

    async def work(source: MemoryObjectReceiveStream[Any], to: MemoryObjectSendStream[Any]) -> None:
        async with source, to:
            async for item in source:
                await to.send(await fn(item))

    async with anyio.create_task_group() as tasks:
        to, source = anyio.create_memory_object_stream[Any](BUFFER)
        tasks.start_soon(feed, to)
        for _ in range(STAGES):
            to, behind = anyio.create_memory_object_stream[Any](BUFFER)
            for _ in range(workers - 1):
                tasks.start_soon(work, source.clone(), to.clone())
            tasks.start_soon(work, source, to)
            source = behind
        async with source:
            async for _ in source:
                pass
