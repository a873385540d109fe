"""Speculation: how many tokens of drafts the next step verifies, and for which sequences.

A step that computes eight tokens of a sequence takes less than twice the time of a step of one. So
it pays to guess the next tokens, to compute all of them in one step, and to keep those that the
model would have chosen itself. A guess changes nothing but the time: each token is drawn with the
number that it would be drawn with alone, and a guess counts only if it is that token.

Here: when that pays, from what was measured. Not here: where drafts come from (lookup.py,
draft_model.py, prediction_head.py), the step (steps.py), which tokens are kept (engine.py).
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import anyio.to_thread
from anyio.lowlevel import checkpoint

from aggml.models.engine.lookup import Hits, Lookup
from aggml.models.engine.ngrams import PRIORS as NGRAM_PRIORS
from aggml.models.engine.ngrams import NgramLookup, NgramTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aggml.models.decoder.batch import F32
    from aggml.models.engine.requests import TextRequest

__all__ = [
    "WIDTHS", "Drafter", "HiddenObserver", "LookupDrafter", "Settles", "Speculation", "StepCosts",
    "Verification",
    "best_width", "is_worth_catching_up", "speedup", "width_beside",
]  # fmt: skip

_log = logging.getLogger("aggml")

#: Tokens of each sequence in a step that verifies: few, because each needs graphs of its own.
WIDTHS: Final = (4, 8, 16)
PER_TOKEN: Final = 0.05  # of the time of a step, for each token more, until it was measured
GAIN: Final = 1.15  # a step that verifies must be expected to be so many times as good: times vary
LEARNING: Final = 0.15
FORGETTING: Final = 256  # steps after which a time that is not measured any more counts less
MORE: Final = 128  # tokens that an answer is expected to go on for, unless its bound is nearer


@dataclass(frozen=True, slots=True)
class Verification:
    """What a step verifies.

    Attributes:
        width: tokens of each sequence in the step.
        drafts: of each sequence that has one, the tokens that are expected next; less than
            ``width``.
    """

    width: int
    drafts: Mapping[TextRequest, list[int]]


class StepCosts:
    """Seconds that steps took lately, by the number of their sequences and tokens of each.

    Attributes:
        prompt: seconds for a token of a prompt; None: it was not measured.
    """

    def __init__(self) -> None:
        self.prompt: float | None = None
        self._seconds: dict[tuple[int, int], float] = {}
        self._count: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._steps = 0

    def record_step(self, sequences: int, width: int, seconds: float) -> None:
        """Note how long a step took."""
        self._steps += 1
        key = sequences, width
        old, n = self._seconds.get(key), self._count.get(key, 0)
        if old is None or n < 2:
            # The first times of a shape are those of memory that was not used yet.
            new = seconds if old is None else min(old, seconds)
        else:
            new = old + LEARNING * (min(seconds, 3 * old) - old)
        self._seconds[key], self._count[key], self._last[key] = new, n + 1, self._steps

    def of(self, sequences: int, width: int) -> float | None:
        """How long a step will take; None: no step of so many sequences was measured yet."""
        one = self._seconds.get((sequences, 1))
        if one is None or width == 1:
            return one
        guess = self._guess(one, sequences, width)
        found = self._seconds.get((sequences, width))
        if found is None:
            return guess
        known = math.pow(0.5, (self._steps - self._last[sequences, width]) / FORGETTING)
        return known * found + (1 - known) * min(guess, found)

    def _guess(self, one: float, sequences: int, width: int) -> float:
        """How long a step may take that was not measured lately.

        A token more takes no less time than in narrower steps, and the tokens together no less than
        those of a prompt.
        """
        each = PER_TOKEN * one
        for narrower in WIDTHS:
            seconds = self._seconds.get((sequences, narrower))
            if narrower < width and seconds is not None:
                each = max(each, (seconds - one) / (sequences * (narrower - 1)))
        return max(one + each * sequences * (width - 1), (self.prompt or 0.0) * sequences * width)


def best_width(
    chances: Sequence[Sequence[float]],
    sequences: int,
    n: int,
    costs: StepCosts,
    drafting: float = 0.0,
    widths: Sequence[int] = WIDTHS,
) -> int:
    """How many tokens of each sequence the next step should compute: 1, or one of `WIDTHS`.

    Args:
        chances: for each sequence that may have a draft, and each token of that draft, how
            probable it is that this token is kept.
        sequences: that run, those without a draft included.
        n: for how many sequences the step has room.
        costs: what was measured.
        drafting: seconds for one token of all drafts.
        widths: those that a step may have.
    """
    if costs.of(n, 1) is None or not any(chances):
        return 1
    best, most = 1, GAIN
    for width in widths:
        found = speedup(chances, sequences, n, costs, drafting, width)
        if found > most:
            best, most = width, found
    return best


def speedup(
    chances: Sequence[Sequence[float]],
    sequences: int,
    n: int,
    costs: StepCosts,
    drafting: float,
    width: int,
) -> float:
    """How many times as fast tokens come if the next step computes ``width`` of each sequence.

    What counts is the geometric mean of what sequences gain. By the sum, three of four sequences
    with long drafts would make the fourth wait for steps that take three times as long, of which it
    gets one token each.

    Args:
        chances: as for `best_width`.
        sequences: as for `best_width`.
        n: as for `best_width`; of these steps times were measured.
        costs: as for `best_width`.
        drafting: as for `best_width`.
        width: one of `WIDTHS`.
    """
    plain, seconds = costs.of(n, 1), costs.of(n, width)
    assert plain is not None
    assert seconds is not None
    gains = sum(math.log1p(sum(x[: width - 1])) for x in chances)
    return math.exp(gains / sequences) * plain / (seconds + drafting * (width - 1))


def is_worth_catching_up(
    chances: Sequence[Sequence[float]],
    sequences: int,
    n: int,
    costs: StepCosts,
    drafting: float,
    lacking: int,
    remaining: int,
    widths: Sequence[int] = WIDTHS,
) -> bool:
    """Whether a draft model should compute tokens that it lacks, so that it can make drafts.

    Without this question it would follow every answer, though none of its drafts is verified: with
    a draft model of a third of the size one answer came with 0.81 of the speed, and four with 0.61.

    Args:
        chances: as for `best_width`, of all sequences for which it may make drafts.
        sequences: as for `best_width`.
        n: as for `best_width`.
        costs: what was measured.
        drafting: seconds for one token of all drafts; 0: no draft was made yet, so one has to be.
            Tokens of a prompt are expected to take the draft model as much less time than the
            model as those of a step do.
        lacking: how many tokens it lacks, of all sequences.
        remaining: how many steps of one token are expected still.
        widths: as for `best_width`.
    """
    if not drafting:
        return True
    width, plain = best_width(chances, sequences, n, costs, drafting, widths), costs.of(n, 1)
    if width == 1 or plain is None:
        return False
    ratio = speedup(chances, sequences, n, costs, drafting, width)
    seconds = lacking * (costs.prompt or 0.0) * drafting / plain
    return seconds < remaining * plain * (1 - 1 / ratio)


def width_beside(
    chances: Sequence[Sequence[float]],
    sequences: int,
    n: int,
    costs: StepCosts,
    prompt: float | None,
    room: int,
    widths: Sequence[int] = WIDTHS,
) -> int:
    """`best_width` of a step that computes a chunk of prompts as well.

    There each token more takes the time of a token of a prompt, and a token that is kept saves a
    share of a later step.

    Args:
        chances: as for `best_width`.
        sequences: as for `best_width`.
        n: as for `best_width`.
        costs: as for `best_width`.
        prompt: seconds for a token of a prompt; None: it was not measured.
        room: tokens of running sequences, at most.
        widths: as for `best_width`.
    """
    plain = costs.of(n, 1)
    if plain is None or prompt is None or not any(chances):
        return 1
    best, most = 1, 0.0
    for width in widths:
        saved = sum(sum(x[: width - 1]) for x in chances) * plain / sequences
        gain = saved - GAIN * n * (width - 1) * prompt
        if n * width <= room and gain > most:
            best, most = width, gain
    return best


class Drafter(Protocol):
    """Where drafts come from.

    Attributes:
        at_once: whether drafts are there when they are asked for.
    """

    at_once: ClassVar[bool]

    @property
    def unbuilt(self) -> object:
        """A graph without which no drafts can be made, see `prepare`; None: there is none."""
        ...

    async def prepare(self) -> None:
        """Build the graph that `unbuilt` names."""
        ...

    @property
    def seconds(self) -> float:
        """How long it takes to make one token of all drafts of a step."""
        ...

    @property
    def pending(self) -> Settles | None:
        """What has to end before `draft` has an answer, if it has none yet."""
        ...

    def chances(self, request: TextRequest, most: int, /) -> list[float]:
        """How probable it is that each of the next tokens is kept; empty: no draft."""
        ...

    def lacking(self, request: TextRequest, /) -> int:
        """How many tokens have to be computed by `catch_up` before `draft` may be asked."""
        ...

    def catch_up(self, request: TextRequest, /) -> None:
        """Compute some of these tokens, beside the steps of the engine."""
        ...

    def draft(self, wanted: Mapping[TextRequest, int]) -> dict[TextRequest, list[int]] | None:
        """Drafts of so many tokens; None: see `pending` and `unbuilt`, then ask again."""
        ...

    def close(self) -> None:
        """Free what it has."""
        ...


class HiddenObserver(Protocol):
    """Takes the hidden states of the engine's steps: `PredictionHead`.

    A protocol, as the head's module needs this one: its drafts are steps of a decoder.
    """

    def observe(self, request: TextRequest, first: int, hidden: F32, /) -> None:
        """Take the hidden states of a sequence's positions from ``first`` on."""
        ...

    def move(self, request: TextRequest, source: int, target: int, /) -> None:
        """Note that a sequence goes on in another slot."""
        ...


