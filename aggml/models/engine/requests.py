"""A request for text on its way through the engine: its tokens, its place, its results.

Here: the state of one request, its next token, who waits for it. Not here: when it is computed, and
together with which others (engine.py, policy.py); the arguments of users (options.py).
"""

from __future__ import annotations

import contextvars
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from aggml.models.adapters.stacks import NO_ADAPTER, AdapterChoice
from aggml.models.decoder.drawing import Draws
from aggml.models.decoder.sampling import Report, choose, prompt_reports, report
from aggml.models.engine.policy import AGING, RequestView
from aggml.models.engine.workers import workers
from aggml.models.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future as HostFuture

    import numpy.typing as npt

    from aggml import Future
    from aggml.models.decoder import Best
    from aggml.models.decoder.adjusting import Adjuster
    from aggml.models.decoder.batch import F32
    from aggml.models.decoder.sampling import PromptReport, Sampler
    from aggml.models.engine.agreement import DraftAgreement
    from aggml.models.engine.constraints import Constraint
    from aggml.models.engine.lookup import Lookup
    from aggml.models.engine.ngrams import NgramLookup
    from aggml.models.engine.policy import Shares
    from aggml.models.kv.snapshots import Snapshot

    PromptFuture = HostFuture[list[PromptReport]]

__all__ = [
    "Counters", "PageUsage", "PlacedPicture", "Result", "TextRequest", "caller", "choose_tokens",
    "draws_of", "view_of",
]  # fmt: skip

FinishReason = Literal["stop", "length"]
Result = Literal["tokens", "logits", "hidden"]

BEST: Final = 64  # tokens are drawn among so many, unless a request asks for more

