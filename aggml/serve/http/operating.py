"""Routes for operators: health, readiness, metrics, models of a host, the description of the API.

Not here: the page with a chat (page.py), what is measured (metrics.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse, Response

from aggml import __version__
from aggml.serve.http.exchange import Endpoint, Exchange
from aggml.serve.http.forms import as_json
from aggml.serve.http.openapi import description, documentation
from aggml.serve.http.page import POLICY, page, script, style
from aggml.serve.http.schema import ModelChange, RequestError

if TYPE_CHECKING:
    from aggml.serve.http.service import ServedEntry

__all__ = [
    "ENDPOINTS",
    "alive",
    "docs",
    "health",
    "load",
    "openapi",
    "server_load",
    "show_metrics",
    "unload",
    "version",
]

RETRY: Final = 5  # seconds until a client should ask again


async def health(exchange: Exchange) -> Response:
    """Tell whether new requests are accepted."""
    service = exchange.service
    status = "stopping" if service.stopping else "ok" if service.is_open else "loading model"
    content: dict[str, Any] = {"status": status}
    if not service.keys or _has_key(exchange):
        content["models"] = service.names
    if status != "ok":
        content["error"] = {"code": 503, "message": status, "type": "unavailable_error"}
        return as_json(content, 503, {"retry-after": str(RETRY)})
    return as_json(content)


def _has_key(exchange: Exchange) -> bool:
    try:
        exchange.service.keys.check(exchange.request.headers)
    except RequestError:
        return False
    return True


async def alive(exchange: Exchange) -> Response:
    """Tell that the process runs, also while it loads or stops."""
    return as_json({"status": "stopping" if exchange.service.stopping else "ok"})


async def version(_: Exchange) -> Response:
    """Tell the version of the program."""
    return as_json({"version": __version__})


async def server_load(exchange: Exchange) -> Response:
    """Tell how many requests are under way, but for this one."""
    return as_json({"server_load": max(0, exchange.service.under_way.count - 1)})


async def show_metrics(exchange: Exchange) -> Response:
    """Give the metrics to Prometheus."""
    metrics = exchange.service.metrics
    headers = {"process-start-time-unix": str(metrics.started)}
    return Response(metrics.text(), headers=headers, media_type="text/plain; version=0.0.4")


async def load(exchange: Exchange) -> Response:
    """Load a model of a service with --memory; needs a key."""
    await exchange.service.load(await _requested_entry(exchange))
    return as_json({"success": True})


async def unload(exchange: Exchange) -> Response:
    """Unload a model of a service with --memory; needs a key."""
    await exchange.service.unload(await _requested_entry(exchange))
    return as_json({"success": True})


async def _requested_entry(exchange: Exchange) -> ServedEntry:
    """The model that a request is about.

    Raises:
        RequestError: the service has no keys, so that everybody could ask; no such model.
    """
    if not exchange.service.keys:
        raise RequestError(403, "this route needs a key: start the service with --api-key")
    given = await exchange.read(ModelChange)
    if given.model is None:
        raise RequestError(400, "the field 'model' is missing", field="model")
    return exchange.service.find(given.model)


async def openapi(exchange: Exchange) -> Response:
    """Describe all routes and fields, as OpenAPI 3.1 does."""
    return as_json(description(exchange.request.app.state.endpoints))


async def docs(exchange: Exchange) -> Response:
    """Show the routes and fields on a page."""
    return HTMLResponse(documentation(exchange.request.app.state.endpoints), headers=POLICY)


ENDPOINTS: Final = (
    Endpoint("/health", health, method="GET", aliases=("/v1/health", "/readyz"), open=True),
    Endpoint("/livez", alive, method="GET", aliases=("/ping",), open=True),
    Endpoint("/ping", alive, open=True),
    Endpoint("/version", version, method="GET"),
    Endpoint("/load", server_load, method="GET"),
    Endpoint("/metrics", show_metrics, method="GET"),
    Endpoint("/models/load", load, ModelChange, aliases=("/v1/models/load",)),
    Endpoint("/models/unload", unload, ModelChange, aliases=("/v1/models/unload",)),
    Endpoint("/openapi.json", openapi, method="GET", open=True),
    Endpoint("/docs", docs, method="GET", open=True),
    Endpoint("/", page, method="GET", open=True),
    Endpoint("/page.js", script, method="GET", open=True),
    Endpoint("/page.css", style, method="GET", open=True),
)
