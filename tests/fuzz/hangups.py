"""Clients that leave: requests of all kinds to a server that listens, cut off at any point.

A program is one request over a socket of its own: a completion, a chat, one under a grammar, texts
to embed; whole or streamed. Its client waits for the answer, or closes its sending half, or leaves
while it writes or reads, or sets a deadline that may be too early. Many run at the same time. What
is answered is right: a bias makes each answer one letter of its own, so that it does not depend on
rounding. At the end no sequence, page or connection is left, and memory has not grown. Not here:
wrong requests (requests.py), speed (benchmarks/soak.py).
"""

from __future__ import annotations

import gc
import json
import mmap
import re
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
from fuzz.requests import write_encoder
from fuzz.rounds import Failure, Report, draw

from aggml.models.small import tokens, write_small
from aggml.serve import Limits
from aggml.serve.http import Options, application
from aggml.serve.http.running import Address, run_hypercorn, run_uvicorn

if TYPE_CHECKING:
    import random


SHORT: Final = 24
AT_ONCE: Final = 16
PATIENCE: Final = 300  # seconds for one request: longer is a hang, even on a slow machine
WARM: Final = 0.25  # share of the programs after which memory is measured
MORE: Final = 2000  # objects that may be there more at the end: caches, measured latencies
LETTERS: Final = "bcdefghijklmnopqrstuvwxyz"


def run(seed: int, programs: int, loop: str, first: int = 0) -> Report:
    """As `fuzz.rounds.Fuzzer`."""
    return anyio.run(_round, seed, programs, loop, first, backend=loop)


class _Address:
    """Where the server listens, once it does."""

    def __init__(self) -> None:
        self.port = 0
        self.known = anyio.Event()

    def tell(self, event: dict[str, Any]) -> None:
        """Note the event "listening"."""
        if event["event"] == "listening":
            self.port = int(event["url"].rpartition(":")[2])
            self.known.set()


async def _round(seed: int, programs: int, loop: str, first: int) -> Report:
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    with tempfile.TemporaryDirectory() as folder:
        files = [
            write_small(Path(folder) / "small.gguf"),
            write_encoder(Path(folder) / "encoder.gguf"),
        ]
        limits = Limits(slots=4, ctx=512, kv_memory=8 << 20)
        app = application(Options(models=files, threads=1, limits=limits, drain=1))
        where = _Address()
        address = Address(
            port=0, loop="trio" if loop == "trio" else "asyncio", log_level="error", tell=where.tell
        )
        serve = run_uvicorn if loop == "asyncio" else run_hypercorn
        async with app.router.lifespan_context(app), anyio.create_task_group() as server:
            server.start_soon(serve, app, address)
            await where.known.wait()
            wanted = await _vectors(where.port)
            left = list(range(first, first + programs))[::-1]
            warm = len(left) - int(WARM * programs)
            before: list[tuple[int, int]] = []

            async def client() -> None:
                while left and not failures:
                    if len(left) <= warm and not before:
                        before.append(_memory())
                    k = left.pop()
                    request = _Request(draw(seed, k), loop)
                    try:
                        with anyio.fail_after(PATIENCE):
                            counts[await request.run(where.port, wanted)] += 1
                    except Exception as error:
                        failure = Failure(seed, k, loop, f"{request.body}\n{error!r}")
                        failure.__cause__ = error
                        failures.append(failure)

            async with anyio.create_task_group() as clients:
                for _ in range(min(AT_ONCE, programs)):
                    clients.start_soon(client)
            if not failures:
                await _idle(where.port)
                more, kilobytes = (b - a for a, b in zip(before[0], _memory(), strict=True))
                counts |= {"objects more": more, "KB more": kilobytes}
                # In a short round the first request of a kind still imports and caches.
                if programs >= 10 * SHORT and more > MORE + programs // 10:
                    failures.append(Failure(seed, first, loop, f"{more} objects more are left"))
            signal.raise_signal(signal.SIGTERM)  # for `until_stopped`: its sockets are closed
    # not raised inside: the task groups would wrap it in an exception group
    if failures:
        raise failures[0]
    return Report(programs, dict(sorted(counts.items())))