#: Whose requests those of the present task are. Callers of one priority share the engine fairly.
caller: contextvars.ContextVar[object] = contextvars.ContextVar("caller", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPicture:
    """Embeddings at positions of a prompt, for which its tokens have keys below 0 there.

    A key stands for the content at its position, so that equal keys mean equal embeddings.

    Attributes:
        first: the first position.
        values: (positions, width).
        whole: whether its positions see each other also where they come later. Then all of them
            that are to be computed are in one step.
        grid: tokens of a row and of a column, if these are their rotary positions; None: they are
            counted on.
    """

    first: int
    values: F32
    whole: bool = False
    grid: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        """The position after its last."""
        return self.first + len(self.values)

    @property
    def skipped(self) -> int:
        """By how much less the rotary positions behind it are counted on."""
        return 0 if self.grid is None else len(self.values) - max(self.grid)


@dataclass(eq=False, slots=True)
class TextRequest:
    """A sequence on its way, from the queue to its last token.

    Args:
        tokens: token ids of the prompt, at least one. The tokens of the answer are appended.
        max_tokens: the most tokens of the answer.
        sampler: chooses the tokens.
        ends: tokens that end the answer; they are not part of it.
        adjuster: changes the logits before a token is chosen.
        logprobs: how many of the best tokens `reports` name beside the one chosen; None: no
            reports.
        result: "tokens"; or the "logits" or "hidden" states of all tokens of the prompt, in
            ``arrays``.
        priority: greater ones come first.
        deadline: when the answer must be complete, as `time.monotonic`; None: no matter when.
        caller: whose request it is.
        drawn: tokens of the answer that are part of the prompt because they were made elsewhere.
        adapter: of all its tokens. Keys and values depend on it, so only requests with the same
            one share any.
        pictures: embeddings of positions of the prompt that have no token.
        progress: is called with the tokens of the prompt that are computed, and with all of them.
        tells: of "logits" only the probabilities of the prompt's tokens are kept, in ``told``, with
            so many of the best ones in their places; None: the logits are.
        place: the call, for messages.
    """

    tokens: list[int]
    max_tokens: int = 1
    sampler: Sampler | None = None
    ends: frozenset[int] = frozenset()
    adjuster: Adjuster | None = None
    logprobs: int | None = None
    result: Result = "tokens"
    priority: int = 0
    deadline: float | None = None
    caller: object = None
    drawn: int = 0
    adapter: AdapterChoice = NO_ADAPTER
    pictures: tuple[PlacedPicture, ...] = ()
    progress: Callable[[int, int], object] | None = None
    tells: int | None = None
    place: str = "generate"

    prompt: int = 0  # tokens of the prompt
    number: int = 0  # in the order of arrival
    arrived: float = field(default_factory=time.monotonic)
    queued: float = 0.0  # since when it waits: when it arrived or was preempted
    waited: float = 0.0  # seconds that it waited before that; being preempted counts as 10
    slot: int | None = None
    computed: int = 0  # tokens whose keys, values and states are computed
    cached: int = 0  # tokens of the prompt that did not have to be computed
    staged: int | None = None  # the first of its shared rows while the prompt is processed
    in_place: bool = False  # it has no shared rows: it is processed in its slot
    alone: bool = False  # no other prompt is in a chunk with its prompt
    checkpoints: list[int] | None = None  # where states are stored in its prompt; None: undecided
    keeps: bool = True  # whether its keys and values may be used by later requests
    preempted: int = 0  # how often
    snapshot: Snapshot | None = None  # of its slot, while it is preempted
    loads: Sequence[Future[None]] = ()  # writes of a snapshot, not known to have succeeded
    first_token: float | None = None  # when it came
    constraint: Constraint | None = None  # which tokens it may get
    late: Best | None = None  # logits of its next token, whose mask is not known yet
    lookup: Lookup | NgramLookup | None = None  # what is expected by tokens that came before
    agreement: DraftAgreement | None = None  # how often it agreed with a draft model
    reported: int = -1  # what ``progress`` was called with last
    drafted: int = 0  # tokens of drafts that were verified
    accepted: int = 0  # of these: tokens of the answer that needed no step of their own
    reports: list[Report] = field(default_factory=list)  # for each token made, if asked for
    arrays: list[F32] = field(default_factory=list)
    told: list[PromptFuture] = field(default_factory=list)  # of the pieces that were computed
    reason: FinishReason | None = None
    error: BaseException | None = None
    left: bool = False  # nobody waits for it any more
    given: int = 0  # tokens that its task has taken
    end: int | None = None  # the token that ended it, which is not part of the answer

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)
        self.queued = self.arrived

    @property
    def made(self) -> int:
        """How many tokens of the answer there are."""
        return len(self.tokens) - self.prompt

    def report(self) -> None:
        """Tell how much of the prompt is computed, if that is asked for and more than before."""
        done = min(self.computed, self.prompt)
        if self.progress is not None and done > self.reported:
            self.reported = done
            self.progress(done, self.prompt)

    @property
    def limit(self) -> int:
        """Positions that the sequence may take."""
        return self.prompt + self.max_tokens

    @property
    def over(self) -> bool:
        """Whether no more results will come."""
        return self.reason is not None or self.error is not None or self.left

    @property
    def has_news(self) -> bool:
        """Whether there is something that its task has not taken yet."""
        return self.over or self.prompt + self.given < len(self.tokens)

    @property
    def decodes(self) -> bool:
        """Whether it has a slot, and only its last token is still to be computed."""
        return self.made > 0 and self.computed == len(self.tokens) - 1

    @property
    def needs_logits(self) -> bool:
        """Whether the host chooses its tokens, among all logits."""
        if self.constraint is not None and not self.constraint.is_idle:
            return True
        return self.logprobs is not None or (self.sampler is not None and self.sampler.is_chain)

    @property
    def may_speculate(self) -> bool:
        """Whether several of its tokens can be chosen in one step.

        Not with a mask: it is computed while the device computes the step after it.
        """
        return self.result == "tokens" and (self.constraint is None or self.constraint.is_idle)

    @property
    def awaits_mask(self) -> bool:
        """Whether it is not known yet which tokens may come next."""
        return self.constraint is not None and not self.constraint.ready

    @property
    def standing(self) -> int:
        """Its priority, with what it gained by waiting."""
        return self.priority + int(self.waited / AGING)

    @property
    def fed(self) -> list[int]:
        """The tokens whose keys, values and states are computed, as far as they are known.

        The step after the last token may have been queued before that token was known.
        """
        ends = [] if self.end is None else [self.end]
        return [*self.tokens, *ends][: self.computed]

    def shares_with(self, other: TextRequest) -> bool:
        """Whether the same tokens have the same keys, values and states in both."""
        return self.adapter.about == other.adapter.about

    def end_of_piece(self, wanted: int) -> int:
        """The position after a piece that begins with the first one that is not computed.

        It is at most ``wanted``, unless the piece begins with a picture that cannot be divided.
        """
        end = min(wanted, len(self.tokens))
        for picture in self.pictures:
            if picture.whole and picture.first < end < picture.end:
                return picture.first if picture.first > self.computed else picture.end
        return end

    def whole_within(self, first: int, end: int) -> tuple[tuple[int, int], ...]:
        """The ranges of positions of pictures that see each other, between two positions."""
        return tuple(
            (x.first, x.end) for x in self.pictures
            if x.whole and x.end <= end and x.end > first
        )  # fmt: skip

    @property
    def shift(self) -> int:
        """By how much rotary positions behind the prompt are less than positions."""
        return sum(x.skipped for x in self.pictures)

    def rotary(self, first: int, n: int) -> npt.NDArray[np.int32] | None:
        """Rotary positions of ``n`` positions, (4, n): time, row, column, and time again.

        The fourth is for pairs that belong to no section. Text turns these, too, so a picture's
        tokens must have the time there: llama.cpp has 0 for both. None: they are the positions.
        """
        if all(x.grid is None for x in self.pictures):
            return None
        at = np.arange(first, first + n, dtype=np.int32)
        found, skipped = np.tile(at, (4, 1)), 0
        for picture in self.pictures:
            if picture.grid is not None:
                inside = (at >= picture.first) & (at < picture.end)
                begin = picture.first - skipped
                row, column = np.divmod(at[inside] - picture.first, picture.grid[0])
                zero = np.zeros_like(row)
                found[:, inside] = np.stack([zero, row, column, zero]) + begin
            found[:, at >= picture.end] -= picture.skipped
            skipped += picture.skipped
        return found

    def take_array(self, found: F32) -> None:
        """Keep the logits or hidden states of the next piece, or what is told of them."""
        n = self.tells
        first, self.computed = self.computed, self.computed + len(found)
        if n is None:
            self.arrays.append(found)
            return
        after = self.tokens[first + 1 : self.computed + 1]
        self.told.append(workers.submit(lambda: prompt_reports(found, after, n)))

    def forget_arrays(self) -> None:
        """Forget what was computed so far: it is computed again."""
        self.arrays.clear()
        self.told.clear()

    def begin_again(self) -> None:
        """Note that all its tokens have to be processed again."""
        self.computed = self.cached = 0
        self.staged, self.in_place = None, False
        self.checkpoints = None

    def take(self, token: int, best: Best | None, row: int) -> int:
        """Append the next token, unless it ends the answer; returns how many tokens were added.

        Args:
            token: the next token.
            best: the logits that reports are made of; None if no request of the step has reports.
            row: the row of the logits that it was chosen from.
        """
        if token in self.ends:
            self.end = token
            self.reason = "stop"
            return 0
        if self.logprobs is not None and best is not None and best.every is not None:
            drawn = self._report_draw(token)
            if drawn is None:
                drawn = report(
                    best.every[row], best.ids[row], best.logits[row], token, self.logprobs
                )
            self.reports.append(drawn)
        if self.adjuster is not None:
            self.adjuster.take(token)
        self.tokens.append(token)
        if self.made == self.max_tokens:
            self.reason = "length"
        if self.constraint is not None:
            self.constraint.take(token)
        return 1

    def _report_draw(self, token: int) -> Report | None:
        """Report with which probability a token was drawn; None: that is not asked for."""
        chain = None if self.sampler is None else self.sampler.chain
        if chain is None or not chain.tells:
            return None
        ids, shares = chain.take_chances(self.drawn + self.made)
        (at,) = np.flatnonzero(ids == token)
        with np.errstate(divide="ignore"):
            logs = np.log(shares)
        best = [
            (int(ids[i]), float(logs[i]))
            for i in range(min(self.logprobs or 0, len(ids)))
            if shares[i] > 0
        ]
        return Report(float(logs[at]), best)

    def look_at_mask(self) -> None:
        """End it if its grammar is complete, or cannot go on."""
        constraint = self.constraint
        if constraint is None or self.over:
            return
        if constraint.error is not None:
            self.error = GrammarError(
                f"[generate] the grammar cannot go on after {self.made} tokens: it never ends, or "
                f"is too large ({constraint.error})"
            )
        elif constraint.stopped:
            self.reason = "stop"


