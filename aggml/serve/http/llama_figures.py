"""The figures of the service by llama-server's names, for programs that look at these.

Each is over all models. Not here: counting (`Counters` of the engine), our own figures and those by
vLLM's names (metrics.py).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from aggml.models.engine.interface import Counters, TextEngine

__all__ = ["LlamaFigures"]

PREFIX: Final = "llamacpp:"


class _Row(NamedTuple):
    """A figure.

    Attributes:
        name: without the prefix.
        kind: whether it only grows.
        about: what it tells.
    """

    name: str
    kind: Literal["counter", "gauge"]
    about: str


ROWS: Final = (
    _Row("prompt_tokens_total", "counter", "Tokens of prompts that were computed"),
    _Row("prompt_tokens_cached_total", "counter", "Tokens of prompts that need not be computed"),
    _Row("prompt_seconds_total", "counter", "Seconds of steps, the part of prompts"),
    _Row("tokens_predicted_total", "counter", "Tokens of answers"),
    _Row("tokens_predicted_seconds_total", "counter", "Seconds of steps, the part of answers"),
    _Row("n_decode_total", "counter", "Decoding steps"),
    _Row("n_tokens_max", "counter", "Most tokens of a sequence, so far"),
    _Row("spec_decode_num_drafts_total", "counter", "Drafts that were verified"),
    _Row("spec_decode_num_draft_tokens_total", "counter", "Tokens of these drafts"),
    _Row("spec_decode_num_accepted_tokens_total", "counter", "Tokens of drafts that were right"),
    _Row("prompt_tokens_seconds", "gauge", "Tokens of prompts a second, since the last look"),
    _Row("predicted_tokens_seconds", "gauge", "Tokens of answers a second, since the last look"),
    _Row("requests_processing", "gauge", "Sequences that have a slot"),
    _Row("requests_deferred", "gauge", "Sequences that wait for a slot"),
    _Row("n_busy_slots_per_decode", "gauge", "Sequences in a decoding step, on average"),
)


@dataclass
class _Totals:
    """Sums of what the models of the service have counted, or the most of it."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    sequences: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    prompt_seconds: float = 0.0
    answer_seconds: float = 0.0
    longest: int = 0

    def add(self, counters: Counters) -> None:
        """Add what one model has counted."""
        for each in fields(self):
            found, more = getattr(self, each.name), getattr(counters, each.name)
            setattr(self, each.name, max(found, more) if each.name == "longest" else found + more)


class LlamaFigures:
    """The figures of all models, also of those that are gone: counters never become smaller."""

    def __init__(self) -> None:
        self._models: dict[str, Counters] = {}
        self._gone = _Totals()
        self._seen = _Totals()  # at the last look

    def show(self, name: str, counters: Counters) -> None:
        """Count what a model counts, in the place of what it counted before it was unloaded."""
        before = self._models.get(name)
        if before is counters:
            return
        if before is not None:
            self._gone.add(before)
        self._models[name] = counters

    def text(self, engines: list[TextEngine]) -> bytes:
        """The figures in the format of Prometheus.

        Args:
            engines: those of models that continue text.
        """
        now = _Totals()
        for each in fields(now):
            setattr(now, each.name, getattr(self._gone, each.name))
        for counters in self._models.values():
            now.add(counters)
        before, self._seen = self._seen, now
        values = {
            "prompt_tokens_total": now.prompt_tokens,
            "prompt_tokens_cached_total": now.cached_tokens,
            "prompt_seconds_total": now.prompt_seconds,
            "tokens_predicted_total": now.tokens,
            "tokens_predicted_seconds_total": now.answer_seconds,
            "n_decode_total": now.steps,
            "n_tokens_max": now.longest,
            "spec_decode_num_drafts_total": now.drafts,
            "spec_decode_num_draft_tokens_total": now.draft_tokens,
            "spec_decode_num_accepted_tokens_total": now.accepted_tokens,
            "prompt_tokens_seconds": _rate(
                now.prompt_tokens - before.prompt_tokens, now.prompt_seconds - before.prompt_seconds
            ),
            "predicted_tokens_seconds": _rate(
                now.tokens - before.tokens, now.answer_seconds - before.answer_seconds
            ),
            "requests_processing": sum(x.active for x in engines),
            "requests_deferred": sum(x.queued for x in engines),
            "n_busy_slots_per_decode": _rate(now.sequences, now.steps),
        }
        lines = []
        for name, kind, about in ROWS:
            full = PREFIX + name
            lines += [f"# HELP {full} {about}", f"# TYPE {full} {kind}", f"{full} {values[name]}"]
        return ("\n".join(lines) + "\n").encode()


def _rate(count: float, over: float) -> float:
    return count / over if over > 0 else 0.0
