"""``python -m benchmarks.soak``: aggml.serve with clients that hang up, and short deadlines.

The clients hang up on 30 % of the requests, and 10 % have a deadline that is too short. Every other
answer must be complete and equal to the answer that a lone client got. The program reports the
server's memory after each tenth of the requests, and the lag of its loop. Memory grows until 96
graphs of steps are kept and stored beginnings take what they may; --warm has so many requests come
before. Its exit status is 1 if an answer was wrong or missing. Not here: speed (service.py).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

import aggml
from benchmarks.peers import module, need
from benchmarks.service import Server, lines_of
from benchmarks.timing import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

HANG_UP: Final = 0.3
TOO_LATE: Final = 0.1
CLIENTS: Final = 48
POOL: Final = 40  # different requests
MEASURED: Final = 10  # memory is measured after each tenth of the requests
LEAD: Final = 2e-3  # by which the best logit leads
#: The line of the metrics that shows that no sequence holds memory.
PAGES_FREE: Final = re.compile(r"^aggml_pages_used\{.*\} 0\.0$", re.MULTILINE)
PATIENCE: Final = 1200  # seconds; a slow answer on a busy machine is no error


async def pool_of(path: Path, seed: int) -> list[dict[str, Any]]:
    """Requests whose answers do not depend on rounding: at each token the best one leads clearly.

    Rounding in products and attention depends on the number of rows, and so on the other requests:
    logits differ by up to 3e-4.
    """
    from benchmarks.models import load_decoder, open_model  # needs optional packages

    random = np.random.default_rng(seed)
    pool: list[dict[str, Any]] = []
    async with aggml.get_device("CPU").backend() as backend:
        with await open_model(path) as file:
            model = await load_decoder(backend, file, ctx=512)
        while len(pool) < POOL:
            prompt = [1, *random.integers(259, 354, random.integers(1, 200)).tolist()]
            n = int(random.integers(1, 60))
            logits = await model.prefill(0, prompt)
            for at in range(len(prompt), len(prompt) + n):
                second, best = np.partition(logits, -2)[-2:]
                if best - second < LEAD:
                    break
                logits = (await model.decode([int(np.argmax(logits))], [at]))[0]
            else:
                given = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}
                pool.append(given)
    return pool


class Soak:
    """One run against one server.

    Args:
        server: the server to ask.
        pool: requests to choose from.
        requests: how many.
        seed: decides which clients hang up, and when.
        warm: how many requests come before these; memory is counted from then on.
    """

    def __init__(
        self,
        server: Server,
        pool: list[dict[str, Any]],
        requests: int,
        seed: int,
        warm: int = 0,
    ) -> None:
        self._address = server.address
        self._server = server
        self._random = np.random.default_rng(seed)
        self._requests = requests
        self._left = requests + warm
        self._pool = pool
        self._answers: list[str] = []
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self) -> None:
        """Send all requests, CLIENTS at a time."""
        httpx = module("httpx")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=CLIENTS)
        async with httpx.AsyncClient(
            base_url=self._address, limits=limits, timeout=PATIENCE
        ) as http:
            for request in self._pool:
                answer = await http.post("/v1/completions", json=request)
                self._answers.append(answer.json()["choices"][0]["text"])
            total, warm = self._requests, self._left - self._requests
            self.memory = {-warm: self._server.memory()}  # after so many requests that count
            counted = {total * i // MEASURED for i in range(MEASURED)}
            self._marks = {total - done: done for done in counted}
            async with anyio.create_task_group() as tasks:
                for _ in range(CLIENTS):
                    tasks.start_soon(self._client, http)
            await self._idle(http)
            self.memory[total] = self._server.memory()
            self.metrics = (await http.get("/metrics")).text

    async def _idle(self, http: Any) -> None:
        with anyio.fail_after(PATIENCE):
            while not PAGES_FREE.search((await http.get("/metrics")).text):  # noqa: ASYNC110
                await anyio.sleep(0.05)

    async def _client(self, http: Any) -> None:
        while self._left > 0:
            self._left -= 1
            done = self._marks.get(self._left)
            if done is not None:
                self.memory[done] = self._server.memory()
                progress(f"soak: {done} requests, {self.memory[done] / 1e6:.0f} MB")
            draw, which = self._random.random(), int(self._random.integers(POOL))
            after = int(self._random.integers(0, 20))
            stream = bool(self._random.random() < 0.7)
            if draw < HANG_UP:
                await self._hang_up(http, which, after)
            elif draw < HANG_UP + TOO_LATE:
                await self._too_late(http, which, stream=stream)
            else:
                await self._whole(http, which, stream=stream)

    async def _hang_up(self, http: Any, which: int, after: int) -> None:
        body = self._pool[which] | {"stream": True, "max_tokens": 200}
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = lines_of(answer)
            for _ in range(2 * after):
                await anext(lines)
        self.counts["hung up"] += 1

    async def _too_late(self, http: Any, which: int, *, stream: bool) -> None:
        body = self._pool[which] | {"timeout": 0.001, "max_tokens": 200, "stream": stream}
        answer = await http.post("/v1/completions", json=body)
        if "timeout_error" not in answer.text:
            self.wrong.append(f"no word of the deadline: {answer.text[-200:]!r}")
        self.counts["too late"] += 1

    async def _whole(self, http: Any, which: int, *, stream: bool) -> None:
        answer = await http.post("/v1/completions", json=self._pool[which] | {"stream": stream})
        if stream:
            # A stream that is silent for long on a busy machine has comments.
            lines = [x for x in answer.content.split(b"\n") if x and not x.startswith(b":")]
            if lines[-1] != b"data: [DONE]":
                self.wrong.append(f"a stream that ends in {lines[-1]!r}")
                return
            choices = [json.loads(line[6:])["choices"][0] for line in lines[:-1]]
            text = "".join(choice["text"] for choice in choices)
        else:
            text = answer.json()["choices"][0]["text"]
        if text != self._answers[which]:
            self.wrong.append(f"{which}: {text!r}, not {self._answers[which]!r}")
        self.counts["whole"] += 1


def _modest() -> None:
    """Lower the priority of the clients: on other machines they would take no core from it."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, 0, 10)  # this thread, on Linux


