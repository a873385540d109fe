"""How long the parts of an answer took, in llama-server's words.

Not here: when tokens came (choice.py), figures of the whole service (metrics.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aggml.serve.http.choice import Choice

__all__ = ["progress_of", "sum_of_timings", "timings_of"]


def timings_of(choice: Choice) -> dict[str, Any]:
    """The times of an answer.

    The step that ends a prompt gives the first token. So an answer of n tokens took n - 1 steps of
    its own, and its rate counts these.
    """
    clock = choice.clock
    cached = choice.cached
    tokens = max(0, choice.prompt_tokens - cached)
    found = _make_timings(
        cached, tokens, clock.prompt, choice.made, clock.answer, max(0, choice.made - 1)
    )
    return found | _drafts((choice,))


def progress_of(choice: Choice, done: int, total: int, *, timings: bool) -> dict[str, Any]:
    """How much of a prompt is computed, as members of an event.

    Args:
        choice: whose prompt it is.
        done: tokens that are computed, with those that were known before.
        total: all tokens.
        timings: whether times are told, too.
    """
    cached = choice.cached
    seconds = choice.clock.prompt if done > cached else 0.0
    progress = {
        "total": total, "cache": cached, "processed": done, "time_ms": round(seconds * 1000),
    }  # fmt: skip
    told: dict[str, Any] = {"prompt_progress": progress}
    if timings:
        told["timings"] = _make_timings(cached, done - cached, seconds, 0, 0.0, 0)
    return told


def sum_of_timings(choices: Sequence[Choice]) -> dict[str, Any]:
    """The times of several answers together; a prompt of several answers counts once."""
    prompts = {x.group: x for x in reversed(choices)}.values()
    made = sum(x.made for x in choices)
    found = _make_timings(
        sum(x.cached for x in prompts),
        sum(max(0, x.prompt_tokens - x.cached) for x in prompts),
        max((x.clock.prompt for x in choices), default=0.0),
        made,
        max((x.clock.answer for x in choices), default=0.0),
        sum(max(0, x.made - 1) for x in choices),
    )
    return found | _drafts(choices)


def _drafts(choices: Sequence[Choice]) -> dict[str, Any]:
    """How many tokens were guessed, and how many of them rightly; nothing if none was."""
    streams = [x.tokens for x in choices if x.tokens is not None]
    drafted = sum(x.drafted_tokens for x in streams)
    accepted = sum(x.accepted_tokens for x in streams)
    return {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}


def _make_timings(
    cached: int, tokens: int, prompt: float, made: int, answer: float, steps: int
) -> dict[str, Any]:
    prompt, answer = prompt * 1000, answer * 1000
    return {
        "cache_n": cached, "prompt_n": tokens, "prompt_ms": prompt,
        "prompt_per_token_ms": _ratio(prompt, tokens),
        "prompt_per_second": _ratio(1000.0 * tokens, prompt),
        "predicted_n": made, "predicted_ms": answer,
        "predicted_per_token_ms": _ratio(answer, steps),
        "predicted_per_second": _ratio(1000.0 * steps, answer),
    }  # fmt: skip


def _ratio(count: float, of: float) -> float:
    return count / of if of > 0 else 0.0
