"""Running a server: uvicorn on asyncio, hypercorn on trio, and how they end at a signal.

After SIGTERM or Ctrl-C new requests are answered with 503, and requests under way have some time to
end; a second signal cuts them off. Not here: the application (app.py), the command (aggml/cli).
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import anyio.to_thread

from aggml.process.heap import trim_heap
from aggml.serve.http.app import application
from aggml.serve.http.connections import connection_class
from aggml.serve.http.records import Recorded
from aggml.serve.http.streams import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.applications import Starlette

    from aggml.serve.http.records import Tell
    from aggml.serve.http.service import Options, Service

__all__ = ["Address", "check_free", "run", "run_hypercorn", "run_uvicorn", "until_stopped"]

# Seconds that an idle connection stays open. It is longer than clients and proxies keep theirs open
# (httpx 5, many 60): if the server closed first, a client could send a request into a closed one.
KEEP_ALIVE: Final = 75
LAST: Final = 5  # seconds to send the last bytes, once all answers are computed


@dataclass(frozen=True)
class Address:
    """Where a server listens, and how it runs.

    Attributes:
        host: the TCP address, or several, divided by commas.
        port: of all of them; 0 takes a free port, which the log names.
        loop: asyncio runs under uvicorn, trio under hypercorn.
        log_level: "debug" logs each request.
        tell: gets the events "listening" (with the address and the models), "request" and
            "stopped". Requests are then not logged.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    loop: Literal["asyncio", "trio"] = "asyncio"
    log_level: str = "info"
    tell: Tell | None = None

    @property
    def hosts(self) -> list[str]:
        """The TCP addresses."""
        return [x.strip().strip("[]") for x in self.host.split(",") if x.strip()]

    def logs_requests(self) -> bool:
        """Whether the server writes a line of log for each request."""
        return self.log_level == "debug" and self.tell is None

    def app(self, app: Starlette) -> Any:  # noqa: ANN401 an ASGI application
        """The application, wrapped in `Recorded` if events are wanted."""
        return app if self.tell is None else Recorded(app, self.tell)

    def report_listening(self, app: Starlette, url: str) -> None:
        """Report that requests are accepted."""
        if self.tell is not None:
            self.tell({"event": "listening", "url": url, "models": app.state.service.names})


async def until_stopped(service: Service, end: Callable[[], object]) -> None:
    """Wait for a signal, then for the requests under way, and end the server.

    From the first signal on, new requests are answered with 503; the server listens until the end.
    A second signal cuts off the requests under way.
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
            """Leave signals to `until_stopped`: uvicorn would stop listening at the first one."""
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Listen, and report the address."""
            await super().startup(sockets)
            if self.started:
                urls = [_url(x.getsockname()) for one in self.servers for x in one.sockets]
                if sockets is not None:  # uvicorn names them by their numbers
                    logging.getLogger("uvicorn.error").info(
                        "listening on %s", " and on ".join(urls)
                    )
                where.report_listening(app, urls[0])

    options = app.state.service.options
    server = Server(
        uvicorn.Config(
            where.app(app),
            host=where.hosts[0],
            port=where.port,
            lifespan="off",  # the models are open already
            log_level=where.log_level,
            access_log=where.logs_requests(),
            timeout_graceful_shutdown=LAST,
            timeout_keep_alive=KEEP_ALIVE,
            http=connection_class(options.header_timeout),
            ws="wsproto",  # hypercorn, which is always there, brings it
            ws_max_size=options.max_body,
            ws_ping_interval=options.ping or None,
            ws_per_message_deflate=False,  # sound in base64 hardly gets smaller
        )
    )

    def end() -> None:
        server.should_exit = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_stopped, app.state.service, end)
        await server.serve(_sockets(where) if len(where.hosts) > 1 else None)
        tasks.cancel_scope.cancel()
    return 0 if server.started else 3  # the status of uvicorn's own command


async def run_hypercorn(app: Starlette, where: Address) -> int:
    """Run on trio; returns the exit status."""
    from hypercorn.config import Config
    from hypercorn.trio import serve

    config = Config()
    if len(where.hosts) > 1:
        config.bind = [f"fd://{x.detach()}" for x in _sockets(where)]
    else:
        (host,) = where.hosts
        config.bind = [f"[{host}]:{where.port}" if ":" in host else f"{host}:{where.port}"]
    config.graceful_timeout = LAST
    config.keep_alive_timeout = KEEP_ALIVE
    config.websocket_max_message_size = app.state.service.options.max_body
    config.websocket_ping_interval = app.state.service.options.ping or None
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
            where.report_listening(app, url)
        tasks.cancel_scope.cancel()
    return 0


def _url(name: tuple[Any, ...]) -> str:
    """The URL of a socket's address."""
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _sockets(where: Address) -> list[socket.socket]:
    """Sockets for several addresses, all of one port.

    Raises:
        OSError: one is in use, or not of this machine.
    """
    found: list[socket.socket] = []
    port = where.port
    try:
        for host in where.hosts:
            (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
            one = socket.socket(family, kind, protocol)
            found.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # the same port of IPv4 is a socket of its own
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            port = one.getsockname()[1]
    except OSError:
        for one in found:
            one.close()
        raise
    return found


def check_free(where: Address) -> None:
    """Check that a server can listen there, before loading models takes minutes.

    Raises:
        OSError: the address is in use, not one of this machine, or not allowed.
    """
    for host in where.hosts:
        try:
            found = socket.getaddrinfo(host, where.port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, address in found:
                with socket.socket(family, kind, protocol) as tried:
                    tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    tried.bind(address)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise OSError(f"cannot listen on {host}:{where.port}: {why}") from None


def run(options: Options, where: Address) -> int:
    """Load the models, then serve until a signal; returns the exit status.

    Raises:
        ModelError: as for `aggml.models.load`.
        OSError: the address is in use, or cannot be listened on for another reason.
        ModuleNotFoundError: the server is not installed (the extra ``serve`` brings both).
    """
    # A thread that tokenizes prompts may hold the GIL for this many seconds before the event loop
    # gets it. The default, 5 ms, is more than the loop should ever be late.
    sys.setswitchinterval(0.0005)
    check_free(where)
    app = application(options)

    async def main() -> int:
        async with app.state.service.open():
            # Reading a vocabulary of 152,000 words leaves 21 MB. Nobody waits yet.
            await anyio.to_thread.run_sync(trim_heap)
            on = run_uvicorn if where.loop == "asyncio" else run_hypercorn
            return await on(app, where)

    try:
        return anyio.run(main, backend=where.loop)
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    finally:
        if where.tell is not None:
            where.tell({"event": "stopped"})
