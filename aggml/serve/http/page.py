"""The page at ``/``: a chat with any model of the service, and live figures.

Three static files lie in static/. The policy lets the browser load and ask this service alone. Not
here: the routes that the page asks (openai.py, operating.py).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

if TYPE_CHECKING:
    from aggml.serve.http.exchange import Exchange

__all__ = ["POLICY", "page", "script", "style"]

STATIC: Final = Path(__file__).with_name("static")
POLICY: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@cache
def _read(name: str) -> bytes:
    return (STATIC / name).read_bytes()


async def page(_: Exchange) -> Response:
    """Show a chat with the models of this service."""
    return Response(_read("page.html"), headers=POLICY, media_type="text/html; charset=utf-8")


async def script(_: Exchange) -> Response:
    """The program of the page."""
    return Response(_read("page.js"), headers=POLICY, media_type="text/javascript; charset=utf-8")


async def style(_: Exchange) -> Response:
    """The looks of the page."""
    return Response(_read("page.css"), headers=POLICY, media_type="text/css; charset=utf-8")
