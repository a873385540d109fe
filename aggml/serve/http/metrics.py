"""The metrics of the service, for Prometheus. Not here: counting (engine.py, app.py)."""

from __future__ import annotations

import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily

from aggml.serve.http.llama_figures import LlamaFigures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aggml.models import TextModel
    from aggml.models.engine.interface import TextEngine
    from aggml.serve.http.fields import Ignored
    from aggml.serve.http.pacing import LiveSessions, UnderWay

__all__ = ["Metrics"]

# Seconds between two looks at how late the loop is. Each wakes the loop, which takes a core from a
# worker: with 0.01 that was a third of the loop's time with 64 clients.
_TICK = 0.05
_SHORT = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_LONG = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
ENGINE = {
    "prompt_tokens": "Tokens of prompts that were computed, so far",
    "cached_prompt_tokens": "Tokens of prompts that were copied from stored pages, so far",
    "tokens": "Tokens of answers, so far",
    "failed_steps": "Decoding steps that failed, so far",
    "preemptions": "Sequences that had to make room for others, so far",
    "drafts": "Drafts that were verified, so far",
    "draft_tokens": "Tokens of drafts that were verified, so far",
    "accepted_tokens": "Tokens of drafts that were right, so far",
    "queued": "Sequences that wait for a slot",
    "active": "Sequences that have a slot",
    "pages_used": "Pages of keys and values reserved for sequences that have a slot",
    "pages_stored": "Pages that keep the beginnings of earlier prompts",
    "pages": "Pages of keys and values that --kv-memory has room for",
}


#: How to get the figures of `ENGINE`.
FIGURES: dict[str, Callable[[TextEngine], float]] = {
    "prompt_tokens": lambda engine: engine.counters.prompt_tokens,
    "cached_prompt_tokens": lambda engine: engine.counters.cached_tokens,
    "tokens": lambda engine: engine.counters.tokens,
    "failed_steps": lambda engine: engine.counters.failed_steps,
    "preemptions": lambda engine: engine.counters.preemptions,
    "drafts": lambda engine: engine.counters.drafts,
    "draft_tokens": lambda engine: engine.counters.draft_tokens,
    "accepted_tokens": lambda engine: engine.counters.accepted_tokens,
    "queued": lambda engine: engine.queued,
    "active": lambda engine: engine.active,
    "pages_used": lambda engine: engine.page_usage.used,
    "pages_stored": lambda engine: engine.page_usage.stored,
    "pages": lambda engine: engine.page_usage.total,
}
#: The same figures by the names of vLLM, for programs that look at these.
VLLM: dict[str, str] = {
    "vllm:num_requests_running": "active",
    "vllm:num_requests_waiting": "queued",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "tokens",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "vllm:prefix_cache_hits_total": "cached_prompt_tokens",
}
USAGE = "vllm:kv_cache_usage_perc"


def _figure(engine: weakref.ref[TextEngine], value: Callable[[TextEngine], float]) -> float:
    """A figure of an engine; 0 if it is gone."""
    found = engine()
    return 0.0 if found is None else value(found)


def _usage(engine: TextEngine) -> float:
    pages = engine.page_usage
    return pages.used / pages.total if pages.total else 0.0


class _IgnoredFields:
    """Counts of the fields that were ignored."""

    def __init__(self, ignored: Ignored) -> None:
        self._ignored = ignored

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counts as Prometheus takes them."""
        found = CounterMetricFamily(
            "aggml_ignored_fields", "Requests with an unknown field, which was ignored",
            labels=["field"],
        )  # fmt: skip
        for name, count in self._ignored.counts.items():
            found.add_metric([name], count)
        yield found


class Metrics:
    """The metrics of one application, in a registry of their own.

    Attributes:
        started: when, in seconds since 1970.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "aggml_requests", "Requests answered", ["path", "status"], registry=registry
        )
        self.hung_up = Counter(
            "aggml_hung_up",
            "Clients that hung up before their answer was complete",
            registry=registry,
        )
        self.first_token = Histogram(
            "aggml_first_token_seconds", "Seconds from queueing to the first token",
            registry=registry, buckets=_LONG,
        )  # fmt: skip
        self.step = Histogram(
            "aggml_step_seconds",
            "Seconds of one decoding step of all sequences",
            registry=registry,
            buckets=_SHORT,
        )
        self.lag = Histogram(
            "aggml_loop_lag_seconds", "Seconds by which the event loop wakes too late",
            registry=registry, buckets=_SHORT,
        )  # fmt: skip
        self.most = Gauge(
            "aggml_loop_lag_max_seconds",
            "The most seconds by which the event loop woke too late",
            registry=registry,
        )

        self._llama = LlamaFigures()
        self._found: dict[str, weakref.ref[TextEngine]] = {}
        self.started: Final[int] = int(time.time())
        self._vllm = {
            name: Gauge(name, what, ["model_name"], registry=registry)
            for name, what in {
                **{name: ENGINE[counted] for name, counted in VLLM.items()},
                USAGE: "Part of the pages that is reserved",
            }.items()
        }
        self._engines = {
            name: Gauge(f"aggml_{name}", what, ["model"], registry=registry)
            for name, what in ENGINE.items()
        }

    def show_requests(self, under_way: UnderWay) -> None:
        """Show how many requests are under way."""
        Gauge("aggml_under_way", "Requests under way", registry=self._registry).set_function(
            lambda: under_way.count
        )

    def show_sessions(self, sessions: LiveSessions) -> None:
        """Show how many sessions of live speech are open."""
        Gauge(
            "aggml_sessions", "Sessions of live speech that are open", registry=self._registry
        ).set_function(lambda: len(sessions))

    def show_ignored(self, ignored: Ignored) -> None:
        """Show which unknown fields requests have."""
        self._registry.register(_IgnoredFields(ignored))

    def show_engine(self, name: str, model: TextModel) -> None:
        """Show the counters of an engine, labelled with the name of its model."""
        counters = model.engine.counters
        counters.waited, counters.stepped = self.first_token.observe, self.step.observe
        found = weakref.ref(model.engine)  # a model of a host may be unloaded
        self._found[name] = found
        self._llama.show(name, model.engine)
        for counted, value in FIGURES.items():
            self._engines[counted].labels(name).set_function(partial(_figure, found, value))
        for shown, counted in VLLM.items():
            self._vllm[shown].labels(name).set_function(partial(_figure, found, FIGURES[counted]))
        self._vllm[USAGE].labels(name).set_function(partial(_figure, found, _usage))

    def text(self) -> bytes:
        """All metrics in the format of Prometheus."""
        engines = [x for x in (found() for found in self._found.values()) if x is not None]
        return generate_latest(self._registry) + self._llama.text(engines)

    async def tick(self) -> None:
        """Measure the lag of the loop until cancelled."""
        most = 0.0
        while True:
            begin = time.perf_counter()
            await anyio.sleep(_TICK)
            late = max(0.0, time.perf_counter() - begin - _TICK)
            self.lag.observe(late)
            if late > most:
                most = late
                self.most.set(most)
