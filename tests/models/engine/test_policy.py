"""The policy of the engine, by random events: nobody starves, nothing is promised twice.

A machine of plain values carries out what the policy decides: a turn gives each running request one
token, or some tokens of its prompt. Not here: the engine (test_random_requests.py).
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import hypothesis
import hypothesis.strategies as st
import pytest

from aggml.models.engine.policy import (
    AGING,
    GONE,
    Rates,
    RequestView,
    Shares,
    admit,
    in_order,
    is_copied,
    may_admit,
    seconds_to_answer,
)

if TYPE_CHECKING:
    from aggml.models.engine import policy

SEQUENCES = 10_000
PARTS = 8
CHUNK = 4  # tokens of a prompt in a turn


@dataclass(eq=False)
class Job:
    """A request of the machine."""

    number: int
    priority: int
    caller: str
    arrived: float
    prompt: int
    answer: int
    pages: int
    computed: int = 0
    queued: float = 0.0
    waited: float = 0.0
    preempted: int = 0
    behind: frozenset[int] = frozenset()  # those that waited behind it when it was admitted
    end: str = ""


@dataclass
class Machine:
    """Carries decisions out, and checks each of them.

    Args:
        slots: sequences at a time.
        pages: in all.
        step: seconds of a turn.
        copies: preempted requests keep what is computed; else it is computed again.
    """

    slots: int
    pages: int
    step: float = 1.0
    copies: bool = True
    now: float = 0.0
    held: int = 0  # pages that prompts share for the moment, which the policy does not know
    turns: int = 0
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)
    shares: Shares = field(default_factory=Shares)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    got: dict[str, int] = field(default_factory=dict)  # caller: tokens computed

    def arrive(self, priority: int, caller: str, prompt: int, answer: int, pages: int) -> Job:
        job = Job(next(self.numbers), priority, caller, self.now, prompt, answer, pages)
        job.queued = self.now
        self.shares.enter(caller)
        self.waiting.append(job)
        return job

    def end(self, job: Job, how: str) -> None:
        assert not job.end, "a request ends once"
        job.end = how
        (self.running if job in self.running else self.waiting).remove(job)
        self.shares.leave(job.caller)
        self.ended.append(job)

    def candidate(self, job: Job) -> RequestView:
        return RequestView(
            job.number, job.priority, self.shares.since(standing(job), job.queued), job.pages,
            max(1, job.prompt + job.answer - job.computed), job.caller,
            self.shares.served_tokens(job.caller), job.waited, job.computed,
        )  # fmt: skip

    @property
    def free(self) -> int:
        return self.pages - sum(x.pages for x in self.running)

    def turn(self) -> None:
        """Admit, then compute some tokens of each running request."""
        self.turns += 1
        waiting = [self.candidate(x) for x in self.waiting]
        running = [self.candidate(x) for x in self.running]
        slots, pages = self.slots - len(running), self.free
        decision = admit(waiting, running, slots=slots, pages=pages, now=self.now)
        check(waiting, running, slots, pages, self.now, decision)
        if not may_admit([x.priority for x in waiting], [x.standing for x in running], slots):
            assert not decision, "a decision that the short question misses"
        self.carry_out(decision, waiting)
        for job in list(self.running):
            n = min(CHUNK, job.prompt - job.computed) if job.computed < job.prompt else 1
            job.computed += n
            self.shares.charge(job.caller, n)
            self.got[job.caller] = self.got.get(job.caller, 0) + n
            if job.computed >= job.prompt + job.answer:
                self.end(job, "done")
        self.now += self.step

    def carry_out(self, decision: policy.Decision, waiting: list[RequestView]) -> None:
        jobs = {x.number: x for x in (*self.waiting, *self.running)}
        order = [x.number for x in in_order(waiting, self.now)]
        for number in decision.preempted:
            job = jobs[number]
            self.running.remove(job)
            self.waiting.append(job)
            higher = [x for x in decision.admitted if jobs[x].priority > standing(job)]
            assert higher, "it is preempted for one that is not above it"
            assert not job.behind.intersection(higher), "one that waited behind it took its slot"
            job.preempted += 1
            job.waited += AGING
            job.queued = self.now
            if not self.copies:
                job.computed = 0
        for number, waited in zip(decision.admitted, decision.waited, strict=True):
            job = jobs[number]
            if job.pages > self.free - self.held:
                return  # as the engine: it waits, and so do those behind it
            self.shares.turn(standing(job), self.now)
            job.waited = waited
            job.behind = frozenset(order[order.index(number) + 1 :])
            self.waiting.remove(job)
            self.running.append(job)
        assert len(self.running) <= self.slots
        assert self.free >= 0


def standing(job: Job) -> int:
    """Its priority, with what it gained by waiting."""
    return job.priority + int(job.waited / AGING)


def check(
    waiting: list[RequestView],
    running: list[RequestView],
    slots: int,
    pages: int,
    now: float,
    decision: policy.Decision,
) -> None:
    """Compare a decision with its rules, stated in another way than in the policy."""
    waits = {x.number: x for x in waiting}
    going = {x.number: x for x in running}
    assert len(set(decision.admitted)) == len(decision.admitted)
    assert len(set(decision.preempted)) == len(decision.preempted)
    assert set(decision.admitted) <= set(waits)
    assert set(decision.preempted) <= set(going)
    victims = list(decision.preempted)
    blocked = False
    for one in in_order(waiting, now):
        if blocked:
            slots = pages = 0  # nobody passes: what is free is for those before
        lower = [x for x in going.values() if x.standing < one.priority]
        possible = slots + len(lower) >= 1 and pages + sum(x.pages for x in lower) >= one.pages
        assert (one.number in decision.admitted) == possible, "who can be admitted is"
        if not possible:
            blocked = True
            continue
        taken: list[RequestView] = []
        while slots + len(taken) < 1 or pages + sum(x.pages for x in taken) < one.pages:
            taken.append(going.pop(victims.pop(0)))
            assert taken[-1].standing < one.priority, "only greater priorities preempt"
        for x in taken:
            less = len(taken) - 1 + slots < 1
            less = less or pages + sum(y.pages for y in taken) - x.pages < one.pages
            assert less, "one more is preempted than is needed"
        slots += len(taken) - 1
        pages += sum(x.pages for x in taken) - one.pages
    assert not victims, "somebody is preempted for nobody"
    assert slots >= 0
    assert pages >= 0


def play(data: bytes, *, copies: bool) -> Machine:
    """Run events that are coded in bytes, then let all requests end."""
    given = iter(data)
    machine = Machine(next(given, 0) % 4 + 1, next(given, 0) % 12 + 4, copies=copies)
    machine.step = (0.01, 1.0, 7.0)[next(given, 0) % 3]
    for event in given:
        kind = event % 8
        if kind < 3:
            a, b = next(given, 0), next(given, 0)
            machine.arrive(
                (0, 0, 1, 2, 10, -3)[a % 6], "abc"[a // 6 % 3], b % 7 + 1, b // 7 % 9,
                (a // 18 + b) % machine.pages + 1,
            )  # fmt: skip
        elif kind == 3 and machine.waiting + machine.running:
            jobs = machine.waiting + machine.running
            machine.end(jobs[next(given, 0) % len(jobs)], "cancelled")
        elif kind == 4 and machine.running:
            for job in list(machine.running):  # a step fails
                machine.end(job, "failed")
        elif kind == 5:
            machine.held = next(given, 0) % machine.pages
        elif kind == 6:
            machine.now += next(given, 0) / 4
        else:
            machine.turn()
            if not machine.running:
                machine.held = 0  # prompts that run hold shared pages, and nobody else
    machine.held = 0
    return machine


def finish(machine: Machine) -> None:
    """Turns until all is done, and what must hold then."""
    jobs = machine.waiting + machine.running
    longest = max((x.prompt + x.answer for x in jobs), default=0)
    everything = sum(x.prompt + x.answer for x in jobs)
    # Nobody arrives any more. What is preempted again is bounded, too, because it gains by that.
    most = everything + longest * sum(14 - min(x.priority, 10) for x in jobs)
    for _ in range(most + len(jobs)):
        if not machine.waiting and not machine.running:
            break
        machine.turn()
    assert not machine.waiting
    assert not machine.running
    assert sorted(x.number for x in machine.ended) == list(range(1, next(machine.numbers)))
    assert len(machine.shares) == 0
    assert not machine.shares._requests


@pytest.mark.long
@pytest.mark.parametrize(
    "part", [pytest.param(i, marks=[pytest.mark.slow] if i > 1 else []) for i in range(PARTS)]
)
def test_random_events_lose_nobody_and_promise_nothing_twice(part: int) -> None:
    """In every other part preempted requests keep what is computed, else it is computed again."""
    played = 0

    @hypothesis.seed(part)
    @hypothesis.settings(max_examples=SEQUENCES // PARTS, derandomize=False, database=None)
    @hypothesis.given(st.binary(min_size=16, max_size=60))
    def run(data: bytes) -> None:
        nonlocal played
        machine = play(data, copies=bool(part % 2))
        finish(machine)
        for job in machine.ended:
            # From priority -3 to 10 there are 13 steps, and being preempted is worth one.
            assert job.preempted <= 10 - job.priority
        played += 1

    run()
    assert played >= SEQUENCES // PARTS


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("step", [0.25, 1.0, 20.0])
@pytest.mark.parametrize("copies", [True, False])
def test_nobody_starves_below_endless_arrivals_of_a_higher_priority(
    step: float, *, copies: bool
) -> None:
    for seed in range(6):
        draws = random.Random(seed)
        machine = Machine(draws.randint(1, 4), draws.randint(4, 12), step, copies)
        least = machine.arrive(0, "low", draws.randint(1, 9), draws.randint(1, 9), machine.pages)
        for turn in itertools.count():
            for _ in range(draws.randint(1, 3)):
                machine.arrive(
                    draws.randint(1, 5), draws.choice("abcdef"), draws.randint(1, 6),
                    draws.randint(0, 6), draws.randint(1, machine.pages),
                )  # fmt: skip
            if len(machine.waiting) > 12:  # as the engine: the queue is bounded
                for job in machine.waiting[12:]:
                    if job is not least:
                        machine.end(job, "refused")
            machine.turn()
            if least.end:
                break
            # It rises above all others after 60 s of waiting, and those that run end.
            assert turn < 60 / step + 200
        assert least.end == "done"


@pytest.mark.parametrize("step", [0.25, 1.0, 20.0])
def test_nobody_starves_beside_endless_new_callers_of_the_same_priority(step: float) -> None:
    machine = Machine(1, 8, step)
    machine.shares.enter("old")
    machine.shares.charge("old", 10_000)
    old = machine.arrive(0, "old", 5, 5, 1)
    for i in range(int(200 / step) + 60):
        machine.arrive(0, f"new {i}", 1, 1, 1)
        if len(machine.waiting) > 20:
            machine.end(machine.waiting[1], "refused")
        machine.turn()
    assert old.end == "done"


@pytest.mark.long(cases=2)
@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("step", [0.01, 1.0, 11.0])
def test_callers_of_one_priority_get_the_same_tokens_within_a_bound(
    slots: int, step: float
) -> None:
    """However many requests each of them queues, and however long these are."""
    for seed in range(2):
        draws = random.Random(seed)
        machine = Machine(slots, 1000, step)
        callers = {"a": (2, 3), "b": (30, 20), "c": (1, 40), "d": (6, 0)}
        most = max(map(sum, callers.values()))
        waits = {x: draws.choice([2 * slots, 12]) for x in callers}
        worst = 0
        for turn in range(600):
            for caller, (prompt, answer) in callers.items():
                n = sum(x.caller == caller for x in machine.waiting)
                for _ in range(waits[caller] - n):
                    machine.arrive(0, caller, draws.randint(1, prompt), draws.randint(0, answer), 1)
            machine.turn()
            if turn > 100:
                got = [machine.got.get(x, 0) for x in callers]
                worst = max(worst, max(got) - min(got))
        # Sheng et al.: twice the most tokens that run at a time. Whoever waited for 10 s comes
        # before, which adds a request of each caller.
        assert worst <= 2 * slots * most + 2 * most


@pytest.mark.long
def test_a_caller_that_sends_one_request_after_the_other_gains_nothing_by_it() -> None:
    machine = Machine(1, 100, 0.01)
    now = machine.arrive(0, "serial", 4, 200, 1)
    for _ in range(4000):
        if now.end:
            now = machine.arrive(0, "serial", 4, 200, 1)
        while sum(x.caller == "many" for x in machine.waiting) < 5:
            machine.arrive(0, "many", 4, 6, 1)
        machine.turn()
    assert abs(machine.got["serial"] - machine.got["many"]) <= 4 * 204


@pytest.mark.long
def test_a_caller_that_comes_late_waits_for_no_backlog_of_another() -> None:
    machine = Machine(2, 100, 1.0)
    for _ in range(300):
        machine.arrive(0, "many", 4, 8, 1)
    for _ in range(200):  # 200 s: those that wait since then have waited for long
        machine.turn()
    late = machine.arrive(0, "late", 4, 8, 1)
    for _ in range(12 + 4 + 8 + 2):
        machine.turn()
    assert late.end == "done"


def test_those_that_wait_for_long_do_not_keep_a_higher_priority_from_preempting() -> None:
    machine = Machine(2, 10, 1.0)
    for _ in range(2):
        machine.arrive(0, "a", 4, 1000, 5)
    old = machine.arrive(0, "a", 4, 4, 5)
    for _ in range(200):
        machine.turn()
    assert not old.end
    machine.arrive(5, "b", 1, 30, 3)
    machine.turn()
    assert [x.priority for x in machine.running] == [0, 5]
    for _ in range(30):
        machine.turn()
    machine.turn()
    assert old in machine.running  # what the higher one gave back is for the oldest


def test_one_that_needs_many_pages_is_not_passed_by_small_ones() -> None:
    machine = Machine(4, 10, 1.0)
    for _ in range(3):
        machine.arrive(0, "a", 1, 5, 3)
    machine.turn()
    large = machine.arrive(0, "c", 1, 5, 10)
    small = [machine.arrive(0, "b", 1, 5, 1) for _ in range(20)]
    while large not in machine.running:
        assert not any(x in machine.running for x in small)
        machine.turn()
    assert machine.running == [large]


def test_the_lowest_are_preempted_first_and_among_them_those_with_the_fewest_tokens() -> None:
    going = [
        RequestView(1, 0, 0.0, 1, computed=50),
        RequestView(2, 0, 0.0, 1, computed=5),
        RequestView(3, 1, 0.0, 1),
        RequestView(4, 0, 0.0, 1, computed=500, waited=25.0),  # it has gained two
    ]
    for n, wanted in enumerate([(2,), (2, 1), (2, 1, 3), (2, 1, 3, 4)], 1):
        comes = [RequestView(10 + i, 9, 0.0, 1) for i in range(n)]
        assert admit(comes, going, slots=0, pages=0, now=0.0).preempted == wanted
    comes = [RequestView(10 + i, 2, 0.0, 1) for i in range(4)]
    assert admit(comes, going, slots=0, pages=0, now=0.0).preempted == (2, 1, 3)


def test_a_request_without_waiting_ones_before_it_takes_free_slots_at_once() -> None:
    assert admit([RequestView(1, 0, 0.0, 3)], [], slots=1, pages=3, now=0.0).admitted == (1,)
    assert not admit([RequestView(1, 0, 0.0, 4)], [], slots=1, pages=3, now=0.0)
    assert not admit([], [], slots=1, pages=3, now=0.0)


def test_slots_that_are_free_at_a_time_are_divided_among_callers() -> None:
    many = [RequestView(i, 0, 0.0, 1, 10, "many") for i in range(1, 9)]
    few = [RequestView(i, 0, 0.0, 1, 10, "few") for i in range(9, 11)]
    order = [x.number for x in in_order([*many, *few], 0.0)]
    assert order == [1, 9, 2, 10, 3, 4, 5, 6, 7, 8]


# -- shares


def test_a_caller_that_comes_back_has_saved_nothing_and_lost_nothing() -> None:
    shares = Shares()
    for caller in ("a", "b"):
        shares.enter(caller)
    shares.charge("a", 100)
    shares.charge("b", 300)
    shares.leave("b")
    shares.enter("b")
    assert shares.served_tokens("b") == 300
    shares.enter("c")
    assert shares.served_tokens("c") == 200  # the mean of those that are there
    shares.leave("a")
    shares.charge("c", 1000)
    shares.enter("a")
    assert shares.served_tokens("a") == 750


def test_only_so_many_callers_are_remembered() -> None:
    shares = Shares()
    shares.enter("always")
    for i in range(5 * GONE):
        shares.enter(i)
        shares.charge(i, 10 + i % 7)
        shares.leave(i)
    assert len(shares) == 1
    assert len(shares._gone) <= GONE
    shares.charge("always", 1000)
    shares.enter(1)
    assert shares.served_tokens(1) == 1000


def test_threads_that_enter_and_leave_at_a_time_lose_no_count() -> None:
    shares = Shares()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(3000):
                shares.enter("all")
                shares.charge("all", 1)
                shares.turn(0, 1.0)
                shares.leave("all")
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert len(shares) == 0


# -- predictions


def simulated(ends: list[int], slots: int, most: int, step: float) -> float:
    """Seconds until the last token, by steps: each running one makes a token in each of them."""
    queue, going, steps = [*ends, most], list[int](), 0
    mine = len(queue) - 1
    order = list(range(len(queue)))
    while True:
        while order and len(going) < slots:
            going.append(order.pop(0))
        if not queue[mine] and mine in going:
            return steps * step
        done = [x for x in going if not queue[x]]
        if done:
            going = [x for x in going if x not in done]
            continue
        for x in going:
            queue[x] -= 1
        steps += 1


def test_the_prediction_is_the_time_of_all_before_it_and_its_own() -> None:
    draws = random.Random(1)
    rates = Rates(prompt=0.25, step=2.0)
    for _ in range(500):
        slots = draws.randint(1, 5)
        ends = [draws.randint(1, 30) for _ in range(draws.randint(0, 12))]
        most, prompt, before = draws.randint(1, 20), draws.randint(1, 40), draws.randint(0, 99)
        found = seconds_to_answer(prompt, most, before=before, ends=ends, slots=slots, rates=rates)
        wanted = simulated(ends, slots, most, 2.0) + (prompt + before) * 0.25
        assert found == pytest.approx(wanted)


def test_without_a_measurement_nothing_is_predicted() -> None:
    assert seconds_to_answer(5, 5, before=0, ends=[], slots=1, rates=Rates()) is None
    only = seconds_to_answer(5, 5, before=0, ends=[], slots=1, rates=Rates(prompt=1.0))
    assert only == 5.0
    half = Rates(prompt=0.0, step=1.0, share=0.5)
    assert seconds_to_answer(5, 8, before=0, ends=[6], slots=1, rates=half) == 3 + 4


def test_the_cheaper_of_copying_and_computing_again_is_chosen() -> None:
    rates = Rates(prompt=1.0, step=1.0, copy=0.5)
    assert is_copied(100, 0, rates)
    assert is_copied(100, 50, rates)
    assert not is_copied(100, 51, rates)
    assert not is_copied(100, 0, Rates(prompt=0.4, copy=0.5))
    assert is_copied(100, 100, Rates(prompt=1.0))  # not measured yet
    assert math.isfinite(AGING)
