"""Runs faster-whisper as a service: ``python -m benchmarks.whisper_server FOLDER THREADS``.

It answers ``POST /v1/audio/transcriptions`` with a WAV file in a form, as OpenAI's API has it. The
model blocks, so each request has a thread. Not here: the clients (mixed.py).
"""

from __future__ import annotations

import functools
import socket
import sys
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from aggml.models import read_wav
from benchmarks.peers import module

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

WAV = b"RIFF"  # how such a file begins; it says itself where it ends


def _heard(model: Any, body: bytes) -> str:
    samples, _ = read_wav(body[body.index(WAV) :])
    said, _ = model.transcribe(samples, language="en", beam_size=1, temperature=0.0)
    return "".join(x.text for x in said)


def main() -> None:
    """Serve until killed; the address is printed once requests are taken."""
    folder, threads = sys.argv[1], int(sys.argv[2])
    model = module("faster_whisper").WhisperModel(
        folder, device="cpu", compute_type="float32", cpu_threads=threads
    )

    async def transcribe(request: Request) -> Response:
        heard = functools.partial(_heard, model, await request.body())
        return JSONResponse({"text": await anyio.to_thread.run_sync(heard)})

    app = Starlette(routes=[Route("/v1/audio/transcriptions", transcribe, methods=["POST"])])
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn = module("uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
