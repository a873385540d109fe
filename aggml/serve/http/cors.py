"""Which pages of other origins may ask: the headers by which a browser knows it (CORS).

Here: preflights, headers of answers, origins that are allowed. Not here: keys (keys.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Cors", "allows_origin"]

ALL: Final = "*"
LOCAL: Final = "localhost"
_LOCAL: Final = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII)
METHODS: Final = "GET, POST, DELETE, OPTIONS"
SECONDS: Final = "600"  # for which a browser remembers the answer to a preflight


def allows_origin(allowed: Sequence[str], origin: str) -> bool:
    """Whether pages of an origin may ask.

    Args:
        allowed: origins; "*": all; "localhost": pages of this machine, of any port.
        origin: of the page, as its browser tells it.
    """
    if ALL in allowed or origin in allowed:
        return True
    return LOCAL in allowed and _LOCAL.fullmatch(origin) is not None


class Cors:
    """Answers preflights, and adds the headers of an allowed origin to all other answers.

    A preflight of an origin that may not ask is answered without headers, which the browser takes
    for a refusal. Credentials, which are cookies and the passwords of proxies, are allowed to
    origins that are named: with "*" a page of anybody could use those of a user.

    Args:
        app: answers the requests.
        allowed: origins whose pages may ask.
        exposed: headers of answers that pages may read.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str], exposed: Sequence[str]) -> None:
        self._app = app
        self._allowed = tuple(allowed)
        self._exposed = ", ".join(exposed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: the call that ASGI asks for."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None:
            await self._app(scope, receive, send)
            return
        found = self._headers(origin)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            if "access-control-allow-origin" in found:
                asked = headers.get("access-control-request-headers")
                # By name: "*" does not stand for Authorization, which brings the key.
                found["access-control-allow-headers"] = asked or ALL
                found["access-control-allow-methods"] = METHODS
                found["access-control-max-age"] = SECONDS
            await Response(status_code=200, headers=found)(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                for name, value in found.items():
                    if name == "vary":
                        told.add_vary_header(value)
                    else:
                        told[name] = value
            await send(message)

        await self._app(scope, receive, with_headers)

    def _headers(self, origin: str) -> dict[str, str]:
        """The headers for an origin, of preflights and of other answers."""
        found = {"vary": "Origin"}
        if not allows_origin(self._allowed, origin):
            return found
        found["access-control-allow-origin"] = origin
        found["access-control-expose-headers"] = self._exposed
        if ALL not in self._allowed:
            found["access-control-allow-credentials"] = "true"
        return found