def late(metrics: str, share: float) -> float:
    """How many milliseconds late the loop was at most in ``share`` of all cases (histogram)."""
    found = re.findall(r'aggml_loop_lag_seconds_bucket\{le="([^"]+)"\} ([\d.e+]+)', metrics)
    total = float(found[-1][1])
    return next(float(le) * 1e3 for le, n in found if float(n) >= share * total)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument(
        "--requests", type=int, default=2000, metavar="N", help="how many requests (2000)"
    )
    parser.add_argument(
        "--warm", type=int, default=0, metavar="N", help="requests before these (0; memory: 3000)"
    )
    parser.add_argument(
        "--threads", type=int, default=2, metavar="N", help="threads of the server (2)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--loop", choices=("asyncio", "trio"), help="default: one after the other")
    given = parser.parse_args(arguments)
    need("httpx", "hypercorn", "uvicorn")
    from benchmarks.models import small

    status = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.gguf"
        small.write_small(path)
        pool = anyio.run(pool_of, path, given.seed)
        for loop in ("asyncio", "trio"):
            if given.loop not in (None, loop):
                continue
            command = ["-m", "aggml", "serve", str(path), "--port", "0", "--loop", loop]
            command += ["--threads", str(given.threads), "--slots", "16"]
            command += ["--deadline", str(PATIENCE)]  # for requests without one
            server = Server([*command, "--ctx", "1024", "--kv-memory", "8"])
            try:
                soak = Soak(server, pool, given.requests, given.seed, given.warm)
                begin = time.perf_counter()
                with ThreadPoolExecutor(1, initializer=_modest) as thread:
                    thread.submit(anyio.run, soak.run).result()
                seconds = time.perf_counter() - begin
            finally:
                server.close()
            memory = ", ".join(f"{x / 1e6:.0f} after {n}" for n, x in soak.memory.items())
            lag = ", ".join(
                f"{q * 100:g} % <= {late(soak.metrics, q):g}" for q in (0.5, 0.99, 0.999)
            )
            print(f"{loop}: {dict(soak.counts)} in {seconds:.0f} s; wrong: {len(soak.wrong)}")
            most = re.search(r"aggml_loop_lag_max_seconds ([\d.e+-]+)", soak.metrics)
            lag += f", at most {float(most[1]) * 1e3 if most else 0:.0f}"
            print(f"  memory in MB, and the requests before it: {memory}")
            print(f"  loop late (ms, bounds of a histogram): {lag}", flush=True)
            for line in soak.wrong[:5]:
                print(f"  {line}")
            status |= bool(soak.wrong)
    return status


if __name__ == "__main__":
    sys.exit(main())
