"""Policy: who is admitted, who is preempted and how, who is refused. Pure functions of values.

Not here: which tokens the next step computes (steps.py), carrying a decision out (engine.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

__all__ = [
    "AGING", "Candidate", "Decision", "Rates", "Shares", "admit", "gained", "in_order",
    "is_copied", "seconds_to_answer",
]  # fmt: skip

AGING: Final = 10.0  # seconds of waiting that are worth one priority


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request as the policy sees it.

    Attributes:
        number: in the order of arrival; each has its own.
        priority: as the caller gave it.
        arrived: when, in seconds of the clock that `admit` is given.
        pages: that it takes until its end.
        served: tokens that its caller got so far.
        gained: of a running one: the priority that it gained by waiting.
        computed: of a running one: tokens that would have to be computed or copied again.
    """

    number: int
    priority: int
    arrived: float
    pages: int
    served: int = 0
    gained: int = 0
    computed: int = 0

    @property
    def standing(self) -> int:
        """What another one must have more of in order to preempt it."""
        return self.priority + self.gained


@dataclass(frozen=True, slots=True)
class Decision:
    """Numbers of requests: first those that are preempted, then those that are admitted."""

    preempted: tuple[int, ...] = ()
    admitted: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.preempted or self.admitted)


def gained(one: Candidate, now: float) -> int:
    """The priority that a waiting request has gained."""
    return max(0, int((now - one.arrived) / AGING))


def in_order(waiting: Iterable[Candidate], now: float) -> list[Candidate]:
    """The waiting requests, the next one first."""
    return sorted(waiting, key=lambda x: (-(x.priority + gained(x, now)), x.served, x.number))


def admit(
    waiting: Iterable[Candidate],
    running: Sequence[Candidate],
    *,
    slots: int,
    pages: int,
    now: float,
) -> Decision:
    """Who gets a slot now.

    Nobody passes a request that is before it in the order: else one that needs many pages might
    wait for ever. What a request gained by waiting improves its place in the order, but does not
    preempt: else requests that wait for long would take the slots of each other.

    Args:
        waiting: requests without a slot.
        running: requests with one.
        slots: how many are free.
        pages: how many are free, or can be had from whoever is not running.
        now: the clock.
    """
    going = list(running)
    preempted: list[int] = []
    admitted: list[int] = []
    for one in in_order(waiting, now):
        victims: list[Candidate] = []
        if slots < 1 or pages < one.pages:
            victims = _victims(one, going, slots, pages)
            if not victims:
                break
        for victim in victims:
            going.remove(victim)
            slots += 1
            pages += victim.pages
            preempted.append(victim.number)
        slots -= 1
        pages -= one.pages
        admitted.append(one.number)
    return Decision(tuple(preempted), tuple(admitted))


def _victims(one: Candidate, going: Sequence[Candidate], slots: int, pages: int) -> list[Candidate]:
    """The fewest that must give way to ``one``; none if all of them would not be enough."""
    below = [x for x in going if x.standing < one.priority]
    chosen: list[Candidate] = []
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

    A caller that comes back is lifted to the least of those who are there, so that nobody saves up
    (virtual token counters, Sheng et al. 2024). It knows callers that have requests, and no others.
    """

    def __init__(self) -> None:
        self._served: dict[Hashable, int] = {}
        self._requests: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._served)

    def enter(self, caller: Hashable) -> None:
        """Note a new request of a caller."""
        if caller not in self._served:
            self._served[caller] = min(self._served.values(), default=0)
        self._requests[caller] = self._requests.get(caller, 0) + 1

    def leave(self, caller: Hashable) -> None:
        """Note the end of a request."""
        self._requests[caller] -= 1
        if not self._requests[caller]:
            del self._requests[caller], self._served[caller]

    def charge(self, caller: Hashable, tokens: int) -> None:
        """Note that a caller got the computation of so many tokens."""
        if caller in self._served:
            self._served[caller] += tokens

    def served(self, caller: Hashable) -> int:
        """Tokens that a caller got."""
        return self._served.get(caller, 0)


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
        ends: the most tokens that each request before it has still to make, running or waiting.
        slots: sequences at a time.
        rates: what was measured.
    """
    if rates.prompt is None:
        return None
    step = rates.step or 0.0
    free = [0.0] * max(0, slots - len(ends)) + sorted(x * rates.share * step for x in ends)
    waits = free[0] if len(ends) < slots else free[len(ends) - slots]
    return waits + (before + prompt) * rates.prompt + most * rates.share * step


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
