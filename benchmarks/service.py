"""aggml.serve compared with llama.cpp's server: the same file, threads, prompts and clients.

The load is an open loop: each client sends requests at times drawn from a seed (Poisson), however
late the answers are. A client that is behind sends its next request at once. Counting begins when
answers have begun in all slots, and lasts for a window of time. The servers take turns: one is
stopped while the other is measured. Not here: correctness under stress (soak.py).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import numpy as np

from benchmarks import model_files
from benchmarks.child import ROOT
from benchmarks.peers import MissingPeerError, module, need
from benchmarks.timing import Budget, Row, progress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

PART: Final = "service"
PEER: Final = "llama.cpp server"
# Numbers of clients, and the seconds for which answers are counted. With many clients all prompts
# come at once in the beginning, and a server that computes them first then has nothing but answers
# for half a minute.
WINDOW: Final = {1: 8.0, 4: 8.0, 16: 16.0, 64: 60.0}
CLIENTS: Final = tuple(WINDOW)
GAP: Final = 0.5  # mean seconds between two requests of a client
PROMPT: Final = (16, 192)  # tokens, at least and at most
ANSWER: Final = (16, 96)
SLOTS: Final = 32
CTX: Final = 512
PATIENCE: Final = 120
BEGUN: Final = 40  # most seconds until answers have begun in all slots: all prompts come at once
# Changing its flash attention, batch size, unified cache or polling made less than 6 % difference.
NOTE: Final = (
    "llama.cpp's server as its wheel is built: AVX2; part generation has one for this processor"
)


@dataclass
class Seen:
    """The clients' observations in one window; times in seconds."""

    tokens: int = 0
    answers: int = 0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)


class Server:
    """A server in a process of its own, which is stopped except in ``with`` blocks.

    Args:
        command: the command of a server that prints "on http://HOST:PORT" once it is ready.
        patience: seconds in which it must be.
        variables: of its environment, beside those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        patience: float = PATIENCE,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed by close()
        # A session of its own: when the shell of this program ends, the system lets stopped
        # processes of its group go on.
        self._process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=self._said, stderr=subprocess.STDOUT,
            start_new_session=True, env=os.environ | (variables or {}),
        )  # fmt: skip
        self.address = self._wait(patience)

    def _wait(self, patience: float) -> str:
        end = time.monotonic() + patience
        while time.monotonic() < end:
            status = self._process.poll()
            self._said.seek(0)
            said = self._said.read()
            if found := re.search(r"\bon (http://[\w.]+:\d+)", said):
                return found[1]
            if status is not None:
                last = (said.strip().splitlines() or ["nothing"])[-1]
                raise MissingPeerError(f"a server ended with status {status}, saying {last}")
            time.sleep(0.05)
        self.close()
        raise MissingPeerError(f"a server was not ready after {patience:g} s")

    def memory(self) -> int:
        """Bytes of resident memory of the process; 0 if there is no /proc."""
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii")
        except OSError:
            return 0
        return int(pages.split()[1]) * mmap.PAGESIZE

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()
        self._said.close()

    def __enter__(self) -> Self:
        """Let the server run until the end of the block."""
        self._process.send_signal(signal.SIGCONT)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGSTOP)


async def measure(threads: int, *, quick: bool, match: str, missing: list[str]) -> list[Row]:
    """Tokens per second, and times to the first and between tokens, for each number of clients.

    Only numbers N for which "N clients" contains ``match`` are measured.
    """
    need("httpx")
    shape = model_files.SMALL if quick else model_files.LARGE
    path = model_files.llama_file("q8_0", shape, vocabulary=True)
    ours = ["-m", "aggml", "serve", str(path), "--port", "0"]
    ours += ["--threads", str(threads), "--slots", str(SLOTS), "--ctx", str(CTX)]
    commands = {"": [*ours, "--kv-memory", "2048", "--queue", "1024", "--log-level", "info"]}
    try:
        need("xllamacpp")
        commands[PEER] = ["-m", "benchmarks.llama_server", str(path)]
        commands[PEER] += [str(threads), str(SLOTS), str(CTX)]
    except MissingPeerError as error:
        missing.append(f"{PEER}: {error}")
    servers = {}
    try:
        for name, command in commands.items():
            try:
                servers[name] = Server(command)
            except MissingPeerError as error:
                if not name:
                    raise
                missing.append(f"{name}: {error}")
                continue
            servers[name].__exit__()
        rows = []
        for clients in CLIENTS[:2] if quick else CLIENTS:
            if match not in _named(clients):
                continue
            rows += await _level(servers, clients, shape.vocabulary, missing, quick=quick)
        return rows
    finally:
        for server in servers.values():
            server.close()


def first_error(error: BaseException) -> str:
    """The first error inside exception groups, as text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


