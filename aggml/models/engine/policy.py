"""Policy: who is admitted, who is preempted and how, who is refused. Pure functions of values.

Not here: which tokens the next step computes (steps.py), carrying a decision out (engine.py).
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from aggml.process.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

__all__ = [
    "AGING",
    "Decision",
    "OfCaller",
    "Rates",
    "RequestView",
    "Shares",
    "admit",
    "divide_fairly",
    "in_order",
    "is_copied",
    "may_admit",
    "seconds_to_answer",
]  # fmt: skip

AGING: Final = 10.0  # seconds of waiting that are worth one priority
GONE: Final = 1024  # callers without requests whose tokens are remembered
STANDINGS: Final = 256  # standings of which the last turn is remembered


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request as the policy sees it.

    Attributes:
        number: in the order of arrival; each has its own.
        priority: as the user gave it.
        since: of a waiting one: since when requests of its standing wait without a turn, but not
            before it arrived or was preempted; in seconds of the clock of `admit`.
        pages: that it takes until its end.
        tokens: that are still to be computed for it, at most.
        caller: whose request it is.
        served: tokens that its caller got so far.
        waited: seconds that it has waited before ``since``. Being preempted counts as `AGING`.
        computed: of a running one: tokens that would have to be computed or copied again.
    """

    number: int
    priority: int
    since: float
    pages: int
    tokens: int = 1
    caller: Hashable = None
    served: int = 0
    waited: float = 0.0
    computed: int = 0

    @property
    def standing(self) -> int:
        """Its priority, with what it gained by waiting before ``since``."""
        return self.priority + int(self.waited / AGING)


@dataclass(frozen=True, slots=True)
class Decision:
    """Numbers of requests: first those that are preempted, then those that are admitted.

    Attributes:
        preempted: those that give way.
        admitted: those that get a slot.
        waited: of each that is admitted: its `RequestView.waited` from now on.
    """

    preempted: tuple[int, ...] = ()
    admitted: tuple[int, ...] = ()
    waited: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.preempted or self.admitted)


def in_order(waiting: Iterable[RequestView], now: float) -> list[RequestView]:
    """The waiting requests, the next one first, each with what it has gained until now.

    Those of the greatest standing come first. Among equal ones the caller with the fewest tokens
    comes first, then the oldest. A caller is charged here for those of its requests that come
    before, so that slots that become free at a time are divided among callers.

    If no request of a standing had a turn for some time, the first of them rises by one in each
    `AGING` seconds of that time. The others do not rise with it: if they did, a long queue would
    come before all that arrive later, whatever their priority.
    """
    levels: dict[int, list[RequestView]] = {}
    for one in waiting:
        levels.setdefault(one.standing, []).append(one)
    found: list[tuple[int, int, RequestView]] = []
    for level, those in levels.items():
        first, *others = divide_fairly(those)
        age = max(0.0, now - min(x.since for x in those))
        first = replace(first, waited=first.waited + age)
        found.append((-first.standing, level, first))  # before those that it has reached
        found += [(-level, level, x) for x in others]
    return [x for *_, x in sorted(found, key=lambda x: x[:2])]


class OfCaller(Protocol):
    """A request of which the policy knows the caller; the attributes are those of `RequestView`."""

    @property
    def caller(self) -> Hashable:
        """Whose request it is."""
        ...

    @property
    def served(self) -> int:
        """Tokens that its caller got so far."""
        ...

    @property
    def number(self) -> int:
        """Its place in the order of arrival."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens that are to be computed for it."""
        ...


_V = TypeVar("_V", bound=OfCaller)


def divide_fairly(those: Iterable[_V]) -> list[_V]:
    """Requests of one standing, those of the caller with the fewest tokens first.

    A caller is charged here for those of its requests that come before.
    """
    queues: dict[Hashable, deque[_V]] = {}
    for one in sorted(those, key=lambda x: x.number):
        queues.setdefault(one.caller, deque()).append(one)
    if len(queues) == 1:
        return [*queues.popitem()[1]]
    heap = [(x[0].served, x[0].number, i) for i, x in enumerate(queues.values())]
    by_index = list(queues.values())
    heapq.heapify(heap)
    found: list[_V] = []
    while heap:
        tokens, _, i = heapq.heappop(heap)
        one = by_index[i].popleft()
        found.append(one)
        if by_index[i]:
            heapq.heappush(heap, (tokens + one.tokens, by_index[i][0].number, i))
    return found


def may_admit(priorities: Iterable[int], standings: Iterable[int], slots: int) -> bool:
    """Whether `admit` could admit anybody at all; it takes less time.

    Args:
        priorities: of the waiting requests.
        standings: of the running ones.
        slots: how many are free.
    """
    lowest = min(standings, default=None)
    return slots > 0 or (lowest is not None and any(x > lowest for x in priorities))


def admit(
    waiting: Iterable[RequestView],
    running: Sequence[RequestView],
    *,
    slots: int,
    pages: int,
    now: float,
) -> Decision:
    """Who gets a slot now.

    Nobody takes a free slot or a free page before a request that is before it in the order: else
    one that needs many pages might wait for ever. But whoever can preempt others, and needs no
    more than they give back, does not wait for a request that cannot: it takes nothing from it.

    What a request gained by waiting improves its place in the order, but does not preempt: else
    requests that wait for long would take the slots of each other.

    Args:
        waiting: requests without a slot.
        running: requests with one.
        slots: how many are free.
        pages: how many are free, or can be had from whoever is not running.
        now: the clock.
    """
    going = list(running)
    preempted: list[int] = []
    admitted: list[RequestView] = []
    passing = False
    for one in in_order(waiting, now):
        victims: list[RequestView] = []
        if slots < 1 or pages < one.pages:
            victims = _victims(one, going, slots, pages)
            if not victims:
                passing = True
                slots = pages = 0
                continue
        for victim in victims:
            going.remove(victim)
            slots += 1
            pages += victim.pages
            preempted.append(victim.number)
        slots -= 1
        pages -= one.pages
        admitted.append(one)
        if passing:
            slots = pages = 0
    return Decision(
        tuple(preempted), tuple(x.number for x in admitted), tuple(x.waited for x in admitted)
    )