class Settles(Protocol):
    """Something that ends, such as a Future."""

    async def wait_until_done(self) -> None:
        """Wait until it has ended."""
        ...


class LookupDrafter:
    """Drafts from the tokens of each sequence.

    Args:
        table: what followed in other sequences, which is expected, too, and which learns what these
            sequences say; None: only what came before in a sequence itself is expected.
        keep: writes the table, for `save`; it blocks.
    """

    at_once: ClassVar[bool] = True
    unbuilt = None
    seconds: float = 0.0
    pending = None

    def __init__(
        self, table: NgramTable | None = None, keep: Callable[[NgramTable], None] | None = None
    ) -> None:
        self._hits = Hits()
        self._table = table
        self._keep = keep
        self._table_hits = Hits(priors=NGRAM_PRIORS)
        self._followed: list[TextRequest] = []  # whose tokens the table learns

    def chances(self, request: TextRequest, most: int) -> list[float]:
        """As of `Drafter`."""
        lookup: Lookup | NgramLookup | None = request.lookup
        if lookup is None:
            lookup = Lookup(self._hits)
            if self._table is not None:
                self._learn_ends()
                self._followed.append(request)
                lookup = NgramLookup(self._table, self._table_hits, lookup)
            request.lookup = lookup
        return lookup.chances(most) if lookup.follow(request.tokens) else []

    def lacking(self, request: TextRequest) -> int:
        """As of `Drafter`: nothing is computed."""
        return 0

    def catch_up(self, request: TextRequest) -> None:
        """As of `Drafter`: nothing is computed."""

    def draft(self, wanted: Mapping[TextRequest, int]) -> dict[TextRequest, list[int]]:
        """As of `Drafter`."""
        return {x: x.lookup.draft(x.tokens, n) for x, n in wanted.items() if x.lookup is not None}

    def _learn_ends(self) -> None:
        """Learn the last tokens of requests that have ended: nobody asked what follows them."""
        for one in self._followed:
            if one.over and one.lookup is not None:
                one.lookup.follow(one.tokens)
        self._followed = [one for one in self._followed if not one.over]

    async def prepare(self) -> None:
        """As of `Drafter`: there are no graphs."""

    async def save(self) -> None:
        """Write what was learned, if it is kept. Who calls it has ended all requests.

        A file that cannot be written is logged.

        Cancellation: takes effect when it is written.
        """
        table, keep = self._table, self._keep
        if table is None or keep is None:
            return
        for one in self._followed:
            lookup = one.lookup
            while isinstance(lookup, NgramLookup) and lookup.lacks(one.tokens):
                lookup.follow(one.tokens)
                await checkpoint()
        try:
            await anyio.to_thread.run_sync(keep, table)
        except OSError as error:
            _log.warning("the statistics of n-grams could not be written: %s", error)

    def close(self) -> None:
        """As of `Drafter`: there is nothing but what was learned."""
        self._followed.clear()


