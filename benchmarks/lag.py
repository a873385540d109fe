"""How late a 1 ms ticker is while all cores compute embeddings, new graph shapes included.

The service of examples/embed.py is kept busy by tasks that ask for sentences of ever different
lengths. Not here: how many sentences that makes (embeddings.py).
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from benchmarks.models import embed
from benchmarks.timing import Row, absolute

if TYPE_CHECKING:
    from collections.abc import Iterator

PART = "lag"
WORDS = [
    "we",
    "all",
    "know",
    "how",
    "the",
    "river",
    "rose",
    "and",
    "fell",
    "in",
    "those",
    "wide",
    "and",
    "quiet",
    "summers",
    "of",
    "long",
    "ago",
]


async def measure(loop: str, *, quick: bool) -> list[Row]:
    """Lag on the running loop, idle and busy."""
    seconds = 2.0 if quick else 10.0
    async with embed.measured_lag() as idle:
        await anyio.sleep(seconds / 4)
    async with embed.measured_lag() as beside:
        with _busy_processes():
            await anyio.sleep(seconds / 2)
    gc.freeze()  # as a server would: a full collection of all that is loaded takes 25 ms
    async with embed.Embedder() as embedder, embed.measured_lag() as lag:
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:
                for seed in range(64):
                    tasks.start_soon(_client, embedder, seed)
                    await anyio.lowlevel.checkpoint()  # they come one by one
    rows = []
    for load, samples, budgets in (
        ("idle", idle.samples, {}),
        # What this machine gives to anyone whose cores are busy, the library apart.
        ("beside busy processes", beside.samples, {}),
        ("all cores computing", lag.samples, {"p99.9": ("<=", 2.0), "max": ("<=", 10.0)}),
    ):
        late = sorted(samples)
        figures = {
            "median": late[len(late) // 2],
            "p99.9": late[min(len(late) - 1, int(len(late) * 0.999))],
            "max": late[-1],
        }
        for name, value in figures.items():
            what = f"1 ms ticker, {load}, {name}, {loop}"
            rows.append(absolute(PART, what, value, "ms", budgets.get(name), ticks=len(late)))
    return rows


@contextmanager
def _busy_processes() -> Iterator[None]:
    """One for each core, counting."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    burn = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(burn) for _ in range(cores or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def _client(embedder: embed.Embedder, seed: int) -> None:
    choose = random.Random(seed)
    while True:
        words = choose.choices(WORDS, k=1 + int(choose.expovariate(1 / 20)))
        await embedder.embed(" ".join(words))
