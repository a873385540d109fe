"""A sequence on its way through the engine, and its next token.

Not here: when a sequence is computed, and together with which others (engine.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import anyio

from aggml.models.decoder.drawing import Draws
from aggml.models.decoder.sampling import choose, report
from aggml.models.errors import EngineError, FullError, TooLongError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggml.models.decoder import Best
    from aggml.models.decoder.adjusting import Adjuster
    from aggml.models.decoder.sampling import Report, Sampler
    from aggml.models.kv.copying import Run

__all__ = ["Counters", "EngineError", "FullError", "Job", "TooLongError", "chosen", "draws"]

Reason = Literal["stop", "length"]


@dataclass(eq=False, slots=True)
class Job:
    """A sequence on its way, from the queue to its last token.

    Args:
        prompt: token ids, at least one.
        n_predict: the most tokens of the answer, at least one.
        sampler: chooses the tokens.
        ends: tokens that end the answer; they are not part of it.
        adjuster: changes the logits before a token is chosen.
        told: how many of the best tokens `reports` name beside the one chosen; None: no reports.
    """

    prompt: Sequence[int]
    n_predict: int
    sampler: Sampler
    ends: frozenset[int] = frozenset()
    adjuster: Adjuster | None = None
    told: int | None = None
    slot: int | None = None
    taken_in: int = 0  # tokens of the prompt that are processed
    staged: int | None = None  # the first of its shared rows while the prompt is processed
    in_place: bool = False  # it has no shared rows: it is processed in its slot
    keys: list[bytes] = field(default_factory=list)  # hashes of its complete pages
    cached: int = 0  # tokens of the prompt whose keys and values were stored before
    copies: list[Run] = field(default_factory=list)  # of stored pages, for its first step
    kept: int | None = 0  # how many of its pages are stored; None: no more will be stored
    made: list[int] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)  # for each token made, if asked for
    reason: Reason | None = None
    error: BaseException | None = None
    left: bool = False  # its client has gone
    alone: bool = False  # no other prompt is in a chunk with its prompt
    queued: float = 0.0
    news: anyio.Event = field(default_factory=anyio.Event)

    @property
    def over(self) -> bool:
        """Whether no more tokens will come."""
        return self.reason is not None or self.error is not None or self.left

    @property
    def written(self) -> int:
        """Positions whose keys and values are complete; those of the last token are not."""
        return self.taken_in if not self.made else len(self.prompt) + len(self.made) - 1

    def begin_again(self) -> None:
        """Note that the prompt has to be processed again from its first token on, alone."""
        self.taken_in = self.cached = self.kept = 0
        self.staged, self.copies, self.in_place, self.alone = None, [], False, True

    def tell(self) -> None:
        """Wake the task that waits for this job."""
        self.news.set()

    def take(self, token: int, best: Best | None, row: int) -> int:
        """Append the next token, unless it ends the answer; returns how many tokens were added.

        Args:
            token: the next token.
            best: the logits that reports are made of; None if no job of the step has reports.
            row: the row of the logits that it was chosen from.
        """
        if token in self.ends:
            self.reason = "stop"
            return 0
        self.made.append(token)
        if self.adjuster is not None:
            self.adjuster.take(token)
        if self.told is not None and best is not None and best.every is not None:
            self.reports.append(
                report(best.every[row], best.ids[row], best.logits[row], token, self.told)
            )
        if len(self.made) == self.n_predict:
            self.reason = "length"
        return 1


@dataclass
class Counters:
    """Counts of past events; times in seconds."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    failed_steps: int = 0
    waited: Callable[[float], object] = lambda _: None  # gets each job's time to the first token
    stepped: Callable[[float], object] = lambda _: None  # gets the time of each step


def draws(follows: Sequence[tuple[Job, int]], rows: int, among: int) -> Draws:
    """How the device draws the next token from each of ``rows`` rows of logits."""
    samplers: list[Sampler | None] = [None] * rows
    adjusters: list[Adjuster | None] = [None] * rows
    for job, row in follows:
        samplers[row], adjusters[row] = job.sampler, job.adjuster
    return Draws.of(samplers, among, adjusters)


def chosen(follows: Sequence[tuple[Job, int]], best: Best) -> list[int]:
    """The next token of each job; ``follows`` has the row of its best logits."""
    rows = [row for _, row in follows]
    ids, logits = best.ids[rows], best.logits[rows]  # copies
    for i, (job, row) in enumerate(follows):
        if job.adjuster is not None and best.every is not None:
            need = job.sampler.looks_at(ids.shape[1])
            ids[i], logits[i] = job.adjuster.best(best.every[row], ids[i], logits[i], need)
    return choose([job.sampler for job, _ in follows], ids, logits)