def _memory() -> tuple[int, int]:
    """How many objects there are, and the kilobytes of resident memory; 0 without /proc."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        pages = 0
    return len(gc.get_objects()), pages * mmap.PAGESIZE >> 10


async def _idle(port: int) -> None:
    """Wait until no sequence has a slot or a page, and nobody waits."""
    with anyio.fail_after(PATIENCE):
        while True:
            _, found = await _exchange(port, "GET", "/metrics", b"")
            lines = re.findall(
                r"^aggml_(?:pages_used|active|waiting)\S* (\S+)$", found, re.MULTILINE
            )
            if lines and not any(float(x) for x in lines):
                return
            await anyio.lowlevel.checkpoint()


async def _vectors(port: int) -> dict[int, list[float]]:
    """The vectors of texts, asked for alone."""
    found = {}
    for n in range(1, 6):
        body = {"model": "encoder", "input": " ".join("a" * n)}
        status, text = await _exchange(port, "POST", "/v1/embeddings", json.dumps(body).encode())
        assert status == 200, text
        found[n] = json.loads(text)["data"][0]["embedding"]
    return found


class _Request:
    """One request, and what its client does.

    Args:
        source: of all choices.
        loop: on trio hypercorn takes a client that has closed its sending half as gone.
    """

    def __init__(self, source: random.Random, loop: str) -> None:
        r = self._source = source
        self._letter, self._length = r.choice(LETTERS), r.randint(1, 60)
        self._kind = r.choice(["completions", "completions", "chat", "grammar", "embeddings"])
        self._stream = self._kind != "embeddings" and r.random() < 0.6
        self._way = r.choice(["wait", "wait", "wait", "half", "leave early", "leave late", "hurry"])
        if loop == "trio" and self._way == "half":
            self._way = "leave late"
        names, _ = tokens()
        self.body: dict[str, Any] = {"model": "small", "max_tokens": self._length, "seed": 1}
        bias = {str(names.index(self._letter)): 100}
        if self._kind == "embeddings":
            self._texts = [r.randint(1, 5) for _ in range(r.randint(1, 4))]
            self.body = {"model": "encoder", "input": [" ".join("a" * n) for n in self._texts]}
        elif self._kind == "completions":
            prompt = "".join(r.choices("xyz ", k=r.randint(1, 200)))
            self.body |= {"prompt": prompt, "logit_bias": bias, "ignore_eos": True}
            self.body["n"] = r.choice([1, 1, 2])
        else:
            self.body["messages"] = [{"role": "user", "content": "x" * r.randint(1, 100)}]
            if self._kind == "chat":
                self.body |= {"logit_bias": bias, "ignore_eos": True}
            else:
                self.body |= {"regex": f"{self._letter}{{{self._length}}}", "max_tokens": 200}
        if self._stream:
            self.body["stream"] = True
        if self._way == "hurry":
            self.body["timeout"] = r.choice([1e-3, 0.01, 0.05, 0.2])

    async def run(self, port: int, wanted: dict[int, list[float]]) -> str:
        """Ask, and check what is answered; returns what became of it."""
        path = {"completions": "/v1/completions", "embeddings": "/v1/embeddings"}.get(
            self._kind, "/v1/chat/completions"
        )
        data = json.dumps(self.body).encode()
        after = None
        if self._way == "leave early":
            await _send(port, _head("POST", path, len(data)) + data[: self._source.randrange(200)])
            return "left while writing"
        if self._way == "leave late":
            after = self._source.choice([0, 1, 200, 500, 2000])
        found = await _exchange(port, "POST", path, data, half=self._way == "half", after=after)
        if after is not None:
            return "left while reading"
        status, text = found
        if self._way == "hurry" and "timeout_error" in text:
            return "too late"
        assert status == 200, f"{status} {text}"
        self._check(text, wanted)
        return f"{self._kind}{' streamed' if self._stream else ''}"

    def _check(self, text: str, wanted: dict[int, list[float]]) -> None:
        if self._kind == "embeddings":
            data = json.loads(text)["data"]
            assert [x["index"] for x in data] == list(range(len(self._texts)))
            for one, n in zip(data, self._texts, strict=True):
                np.testing.assert_allclose(one["embedding"], wanted[n], atol=1e-3)
            return
        choices: dict[int, str] = dict.fromkeys(range(self.body.get("n", 1)), "")
        for one in self._choices(text):
            part = one.get("delta") or one.get("message") or one
            choices[one["index"]] += part.get("content") or part.get("text") or ""
        for found in choices.values():
            assert found == self._letter * self._length, found

    def _choices(self, text: str) -> list[Any]:
        if not self._stream:
            found: list[Any] = json.loads(text)["choices"]
            return found
        lines = [x.removeprefix("data: ") for x in text.split("\n") if x.startswith("data: ")]
        assert lines.pop() == "[DONE]", text[-200:]
        events = [json.loads(x) for x in lines]
        assert not any("error" in x for x in events), events[-1]
        return [choice for event in events for choice in event["choices"]]


def _head(method: str, path: str, length: int) -> bytes:
    # HTTP/1.0: the answer ends with the connection
    return f"{method} {path} HTTP/1.0\r\nHost: h\r\nContent-Length: {length}\r\n\r\n".encode()


async def _send(port: int, data: bytes) -> None:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(data)


async def _exchange(
    port: int, method: str, path: str, data: bytes, *, half: bool = False, after: int | None = None
) -> tuple[int, str]:
    """The status and the body of an answer.

    Args:
        port: of the server.
        method: of the request.
        path: of the request.
        data: of the request.
        half: close the sending half behind it.
        after: leave after so many bytes of the answer.
    """
    found = b""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(_head(method, path, len(data)) + data)
        if half:
            await stream.send_eof()
        try:
            while after is None or len(found) < after:
                found += await stream.receive(1 << 16)
        except anyio.EndOfStream:
            pass
        except anyio.BrokenResourceError:
            if not found:
                raise
    head, _, body = found.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if after is None else 0
    return status, body.decode(errors="replace")