def _victims(
    one: RequestView, going: Sequence[RequestView], slots: int, pages: int
) -> list[RequestView]:
    """The fewest that must give way to ``one``; none if all of them would not be enough."""
    below = [x for x in going if x.standing < one.priority]
    if not below:
        return []
    chosen: list[RequestView] = []
    for victim in sorted(below, key=lambda x: (x.standing, x.computed, -x.number)):
        if slots >= 1 and pages >= one.pages:
            break
        # One that frees a slot when only pages are missing is taken for its pages, and vice versa.
        chosen.append(victim)
        slots += 1
        pages += victim.pages
    if slots < 1 or pages < one.pages:
        return []
    # One that was chosen early may not be needed any more, because a later one has more pages.
    for victim in sorted(chosen, key=lambda x: (-x.standing, -x.computed)):
        if slots - 1 >= 1 and pages - victim.pages >= one.pages:
            chosen.remove(victim)
            slots -= 1
            pages -= victim.pages
    return chosen


class Shares:
    """Tokens that each caller got, for fairness between callers of one priority.

    Virtual token counters (Sheng et al. 2024). A caller whose requests have all ended keeps its
    count, so that it gains nothing by sending one request after the other. A caller that comes is
    lifted to the mean of those that are there, so that nobody saves up; it would be the least, but
    then ever new callers would keep all others waiting. Of callers that have no request, and of
    standings, a bounded number is remembered. Its methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._served: dict[Hashable, int] = {}  # callers with requests
        self._requests: dict[Hashable, int] = {}
        self._gone: dict[Hashable, int] = {}  # callers without; who left last is at the end
        self._floor = 0  # of those that were there last
        self._turns: dict[int, float] = {}  # standing: when

    def __len__(self) -> int:
        return len(self._served)

    def _level(self) -> int:
        present = self._served.values()
        return -(-sum(present) // len(present)) if present else self._floor

    def enter(self, caller: Hashable) -> None:
        """Note a new request of a caller."""
        with self._lock:
            if caller not in self._served:
                self._served[caller] = max(self._gone.pop(caller, 0), self._level())
            self._requests[caller] = self._requests.get(caller, 0) + 1

    def leave(self, caller: Hashable) -> None:
        """Note the end of a request."""
        with self._lock:
            self._requests[caller] -= 1
            if self._requests[caller]:
                return
            served = self._gone[caller] = self._served.pop(caller)
            del self._requests[caller]
            self._floor = served
            while len(self._gone) > GONE:
                del self._gone[next(iter(self._gone))]

    def charge(self, caller: Hashable, tokens: int) -> None:
        """Note that a caller got the computation of so many tokens."""
        with self._lock:
            if caller in self._served:
                self._served[caller] += tokens

    def served_tokens(self, caller: Hashable) -> int:
        """Tokens that a caller got."""
        return self._served.get(caller, 0)

    def turn(self, standing: int, now: float) -> None:
        """Note that a waiting request of that standing was admitted."""
        with self._lock:
            self._turns.pop(standing, None)
            self._turns[standing] = now
            while len(self._turns) > STANDINGS:
                del self._turns[next(iter(self._turns))]

    def since(self, standing: int, arrived: float) -> float:
        """`RequestView.since` of a request that arrived, or was preempted, at ``arrived``."""
        return max(arrived, self._turns.get(standing, arrived))


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured lately; None: nothing yet.

    Attributes:
        prompt: seconds for a token of a prompt.
        step: seconds for a step of running sequences.
        copy: seconds to copy the keys and values of a position out and in again.
        share: tokens of answers, of the most that were asked for.
    """

    prompt: float | None = None
    step: float | None = None
    copy: float | None = None
    share: float = 1.0


def seconds_to_answer(
    prompt: int, most: int, *, before: int, ends: Sequence[int], slots: int, rates: Rates
) -> float | None:
    """How long a new request will take until its last token; None without a measurement.

    Args:
        prompt: tokens of its prompt that have to be computed.
        most: tokens of its answer, at most.
        before: tokens of prompts that are computed before its own.
        ends: the most tokens that each request before it has still to make: first those that run,
            then those that wait, in their order.
        slots: sequences at a time.
        rates: what was measured.
    """
    if rates.prompt is None:
        return None
    step = rates.share * (rates.step or 0.0)
    free = [0.0] * max(1, slots)
    for tokens in ends:  # each takes the slot that is free first
        heapq.heapreplace(free, free[0] + tokens * step)
    return free[0] + (before + prompt) * rates.prompt + most * step


def is_copied(computed: int, stored: int, rates: Rates) -> bool:
    """Whether a preempted sequence is copied to host memory instead of computed again.

    Args:
        computed: positions that it has.
        stored: of them, those that are stored already, which cost nothing.
        rates: what was measured; without a measurement it is copied.
    """
    if rates.prompt is None or rates.copy is None:
        return True
    return computed * rates.copy <= (computed - stored) * rates.prompt