class Speculation:
    """Decides what steps verify.

    Args:
        drafter: makes drafts.
        ctx: positions of a sequence.
        widest: tokens of a sequence in a step, at most, as states can go back no further; None:
            there are no states.
        observer: takes the hidden states of the engine's steps; None: nobody needs them.

    Attributes:
        waits: whether `verification` had no answer when it was asked last, because drafts were
            being made or needed a graph. They may have become complete since then.
    """

    def __init__(
        self,
        drafter: Drafter,
        ctx: int,
        widest: int | None = None,
        observer: HiddenObserver | None = None,
    ) -> None:
        self.drafter = drafter
        self.observer = observer
        self.waits: bool = False
        self._widths = tuple(x for x in WIDTHS if widest is None or x <= widest)
        if not self._widths:
            raise ValueError(f"steps verify {WIDTHS[0]} tokens or more, and widest is {widest}")
        self._ctx = ctx
        # Steps that bring all logits to the host take longer.
        self._costs = {every: StepCosts() for every in (False, True)}
        self._asked: tuple[int, int, bool] | None = None  # sequences, tokens, the answer

    def record_step(self, sequences: int, width: int, seconds: float, *, every: bool) -> None:
        """Note how long a step of running sequences alone took."""
        self._costs[every].record_step(sequences, width, seconds)

    @property
    def is_waiting(self) -> bool:
        """Whether drafts are being made, or need a graph."""
        return self.drafter.pending is not None or self.drafter.unbuilt is not None

    def record_prompt(self, seconds: float) -> None:
        """Note how long a token of a prompt takes."""
        for costs in self._costs.values():
            costs.prompt = seconds

    def is_wanted(self, running: Sequence[TextRequest], n: int) -> bool:
        """Whether the next step should verify drafts, by what is known now.

        Args:
            running: the sequences.
            n: for how many the step has room.
        """
        if self.is_waiting:
            return True
        key = len(running), sum(x.computed for x in running)
        if self._asked is None or self._asked[:2] != key:
            width, _ = self._width(running, n)
            self._asked = *key, width > 1
        return self._asked[2]

    def verification(
        self,
        running: Sequence[TextRequest],
        n: int,
        beside: tuple[float | None, int] | None = None,
    ) -> Verification | None:
        """What the next step verifies; None: nothing, or what `pending` tells has to end before.

        Args:
            running: the sequences.
            n: for how many the step has room.
            beside: of a step with a chunk of prompts: seconds for a token of a prompt, and how many
                tokens of running sequences it may have.
        """
        self._asked, self.waits = None, False
        if beside is not None and not self.drafter.at_once:
            return None
        width, chances = self._width(running, n, beside)
        if width == 1:
            return None
        wanted = {x: min(len(found), width - 1) for x, found in chances.items()}
        drafts = self.drafter.draft(wanted)
        if drafts is None and not self.is_waiting:  # they are complete already
            drafts = self.drafter.draft(wanted)
        if drafts is None:
            self.waits = True
            return None
        drafts = {x: draft for x, draft in drafts.items() if draft}
        return Verification(width, drafts) if drafts else None

    def _width(
        self,
        running: Sequence[TextRequest],
        n: int,
        beside: tuple[float | None, int] | None = None,
    ) -> tuple[int, dict[TextRequest, list[float]]]:
        chances: dict[TextRequest, list[float]] = {}
        lacking: dict[TextRequest, int] = {}
        for one in running:
            # The row after a draft must be within the context: padding may go there.
            most = min(one.max_tokens - one.made, self._ctx - one.computed - 1, self._widths[-1])
            most -= 1
            if most > 0 and one.may_speculate:
                found = self.drafter.chances(one, most)
                if found:
                    chances[one] = found
                    lacking[one] = self.drafter.lacking(one)
        if not chances:
            return 1, chances
        costs = self._costs[any(x.needs_logits for x in running)]
        if any(lacking.values()):
            self._catch_up(chances, lacking, len(running), n, costs)
            chances = {x: found for x, found in chances.items() if not lacking[x]}
        each = [*chances.values()]
        if beside is not None:
            width = width_beside(each, len(running), n, costs, *beside, self._widths)
        else:
            width = best_width(each, len(running), n, costs, self.drafter.seconds, self._widths)
        return width, chances

    def _catch_up(
        self,
        chances: Mapping[TextRequest, Sequence[float]],
        lacking: Mapping[TextRequest, int],
        sequences: int,
        n: int,
        costs: StepCosts,
    ) -> None:
        """Have tokens computed that drafts need, if drafts would then pay."""
        remaining = max(min(x.max_tokens - x.made, max(x.made, MORE)) for x in lacking)
        if is_worth_catching_up(
            [*chances.values()], sequences, n, costs, self.drafter.seconds,
            sum(lacking.values()), remaining, self._widths,
        ):  # fmt: skip
            for one, tokens in lacking.items():
                if tokens:
                    self.drafter.catch_up(one)
