"""Records of what a server does: one value for each event, for the program that started it.

Here: an ASGI application that wraps another one and reports each request. Not here: the servers
(running.py), metrics (metrics.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    Tell = Callable[[dict[str, Any]], None]

__all__ = ["Recorded"]


def _about(scope: Scope) -> dict[str, Any]:
    """What the application noted of a request: its id, the key and the model, ignored fields."""
    exchange = scope.get("state", {}).get("exchange")
    if exchange is None:
        return {}
    found = {"id": exchange.id, "key": exchange.key, "model": exchange.model}
    return {x: value for x, value in found.items() if value is not None} | (
        {"ignored": exchange.unknown[:16]} if exchange.unknown else {}
    )


class Recorded:
    """An ASGI application that reports each request once it has ended.

    Args:
        app: answers the requests.
        tell: gets "request" with method, path, status (None: the client had gone before there was
            one), bytes of the answer, the seconds from the request to the last byte, the id of the
            request, and, if there are any, the name of its key, its model and its ignored fields.
    """

    def __init__(self, app: ASGIApp, tell: Tell) -> None:
        self._app = app
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: the call that ASGI asks for."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        status: int | None = None
        nbytes, begin = 0, time.perf_counter()

        async def note(message: Message) -> None:
            nonlocal status, nbytes
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                nbytes += len(message.get("body", b""))
            elif message["type"] == "websocket.accept":
                status = 101
            elif message["type"] == "websocket.http.response.start":
                status = message["status"]
            elif message["type"] == "websocket.send":
                nbytes += len(message.get("text") or message.get("bytes") or b"")
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            self._tell(
                {
                    "event": "request",
                    "method": scope.get("method", "GET"),
                    "path": scope["path"],
                    "status": status,
                    "bytes": nbytes,
                    "seconds": time.perf_counter() - begin,
                    **_about(scope),
                }
            )