class PageUsage(NamedTuple):
    """Pages of keys and values: promised to sequences, of stored beginnings, and in all."""

    used: int = 0
    stored: int = 0
    total: int = 0


@dataclass
class Counters:
    """Counts of past events; times in seconds."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    failed_steps: int = 0
    preemptions: int = 0
    refused: int = 0
    late: int = 0
    drafts: int = 0  # verified
    draft_tokens: int = 0  # of these drafts
    accepted_tokens: int = 0  # of these: tokens of answers that needed no step of their own
    sequences: int = 0  # of all steps together
    longest: int = 0  # tokens of a sequence
    prompt_seconds: float = 0.0  # of steps: the part of their tokens that are those of prompts
    answer_seconds: float = 0.0  # the rest
    waited: Callable[[float], object] = lambda _: None  # gets each request's time to first token
    stepped: Callable[[float], object] = lambda _: None  # gets the time of each step


def view_of(one: TextRequest, shares: Shares, pages: int) -> RequestView:
    """A request as the policy sees it.

    Args:
        one: the request.
        shares: what each caller got.
        pages: that it takes until its end.
    """
    return RequestView(
        one.number, one.priority, shares.since(one.standing, one.queued), pages,
        max(1, one.limit - one.computed), one.caller, shares.served_tokens(one.caller), one.waited,
        one.computed,
    )  # fmt: skip


def draws_of(
    follows: Sequence[tuple[TextRequest, int]],
    rows: int,
    among: int,
    ahead: int = 0,
    drafts: Mapping[TextRequest, list[int]] | None = None,
) -> Draws:
    """How the device draws the next token from each of ``rows`` rows of logits.

    Args:
        follows: each request that gets a token, and its row.
        rows: how many there are.
        among: how many of the best tokens may be drawn.
        ahead: how many tokens of each are being computed before this one.
        drafts: tokens that are verified: the rows after a request's first one draw the tokens
            after these.
    """
    samplers: list[Sampler | None] = [None] * rows
    adjusters: list[Adjuster | None] = [None] * rows
    tokens = [0] * rows
    for request, row in follows:
        samplers[row], adjusters[row] = request.sampler, request.adjuster
        tokens[row] = request.drawn + request.made + ahead
        adjuster = request.adjuster
        for i, token in enumerate(drafts.get(request, ()) if drafts else (), 1):
            if adjuster is not None:
                adjuster = adjusters[row + i] = adjuster.after([token])
            samplers[row + i], tokens[row + i] = request.sampler, tokens[row] + i
    return Draws.of(samplers, among, adjusters, tokens)


def choose_tokens(follows: Sequence[tuple[TextRequest, int]], best: Best) -> list[int | None]:
    """The next token of each request; ``follows`` has the row of its best logits.

    None for a request that may have none of the tokens that are left.
    """
    free = [(i, x, row) for i, (x, row) in enumerate(follows) if not _is_special(x)]
    rows = [row for _, _, row in free]
    ids, logits = best.ids[rows], best.logits[rows]  # copies
    samplers = []
    for i, (_, request, row) in enumerate(free):
        assert request.sampler is not None
        samplers.append(request.sampler)
        if request.adjuster is not None and best.every is not None:
            need = request.sampler.count_candidates(ids.shape[1])
            ids[i], logits[i] = request.adjuster.best(best.every[row], ids[i], logits[i], need)
    found: list[int | None] = [None] * len(follows)
    if free:
        chosen = choose(samplers, ids, logits, [x.drawn + x.made for _, x, _ in free])
        for (i, _, _), token in zip(free, chosen, strict=True):
            found[i] = token
    for i, (request, row) in enumerate(follows):
        if _is_special(request):
            found[i] = _choose_special(request, best, row)
    return found


def _is_special(request: TextRequest) -> bool:
    """Whether its tokens are not chosen as those of most requests."""
    assert request.sampler is not None
    mask = None if request.constraint is None else request.constraint.mask
    return mask is not None or request.sampler.is_chain


def _choose_special(request: TextRequest, best: Best, row: int) -> int | None:
    """The next token of a request with a mask, or with other steps between logits and draw."""
    sampler, adjuster = request.sampler, request.adjuster
    assert sampler is not None
    assert best.every is not None
    mask = None if request.constraint is None else request.constraint.mask
    every = best.every[row]
    at = request.drawn + request.made
    if mask is not None and mask.only is not None:
        if sampler.chain is not None:
            sampler.chain.note(at, np.array([mask.only]), np.ones(1))
        return mask.only
    if sampler.is_chain:
        logits = every if mask is None else mask.apply(every)
        return sampler.draw_by_chain(logits, adjuster, request.tokens, at)
    assert mask is not None
    k = min(max(BEST, sampler.count_candidates(len(every))), len(every))
    need = sampler.count_candidates(k)
    if adjuster is None:
        # Most tokens that a model finds probable are allowed: then the others are not looked at.
        ids = best.ids[row]
        allowed = mask.allows(ids)
        if np.count_nonzero(allowed & (best.logits[row] > -np.inf)) >= min(need, len(ids)):
            logits = np.where(allowed, best.logits[row], np.float32(-np.inf))
            return choose([sampler], ids[None], logits[None], [at])[0]
        value = mask.apply(every)
    else:
        other, new = adjuster.adjust(every)
        value = every.copy()
        value[other] = new
        value = mask.apply(value)
    value = np.where(np.isnan(value), np.float32(-np.inf), value)
    found = np.argpartition(value, len(value) - k)[len(value) - k :].astype(np.int32)
    found = _with_equals(value, found)
    if not value[found].max() > -np.inf:
        return None
    return choose([sampler], found[None], value[found][None], [at])[0]


def _with_equals(value: F32, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Tokens, with those whose logits are equal to their best one: the first of them counts."""
    best = value[ids].max()
    if not best > -np.inf:
        return ids
    return np.union1d(ids, np.flatnonzero(value == best)).astype(np.int32)
