"""Sentence embeddings as a service: requests arrive one by one and are computed in batches.

Here: a demonstration, a command line, measuring how late the event loop wakes meanwhile. Not here:
the service and its model (minilm/). Run it without arguments for the demonstration; --help lists
the options.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
from minilm import WIDTH, Embedder, ModelError, load_tokenizer, model_folder

import aggml
from aggml.models.batching import BatchError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from aggml.models.encoder.packing import F32

SENTENCES: Final = (
    "How do I bake a loaf of sourdough bread?",
    "What is the recipe for bread with natural leaven?",
    "The train to the coast leaves at half past seven.",
    "Our railway journey to the seaside begins at 7:30.",
    "A cat is sleeping on the warm windowsill.",
    "The kitten dozes in the sun by the window.",
    "The central bank raised interest rates again.",
    "Borrowing has become more expensive after the latest rate increase.",
    "Python coroutines hand control back to the event loop.",
    "While one task waits, asynchronous code lets others run.",
    "The telescope found water vapour around a distant planet.",
    "Astronomers detected steam in the air of an exoplanet.",
    "She scored the winning goal in the last minute.",
    "A late strike decided the football match.",
    "The old bridge was closed after the flood.",
    "High water damaged the crossing, so it is shut.",
    "Der Hund bellt im Garten.",
    "The dog barks in the garden.",
    "I need to reset my password.",
    "My login no longer works, how can I get a new one?",
)


class InputError(Exception):
    """An argument of the command line cannot be used."""


class Lag:
    """How many milliseconds late a task woke that sleeps 1 ms at a time.

    Attributes:
        samples: milliseconds late, one for each tick.
        held: for each tick the milliseconds that the loop's thread computed. The rest of the
            lateness is waiting for a core, which depends on other processes and on the host of a
            virtual machine.
    """

    def __init__(self) -> None:
        self.samples: list[float] = []
        self.held: list[float] = []

    async def tick(self) -> None:
        """Measure until cancelled."""
        while True:
            start, used = time.perf_counter(), time.thread_time()
            await anyio.sleep(0.001)
            self.samples.append((time.perf_counter() - start - 0.001) * 1e3)
            self.held.append((time.thread_time() - used) * 1e3)

    def __str__(self) -> str:
        median, p999, longest = quantiles(self.samples)
        return (
            f"median {median:.2f} ms, p99.9 {p999:.2f} ms, max {longest:.2f} ms "
            f"({len(self.samples)} ticks of 1 ms)\n"
            "  of which it computed itself: median {:.2f}, p99.9 {:.2f}, max {:.2f} ms".format(
                *quantiles(self.held)
            )
        )


def quantiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median, p99.9 and maximum; NaN without samples."""
    late = sorted(samples) or [math.nan]
    return late[len(late) // 2], late[min(len(late) - 1, int(len(late) * 0.999))], late[-1]


@asynccontextmanager
async def measured_lag() -> AsyncGenerator[Lag]:
    """Measure the lag during a `with` block."""
    lag = Lag()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lag.tick)
        try:
            yield lag
        finally:
            tasks.cancel_scope.cancel()


async def embed_all(
    embedder: Embedder, sentences: Sequence[str], *, clients: int = 256, report: bool = False
) -> F32:
    """Embed sentences, ``clients`` at a time: (len(sentences), 384), in the order given."""
    result = np.empty((len(sentences), WIDTH), np.float32)
    # Sorted by length: all rows of a batch are as long as its longest sentence.
    order = iter(sorted(range(len(sentences)), key=lambda i: len(sentences[i])))
    done = 0

    async def client() -> None:
        nonlocal done
        for index in order:
            result[index] = await embedder.embed(sentences[index])
            done += 1

    async def reporter() -> None:
        start = time.perf_counter()
        while True:
            await anyio.sleep(1)
            rate = done / (time.perf_counter() - start)
            print(f"{done} of {len(sentences)} sentences, {rate:.0f}/s", file=sys.stderr)

    async with anyio.create_task_group() as tasks:
        if report:
            tasks.start_soon(reporter)
        async with anyio.create_task_group() as workers:
            for _ in range(min(clients, len(sentences))):
                workers.start_soon(client)
        tasks.cancel_scope.cancel()
    return result


