"""What the tests of aggml.serve share: the application in process, servers in processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx

from aggml.serve import Limits
from aggml.serve.http import Options, application

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from starlette.applications import Starlette

    from aggml.models.engine.engine import Engine

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 100  # seconds: less than the watch of a process (watch.py), to fail alone
SMALL = "small"
GREEDY = {"temperature": 0, "ignore_eos": True}


LOOPS = ("uvicorn", "hypercorn")
LIMITS = (
    "ctx", "slots", "max_waiting", "kv_memory", "chunk", "prefix_cache", "chat_template", "draft",
    "mmproj",
)  # fmt: skip


def engine_of(app: Starlette) -> Engine:
    """The engine of the only model that generates text."""
    (model,) = app.state.service.completers.values()
    engine: Engine = model.engine
    return engine


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Starlette, httpx.AsyncClient]]:
    limits = Limits(**{"ctx": 512, **{x: options.pop(x) for x in LIMITS if x in options}})
    app = application(Options(threads=2, limits=limits, **options))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            with anyio.fail_after(PATIENCE):
                yield app, client


async def events(response: httpx.Response) -> list[Any]:
    lines = [line async for line in response.aiter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


@contextmanager
def started(
    files: Sequence[Path], server: str, said: list[str] | None = None, more: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own: the process and its address. ``said`` gets its log."""
    loop = {"uvicorn": "asyncio", "hypercorn": "trio"}[server]
    # -P: the aggml that is installed, not the folder of that name, which may have no native module.
    command = [sys.executable, "-P", "-m", "aggml", "serve", *map(str, files), "--loop", loop]
    process = subprocess.Popen(
        [*command, "--drain", "30", "--threads", "2", *more, "--port", "0"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    lines = [] if said is None else said
    reader: threading.Thread | None = None
    assert process.stderr is not None
    try:
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"on http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise AssertionError("".join(lines))
        reader = threading.Thread(target=lines.extend, args=(process.stderr,))
        reader.start()
        yield process, f"http://127.0.0.1:{found[1]}"
    finally:
        process.kill()
        process.wait(PATIENCE)
        if reader is not None:
            reader.join(PATIENCE)
        process.stderr.close()