async def _level(
    servers: dict[str, Server], clients: int, vocabulary: int, missing: list[str], *, quick: bool
) -> list[Row]:
    warm, seconds = (0.3, 1.0) if quick else (4.0, WINDOW[clients])
    seen: dict[str, Seen] = {}
    rates: dict[str, float] = {}
    for name, server in servers.items():
        progress(f"{PART}: {_named(clients)}, {name or 'aggml'}")
        load = Load(server.address, clients, vocabulary, seed=1)
        try:
            with server:
                found = await load.run(warm, seconds)
        except Exception as error:  # an error of a peer must not end the run
            if not name:
                raise
            missing.append(f"{name}, {_named(clients)}: {first_error(error)}")
            continue
        seen[name] = found
        rates[name] = found.tokens / seconds
    who = _named(clients)
    judged = clients >= 4 and not quick  # one sequence reads the same bytes on every server
    rows = [_row(who, rates, "tokens/s", [Budget(PEER, ">=", 3.0)] if judged else [], NOTE)]
    for what, of in (("first token", "first"), ("between tokens", "between")):
        for share in (50, 99):
            values = {
                name: 1e3 * float(np.percentile(getattr(found, of) or [np.nan], share))
                for name, found in seen.items()
            }
            worse = share == 99 and of == "between"
            budgets = [Budget(PEER, "<=", 0.3)] if worse and judged else []
            rows.append(_row(f"{who}, {what}, p{share}", values, "ms", budgets))
    return rows


def _named(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"


def _row(
    what: str, values: dict[str, float], unit: str, budgets: list[Budget], note: str = ""
) -> Row:
    peers = {name: value for name, value in values.items() if name and np.isfinite(value)}
    return Row(PART, what, values[""], unit, peers=peers, budgets=budgets, note=note)


async def lines_of(answer: Any) -> AsyncIterator[bytes]:
    """Lines of an answer as they come. httpx ends lines at U+2028, too, which JSON may contain."""
    rest = b""
    async for piece in answer.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line


class Load:
    """Clients of one server.

    Args:
        address: the address of the server.
        clients: how many.
        vocabulary: prompts are drawn from so many tokens.
        seed: decides lengths, tokens and times.
    """

    def __init__(self, address: str, clients: int, vocabulary: int, *, seed: int) -> None:
        self._address = address
        self._clients = clients
        self._vocabulary = vocabulary
        self._seed = seed
        self._seen = Seen()

    async def run(self, warm: float, window: float) -> Seen:
        """The observations of a window that begins after ``warm`` seconds, with all under way."""
        httpx = module("httpx")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._clients)
        found: list[Seen] = []
        async with (
            httpx.AsyncClient(base_url=self._address, limits=limits, timeout=PATIENCE) as http,
            anyio.create_task_group() as tasks,
        ):
            for i in range(self._clients):
                tasks.start_soon(self._client, http, i)
            await anyio.sleep(warm)
            with anyio.move_on_after(BEGUN):
                while len(self._seen.first) < min(self._clients, SLOTS):  # noqa: ASYNC110
                    await anyio.sleep(0.1)
            self._seen = Seen()
            await anyio.sleep(window)
            found.append(self._seen)
            self._seen = Seen()  # for requests that are cut off now
            tasks.cancel_scope.cancel()
        return found[0]

    async def _client(self, http: Any, i: int) -> None:
        random = np.random.default_rng((self._seed, i))
        due = time.perf_counter() + random.exponential(GAP)
        while True:
            await anyio.sleep(max(0.0, due - time.perf_counter()))
            due += random.exponential(GAP)
            prompt = random.integers(300, self._vocabulary, random.integers(*PROMPT)).tolist()
            await self._ask(http, [1, *prompt], int(random.integers(*ANSWER)))

    async def _ask(self, http: Any, prompt: list[int], tokens: int) -> None:
        body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        before = time.perf_counter()
        given = 0
        async with http.stream("POST", "/v1/completions", json=body | {"temperature": 0}) as answer:
            if answer.status_code != 200:
                raise MissingPeerError(f"status {answer.status_code}: {await answer.aread()!r}")
            async for line in lines_of(answer):
                if not line.startswith(b"data: {"):
                    continue
                choice = json.loads(line[6:])["choices"][0]
                if choice["finish_reason"]:
                    break
                now = time.perf_counter()
                given += 1
                self._seen.tokens += 1
                (self._seen.between if given > 1 else self._seen.first).append(now - before)
                before = now
        self._seen.answers += 1