async def demonstrate(dtype: str, threads: int | None, seconds: float) -> None:
    """Embed the built-in sentences, print the most similar pairs, then serve 64 clients."""
    # Exempt loaded objects from garbage collection: searching all would hold the loop for 25 ms.
    gc.freeze()
    async with measured_lag() as lag:
        start = time.perf_counter()
        async with Embedder(dtype=dtype, threads=threads) as embedder:
            print(f"  model loaded in {time.perf_counter() - start:.2f} s")
            gc.freeze()
            vectors = await embed_all(embedder, SENTENCES)
            similarity = np.triu(vectors @ vectors.T, 1)
            for flat in np.argsort(similarity, axis=None)[::-1][:8]:
                i, j = divmod(int(flat), len(SENTENCES))
                print(f"  {similarity[i, j]:.3f}  {SENTENCES[i]}  |  {SENTENCES[j]}")
            rate = await serve_clients(embedder, clients=64, seconds=seconds)
            print(f"  {rate:.0f} sentences/s, asked for by 64 tasks")
    print(f"  event loop late by: {lag}", flush=True)


async def serve_clients(embedder: Embedder, *, clients: int, seconds: float) -> float:
    """Let ``clients`` tasks embed the built-in sentences one by one; sentences per second."""
    count = 0

    async def client(seed: int) -> None:
        nonlocal count
        choose = random.Random(seed)
        while True:
            await embedder.embed(choose.choice(SENTENCES))
            count += 1

    start = time.perf_counter()
    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as tasks:
            for seed in range(clients):
                tasks.start_soon(client, seed)
                await anyio.lowlevel.checkpoint()  # clients come one by one
    return count / (time.perf_counter() - start)


async def embed_file(sentences: list[str], out: Path, dtype: str, threads: int | None) -> None:
    """Embed ``sentences`` and write them as a .npy file."""
    async with Embedder(dtype=dtype, threads=threads) as embedder:
        vectors = await embed_all(embedder, sentences, report=True)
    with out.open("wb") as file:  # np.save would append .npy to another name
        np.save(file, vectors)


def read_sentences(path: Path) -> list[str]:
    """A JSON list of strings.

    Raises:
        InputError: the file is something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is no JSON in UTF-8: {error}") from error
    if not isinstance(found, list):
        raise InputError(f"{path} holds no JSON list but {type(found).__name__}")
    for index, item in enumerate(found):
        if not isinstance(item, str):
            raise InputError(f"{path}: item {index} is no string but {type(item).__name__}")
    return found


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Embed sentences with all-MiniLM-L6-v2. Without --sentences: a demonstration "
        "on built-in sentences, on asyncio and on trio.",
    )
    parser.add_argument(
        "--sentences",
        type=Path,
        metavar="IN.json",
        help="the sentences to embed: a JSON list of strings",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="OUT.npy",
        help="where their normalised mean-pooled embeddings go: float32, (sentences, 384), in "
        "order, truncated at 256 tokens",
    )
    parser.add_argument(
        "--dtype", choices=("f32", "bf16", "q8_0"), default="f32", help="type of the weights"
    )
    parser.add_argument(
        "--loop", choices=("asyncio", "trio"), help="the event loop (default: asyncio)"
    )
    parser.add_argument(
        "--threads",
        type=_positive,
        metavar="N",
        help="threads that compute (default: all usable cores)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        metavar="S",
        help="seconds for which the demonstration serves",
    )
    given = parser.parse_args(arguments)
    if (given.sentences is None) != (given.out is None):
        parser.error("--sentences and --out belong together")
    try:
        # Finding devices takes 30 ms, loading the tokenizer 20 ms: do it before a loop would wait.
        aggml.get_device("CPU")
        load_tokenizer(model_folder())
        if given.sentences is None:
            for loop in (given.loop,) if given.loop else ("asyncio", "trio"):
                print(f"{loop}, {given.dtype}:", flush=True)
                anyio.run(demonstrate, given.dtype, given.threads, given.seconds, backend=loop)
            return 0
        sentences = read_sentences(given.sentences)
        if not given.out.parent.is_dir():
            raise InputError(f"the folder of {given.out} does not exist")
        anyio.run(
            embed_file,
            sentences,
            given.out,
            given.dtype,
            given.threads,
            backend=given.loop or "asyncio",
        )
    except BaseException as error:
        cause = error
        while isinstance(cause, BaseExceptionGroup):  # as task groups raise it
            cause = cause.exceptions[0]
        if isinstance(cause, KeyboardInterrupt):
            return 130
        if not isinstance(cause, EXPECTED):
            raise
        print(f"embed.py: {cause}", file=sys.stderr)
        return 2
    return 0


# Printed in one line. Any other exception is a bug of this program and gets a traceback.
EXPECTED: Final = (InputError, ModelError, BatchError, aggml.AggmlError, OSError)


if __name__ == "__main__":
    sys.exit(main())
