"""Spans of requests for OpenTelemetry, if its API is installed; without it nothing happens.

The program that runs the service sets the provider and the exporter up; here is the API alone. A
span begins when a request has a model, is a child of the client's ``traceparent``, and has events
for its first token and its end. Names are those of OpenTelemetry for generative models.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

    from aggml.serve.http.exchange import Exchange

__all__ = ["RequestSpan"]


@functools.cache
def _api() -> tuple[Any, Any] | None:
    """The modules ``propagate`` and ``trace`` of OpenTelemetry; None: it is not installed."""
    try:
        from opentelemetry import propagate, trace
    except ModuleNotFoundError:
        return None
    return propagate, trace


class RequestSpan:
    """The span of a request for text: ``with span: ...``; ends once."""

    def __init__(self, span: Any) -> None:  # noqa: ANN401 of OpenTelemetry, or None
        self._span = span
        self._begin = time.perf_counter()
        self._first = False

    @classmethod
    def begin(cls, exchange: Exchange) -> Self:
        """The span of a request that has a model."""
        api = _api()
        if api is None:
            return cls(None)
        propagate, trace = api
        headers = dict(exchange.request.headers)
        span = trace.get_tracer("aggml").start_span(
            f"{exchange.request.method} {exchange.request.url.path}",
            propagate.extract(headers),
            kind=trace.SpanKind.SERVER,
        )
        if not span.is_recording():
            return cls(None)
        span.set_attribute("gen_ai.request.model", exchange.model or "")
        span.set_attribute("gen_ai.request.id", exchange.id)
        return cls(span)

    def first(self) -> None:
        """Note that the first piece has come."""
        if self._span is None or self._first:
            return
        self._first = True
        seconds = time.perf_counter() - self._begin
        self._span.add_event("first token")
        self._span.set_attribute("gen_ai.latency.time_to_first_token", seconds)

    def tell(self, prompt: int, made: int, cached: int) -> None:
        """Note how many tokens there were.

        Args:
            prompt: of the prompts.
            made: of the answers.
            cached: of the prompts that did not have to be computed.
        """
        if self._span is None:
            return
        self._span.set_attribute("gen_ai.usage.input_tokens", prompt)
        self._span.set_attribute("gen_ai.usage.output_tokens", made)
        self._span.set_attribute("gen_ai.usage.cached_tokens", cached)

    def fail(self, error: BaseException) -> None:
        """Note an error."""
        api = _api()
        if self._span is not None and api is not None:
            _, trace = api
            self._span.record_exception(error)
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))

    def end(self, error: BaseException | None = None) -> None:
        """End the span."""
        if self._span is None:
            return
        if error is not None:
            self.fail(error)
        self._span.set_attribute("gen_ai.latency.e2e", time.perf_counter() - self._begin)
        self._span.end()
        self._span = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> None:
        self.end(error)
