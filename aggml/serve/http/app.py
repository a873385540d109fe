"""The ASGI application: the routes of all protocols, keys, shares, ids of requests, errors.

It runs under any server and on any loop. Not here: what a route does (openai.py, ranking.py,
responses.py, anthropic.py, llama.py, ollama.py, operating.py), sessions over WebSockets
(realtime.py), the models (service.py), starting a server (running.py).
"""

from __future__ import annotations

import re
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Match, Route, WebSocketRoute

from aggml import InvalidArgument
from aggml.models import FullError
from aggml.serve.http import anthropic, llama, ollama, openai, operating, ranking, responses
from aggml.serve.http.cors import Cors
from aggml.serve.http.exchange import Endpoint, Exchange
from aggml.serve.http.fields import IGNORED
from aggml.serve.http.forms import Failure, as_json, openai_error
from aggml.serve.http.pacing import Door
from aggml.serve.http.realtime import PATHS, RealtimeRoute
from aggml.serve.http.schema import RequestError
from aggml.serve.http.service import Options, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["ENDPOINTS", "application"]

RETRY: Final = 5  # seconds until a client should try again: another server may be up then
ID: Final = "x-request-id"
ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *openai.ENDPOINTS, *ranking.ENDPOINTS, *responses.ENDPOINTS, *anthropic.ENDPOINTS,
    *llama.ENDPOINTS, *ollama.ENDPOINTS, *operating.ENDPOINTS,
)  # fmt: skip


class _Answering:
    """Answers the requests of a route: the ASGI application of that route.

    Args:
        service: has the models.
        endpoint: the route.
        door: lets in one request in each turn of the loop.
    """

    def __init__(self, service: Service, endpoint: Endpoint, door: Door) -> None:
        self._service = service
        self._endpoint = endpoint
        self._door = door
        self._is_off = not {endpoint.path, *endpoint.aliases}.isdisjoint(service.options.without)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: the call that ASGI asks for."""
        request = Request(scope, receive, send)
        async with AsyncExitStack() as stack:
            exchange = Exchange(self._service, request, stack)
            scope.setdefault("state", {})["exchange"] = exchange
            try:
                response = await self._respond(exchange)
                response.headers[ID] = exchange.id
                if exchange.unknown:
                    response.headers[IGNORED] = self._service.ignored.note(exchange.unknown)
                await response(scope, receive, send)
            finally:
                exchange.end()

    async def _respond(self, exchange: Exchange) -> Response:
        endpoint, service = self._endpoint, self._service
        await self._door.enter()
        try:
            self._admit(exchange)
            if self._is_off:
                raise RequestError(501, f"this server runs without {endpoint.path}")
            response = await endpoint.answer(exchange)
        except Exception as error:
            response = Failure(error).response(exchange.errors or endpoint.errors)
            if response.status_code == 499:
                service.metrics.hung_up.inc()
        service.metrics.requests.labels(endpoint.path, str(response.status_code)).inc()
        return response

    def _admit(self, exchange: Exchange) -> None:
        """Check the key and the share of the client.

        Raises:
            RequestError: the key is wrong, or the client asks too much.
            FullError: the server is stopping.
        """
        endpoint, service, request = self._endpoint, self._service, exchange.request
        if service.stopping and endpoint.method == "POST":
            raise FullError("the server is stopping", RETRY)
        if not endpoint.open:
            exchange.key = service.keys.check(request.headers)
        if endpoint.method == "POST":
            address = "" if request.client is None else request.client.host
            client = address if exchange.key is None else exchange.key
            exchange.stack.enter_context(service.shares.take(client))


_SLASHES: Final = re.compile("/{2,}")


def _plain_paths(app: ASGIApp) -> ASGIApp:
    """Take a path with a slash at its end, or with doubled ones, for the path without them."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            path = scope["path"]
            if path.endswith("/") or "//" in path or path.startswith("/v1/v1/"):
                path = _SLASHES.sub("/", path)
                if path.startswith("/v1/v1/"):  # of clients whose base already ends in /v1
                    path = path.removeprefix("/v1")
                scope = {**scope, "path": path.rstrip("/") or "/"}
        await app(scope, receive, send)

    return call


def application(options: Options) -> Starlette:
    """The ASGI application; models are loaded when the server starts it.

    Raises:
        InvalidArgument: an option is wrong.
    """
    service = Service(options)
    door = Door()

    async def refuse(request: Request, error: Exception) -> Response:
        """Answer a request for no route in the form of all other errors."""
        assert isinstance(error, HTTPException)
        reason = f"{error.detail}: {request.method} {request.url.path}"
        failure = Failure(RequestError(error.status_code, reason))
        headers = error.headers
        if error.status_code == 405:  # a path may have a route for each of several methods
            fitting = [x for x in routes if isinstance(x, Route)]
            fitting = [x for x in fitting if x.matches(request.scope)[0] is not Match.NONE]
            headers = {"allow": ", ".join(sorted({y for x in fitting for y in x.methods or ()}))}
        return as_json(openai_error(failure), error.status_code, headers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if service.is_open:
            yield
            return
        async with service.open():
            yield

    known = {y for x in ENDPOINTS for y in (x.path, *x.aliases)}
    for path in options.without:
        if path not in known:
            raise InvalidArgument(f"[serve] without has {path!r}, which is the path of no route")
    routes: list[Any] = []
    for endpoint in ENDPOINTS:
        if endpoint.path == "/" and not options.page:
            continue
        answering = _Answering(service, endpoint, door)
        routes += [
            Route(path, answering, methods=[endpoint.method])
            for path in (endpoint.path, *endpoint.aliases)
        ]
    sessions = RealtimeRoute(service, door)
    routes += [WebSocketRoute(path, sessions) for path in PATHS]
    middleware = [Middleware(service.under_way.wrap), Middleware(_plain_paths)]
    if options.cors:
        cors = Middleware(Cors, allowed=options.cors, exposed=[ID, IGNORED])
        middleware.insert(0, cors)
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: refuse},
        middleware=middleware,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.endpoints = ENDPOINTS
    return app
