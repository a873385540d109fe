"""How late a 1 ms ticker is while all cores compute embeddings, new graph shapes included.

The service of examples/embed.py is kept busy by tasks that ask for sentences of ever different
lengths. Not here: how many sentences that makes (embeddings.py).
"""

from __future__ import annotations

import gc
import random

import anyio

from benchmarks.models import embed
from benchmarks.timing import Row, absolute

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
    gc.freeze()  # as a server would: a full collection of all that is loaded takes 25 ms
    async with embed.Embedder() as embedder, embed.measured_lag() as lag:
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:
                for seed in range(64):
                    tasks.start_soon(_client, embedder, seed)
    late = sorted(lag.samples)
    p999 = late[min(len(late) - 1, int(len(late) * 0.999))]
    more = {"ticks": len(late), "median_ms": late[len(late) // 2], "idle_max_ms": max(idle.samples)}
    idle_median = sorted(idle.samples)[len(idle.samples) // 2]
    return [
        absolute(PART, f"1 ms ticker, idle, median, {loop}", idle_median, "ms"),
        absolute(PART, f"1 ms ticker, all cores busy, median, {loop}", late[len(late) // 2], "ms"),
        absolute(
            PART, f"1 ms ticker, all cores busy, p99.9, {loop}", p999, "ms", ("<=", 2), **more
        ),
        absolute(
            PART, f"1 ms ticker, all cores busy, max, {loop}", late[-1], "ms", ("<=", 10), **more
        ),
    ]


async def _client(embedder: embed.Embedder, seed: int) -> None:
    choose = random.Random(seed)
    while True:
        words = choose.choices(WORDS, k=1 + int(choose.expovariate(1 / 20)))
        await embedder.embed(" ".join(words))
