"""Running a server: uvicorn on asyncio, hypercorn on trio, and how they end at a signal.

After SIGTERM or Ctrl-C new requests are answered with 503, and requests under way have some time to
end; a second signal cuts them off. Not here: the application (app.py), the command (aggml/cli).
"""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from aggml.serve.http.app import application
from aggml.serve.http.records import Recorded
from aggml.serve.http.streams import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.applications import Starlette

    from aggml.serve.http.records import Tell
    from aggml.serve.http.service import Options, Service

__all__ = ["Address", "check_free", "run", "run_hypercorn", "run_uvicorn", "until_stopped"]

# Seconds that an idle connection stays open: longer than clients and proxies keep theirs (httpx 5,
# many 60). Who closes first must be the client, or a request may be sent into a closed connection.
KEEP_ALIVE: Final = 75
LAST: Final = 5  # seconds for the last bytes of answers, once all are made


@dataclass(frozen=True)
class Address:
    """Where a server listens, and how it runs.

    Attributes:
        host, port: of TCP; port 0 takes a free one, which the log names.
        loop: asyncio runs under uvicorn, trio under hypercorn.
        log_level: "debug" logs each request.
        tell: gets "listening" with the address and the models, each "request", and "stopped". The
            log of requests is left out then.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    loop: Literal["asyncio", "trio"] = "asyncio"
    log_level: str = "info"
    tell: Tell | None = None

    def logs_requests(self) -> bool:
        """Whether the server writes a line for each."""
        return self.log_level == "debug" and self.tell is None

    def app(self, app: Starlette) -> Any:  # noqa: ANN401 an ASGI application
        """The application as it is run here."""
        return app if self.tell is None else Recorded(app, self.tell)

    def listening(self, app: Starlette, url: str) -> None:
        """Tell that requests are accepted."""
        if self.tell is not None:
            self.tell({"event": "listening", "url": url, "models": app.state.service.names})


async def until_stopped(service: Service, end: Callable[[], object]) -> None:
    """End the server when the requests under way have ended; it listens until then.

    At a first signal new requests are answered with 503. A second one cuts the others off.
    """

    async def drain() -> None:
        await service.drain(service.options.drain)
        end()

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            async for _ in signals:
                if service.stopping:
                    service.cut_off()
                    end()
                else:
                    tasks.start_soon(drain)


async def run_uvicorn(app: Starlette, where: Address) -> int:
    """Run on asyncio; returns the exit status."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave them to `until_stopped`: uvicorn stops listening at the first one."""
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Listen, and tell where."""
            await super().startup(sockets)
            if self.started:
                where.listening(app, _url(self.servers[0].sockets[0].getsockname()))

    server = Server(
        uvicorn.Config(
            where.app(app),
            host=where.host,
            port=where.port,
            lifespan="off",  # the models are open already
            log_level=where.log_level,
            access_log=where.logs_requests(),
            timeout_graceful_shutdown=LAST,
            timeout_keep_alive=KEEP_ALIVE,
        )
    )

    def end() -> None:
        server.should_exit = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_stopped, app.state.service, end)
        await server.serve()
        tasks.cancel_scope.cancel()
    return 0 if server.started else 3  # as uvicorn's own command


async def run_hypercorn(app: Starlette, where: Address) -> int:
    """Run on trio; returns the exit status."""
    from hypercorn.config import Config
    from hypercorn.trio import serve

    config = Config()
    config.bind = [f"{where.host}:{where.port}"]
    config.graceful_timeout = LAST
    config.keep_alive_timeout = KEEP_ALIVE
    config.shutdown_timeout = app.state.service.options.drain + LAST
    config.loglevel = where.log_level
    if where.logs_requests():
        config.accesslog = "-"
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_stopped, app.state.service, stop.set)
        async with anyio.create_task_group() as server:
            listens = partial(serve, where.app(app), config, shutdown_trigger=stop.wait)
            (url, *_) = await server.start(listens)
            where.listening(app, url)
        tasks.cancel_scope.cancel()
    return 0


def _url(name: tuple[Any, ...]) -> str:
    """Of the address of a socket."""
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_free(where: Address) -> None:
    """See that a server can listen there, before models are loaded for minutes.

    Raises:
        OSError: it cannot: the address is in use, or none of this machine, or not allowed.
    """
    try:
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise OSError(f"cannot listen on {where.host}:{where.port}: {why}") from None


def run(options: Options, where: Address) -> int:
    """Load the models, then serve until a signal; returns the exit status.

    Raises:
        ModelError: as `aggml.models.load`.
        OSError: the address is in use, or cannot be listened on for another reason.
        ModuleNotFoundError: the server is not installed (the extra ``serve`` brings both).
    """
    # A thread turns prompts into tokens, and may hold the interpreter for this long before the loop
    # goes on. The default, 5 ms, is more than the loop should ever be late.
    sys.setswitchinterval(0.0005)
    check_free(where)
    app = application(options)

    async def main() -> int:
        async with app.state.service.opened():
            on = run_uvicorn if where.loop == "asyncio" else run_hypercorn
            return await on(app, where)

    try:
        return anyio.run(main, backend=where.loop)
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    finally:
        if where.tell is not None:
            where.tell({"event": "stopped"})
