"""How late a 1 ms ticker is while all cores compute, new shapes included, and while models load.

Tasks keep the service of examples/embed.py busy with sentences whose lengths vary. Not here: the
throughput (embeddings.py).
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
import numpy as np

import aggml
from benchmarks import model_files
from benchmarks.models import embed, load_decoder, open_model
from benchmarks.peers import MissingPeerError
from benchmarks.timing import Budget, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.models import EncoderModel

PART = "lag"
LIMITS: Final = {"p99.9": ("<=", 2.0), "max": ("<=", 10.0)}
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
    """Rows of the lag on the running loop, idle and under several loads."""
    seconds = 2.0 if quick else 10.0
    async with embed.measured_lag() as idle:
        await anyio.sleep(seconds / 4)
    async with embed.measured_lag() as beside:
        with _busy_processes():
            await anyio.sleep(seconds / 2)
    gc.freeze()  # as a server would: a full garbage collection takes 25 ms
    async with embed.loaded() as model, embed.measured_lag() as lag:
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:
                for seed in range(64):
                    tasks.start_soon(_client, model, seed)
                    await anyio.lowlevel.checkpoint()  # clients come one by one
    generating = await _generating(seconds / 2)
    loading = await _loading(seconds / 2)
    rows = []
    for load, ticks, limits in (
        ("idle", idle, {}),
        # The lag on this machine with all cores busy, without aggml.
        ("beside busy processes", beside, {}),
        ("all cores computing", lag, LIMITS),
        ("generating eight sequences", generating, LIMITS),
        ("loading and closing a model", loading, LIMITS),
    ):
        if ticks is None:
            continue
        names = ("median", "p99.9", "max")
        for name, value, held in zip(
            names, embed.quantiles(ticks.samples), embed.quantiles(ticks.held), strict=True
        ):
            what = f"1 ms ticker, {load}, {name}, {loop}"
            # How much of the lag the loop itself computed; the rest is waiting for a core.
            peers = {"the loop's own work": held}
            budgets = [Budget("", *limits[name])] if name in limits else []
            more = {"ticks": len(ticks.samples)}
            rows.append(Row(PART, what, value, "ms", peers, budgets=budgets, more=more))
    return rows


async def _generating(seconds: float) -> embed.Lag | None:
    """Lag while a prompt of 300 tokens is continued by 8 sequences; None without package gguf."""
    try:
        path = model_files.llama_file("q8_0")
    except MissingPeerError:
        return None
    prompt = np.random.default_rng(0).integers(0, model_files.LARGE.vocabulary, 300).tolist()
    async with await aggml.models.load(path, ctx=512, slots=8) as model:

        async def one(seed: int) -> None:
            stream = model.generate(
                prompt, max_tokens=100, temperature=0.8, seed=seed, stop_ids=()
            )  # fmt: skip
            async for _ in stream:
                pass

        await model.logits(prompt[:1])  # reads the weights from the file
        async with embed.measured_lag() as lag:
            with anyio.move_on_after(seconds):
                while True:
                    async with anyio.create_task_group() as tasks:
                        for seed in range(8):
                            tasks.start_soon(one, seed)
    return lag


async def _loading(seconds: float) -> embed.Lag | None:
    """Lag while a model of 546 MB is loaded, asked for a token and closed, again and again."""
    try:
        path = model_files.llama_file("q8_0")
    except MissingPeerError:
        return None
    prompt = np.random.default_rng(0).integers(0, model_files.LARGE.vocabulary, 16).tolist()
    async with aggml.get_device("CPU").backend() as backend, embed.measured_lag() as lag:
        with anyio.move_on_after(seconds):
            while True:
                with await open_model(path) as file:
                    model = await load_decoder(backend, file, ctx=512, sequences=1)
                await model.prefill(0, prompt)
                model.close()
                del model, file
    return lag


@contextmanager
def _busy_processes() -> Iterator[None]:
    """Run a busy process for each core until the end of the block."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    burn = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(burn) for _ in range(cores or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def _client(model: EncoderModel, seed: int) -> None:
    choose = random.Random(seed)
    while True:
        words = choose.choices(WORDS, k=1 + int(choose.expovariate(1 / 20)))
        await model.embed([" ".join(words)])
