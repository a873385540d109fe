"""BatchEngine: batches of requests of many tasks, loops and threads; the policy with values alone.

The computations wait until the test lets them go on. Not here: encoders (test_encoders.py,
test_minilm.py), speech (test_speech.py).
"""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from typing import TYPE_CHECKING, Self

import anyio
import pytest
from anyio import wait_all_tasks_blocked as blocked
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from aggml.models import DeadlineError, EngineError, FullError
from aggml.models import caller as the_caller
from aggml.models.engine.batches import BatchEngine, Waiting, choose
from aggml.models.engine.policy import AGING, Shares

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

QUEUES = st.lists(
    st.builds(Waiting, st.integers(1, 40), st.integers(-2, 2), st.integers(0, 100).map(float)),
    min_size=1,
    max_size=30,
).map(lambda queue: sorted(queue, key=lambda x: x.since))


# -- the policy


@given(QUEUES, st.integers(1, 60))
def test_a_batch_has_the_first_request_and_no_more_than_fits(
    queue: list[Waiting], full: int
) -> None:
    now = 100.0
    chosen = choose(queue, full, now)
    rank = [(-x.priority - int((now - x.since) / AGING), i) for i, x in enumerate(queue)]
    assert chosen[0] == min(range(len(queue)), key=lambda i: rank[i])
    assert len(set(chosen)) == len(chosen)
    assert [rank[i] for i in chosen] == sorted(rank[i] for i in chosen)
    assert len(chosen) == 1 or sum(queue[i].size for i in chosen) <= full
    # work is not left lying: whatever was passed over does not fit
    room = full - sum(queue[i].size for i in chosen)
    assert all(queue[i].size > room for i in range(len(queue)) if i not in chosen)


@given(QUEUES, st.integers(1, 60), st.lists(st.integers(1, 40), max_size=20))
def test_nobody_is_passed_over_for_ever(
    queue: list[Waiting], full: int, arrivals: list[int]
) -> None:
    waiting, now = list(queue), 100.0
    mine = waiting[-1]
    low = min(x.priority for x in waiting)
    for turn in range(10_000):
        chosen = choose(waiting, full, now)
        if any(waiting[i] is mine for i in chosen):
            return
        waiting = [x for i, x in enumerate(waiting) if i not in chosen]
        if arrivals:  # somebody of a higher priority arrives with each batch
            waiting.append(Waiting(arrivals[turn % len(arrivals)], low + 4, now))
        now += 1.0
    raise AssertionError("it never came")


def test_a_higher_priority_comes_first_until_another_one_has_waited_long_enough() -> None:
    late = Waiting(1, 1, 50.0)
    assert choose([Waiting(1, 0, 50.0), late], 1, 50.0) == [1]
    assert choose([Waiting(1, 0, 40.1), late], 1, 50.0) == [1]
    assert choose([Waiting(1, 0, 40.0), late], 1, 50.0) == [0]  # equal now, and came earlier


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=30),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 50)),
)
def test_the_next_request_is_that_of_the_caller_who_got_the_least(
    asked: list[tuple[str, int]], before: dict[str, int]
) -> None:
    shares = Shares()
    for one in "abc":
        shares.enter(one)
    for one, n in before.items():
        shares.charge(one, n)
    got = dict.fromkeys("abc", 0) | before
    left = {one: [i for i, x in enumerate(asked) if x[0] == one] for one in "abc"}
    for i in choose([Waiting(size, 0, 0.0, one) for one, size in asked], 1000, 0.0, shares):
        mine, size = asked[i]
        assert got[mine] == min(got[x] for x in left if left[x])
        assert left[mine].pop(0) == i  # its own requests stay in order
        got[mine] += size
    assert not any(left.values())


# -- the engine


async def quiet() -> None:
    """Return when no task can go on; a wake-up that is on its way through the loop counts, too."""
    for _ in range(3):
        await checkpoint()
        await blocked()


class Gate:
    """A computation that turns strings to upper case; each batch waits for a `let_go`."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.cancelled = 0
        self.fail: Exception | None = None
        self._turns = anyio.Semaphore(0)

    def let_go(self, batches: int = 1) -> None:
        for _ in range(batches):
            self._turns.release()

    async def __call__(self, items: list[str]) -> Sequence[str]:
        self.batches.append(items)
        try:
            await self._turns.acquire()
        except BaseException:
            self.cancelled += 1
            raise
        if self.fail is not None:
            raise self.fail
        return [x.upper() for x in items]


class Caller:
    """Submits items, each in a task of its own, and notes the results; waits for the tasks."""

    def __init__(self, engine: BatchEngine[str, str]) -> None:
        self.tasks, self.engine = anyio.create_task_group(), engine
        self.results: dict[str, str | Exception] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}

    async def __aenter__(self) -> Self:
        await self.tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.tasks.__aexit__(kind, error, trace)

    async def submit(self, *items: str, priority: int = 0) -> None:
        for item in items:
            self.tasks.start_soon(self._one, item, priority)
            await quiet()  # so that the items are submitted in this order

    async def _one(self, item: str, priority: int) -> None:
        with anyio.CancelScope() as self.scopes[item]:
            try:
                self.results[item] = await self.engine.submit(item, priority)
            except EngineError as error:
                self.results[item] = error

    async def cancel(self, item: str) -> None:
        self.scopes[item].cancel()
        await quiet()


def made(gate: Gate, full: int = 100, at_once: int = 1) -> BatchEngine[str, str]:
    return BatchEngine(gate, full=full, max_waiting=1000, at_once=at_once)


def idle(engine: BatchEngine[str, str]) -> bool:
    """Whether nothing is left of requests that are done."""
    return not (
        engine._queue
        or engine._queued
        or engine._batches
        or engine._parked.calls
        or engine._awake.calls
        or engine.gone
        or len(engine._shares)
    )


async def test_what_arrives_during_a_batch_is_the_next_batch() -> None:
    gate = Gate()
    engine = made(gate)
    async with Caller(engine) as caller:
        await caller.submit("a", "b", "c")
        assert gate.batches == [["a"]]
        gate.let_go(2)
    assert gate.batches == [["a"], ["b", "c"]]
    assert caller.results == {"a": "A", "b": "B", "c": "C"}
    assert idle(engine)


async def test_tasks_that_begin_together_are_one_batch() -> None:
    gate = Gate()
    engine = made(gate)
    gate.let_go(9)
    async with anyio.create_task_group() as tasks:
        for item in "abcdefgh":
            tasks.start_soon(engine.submit, item)
    assert [sorted(batch) for batch in gate.batches] == [[*"abcdefgh"]]


async def test_a_full_batch_is_computed_beside_the_running_one() -> None:
    gate = Gate()
    engine = made(gate, full=4, at_once=2)
    async with Caller(engine) as caller:
        await caller.submit("a", "bb", "c")
        assert gate.batches == [["a"]]
        await caller.submit("dd", "eeee", "f")
        assert gate.batches == [["a"], ["bb", "c"]]  # the third waits: "dd" did not fit any more
        for _ in range(6):
            gate.let_go()
            await quiet()
    assert len(gate.batches[1:]) == len({*map(tuple, gate.batches[1:])})
    assert sorted(x for batch in gate.batches for x in batch) == ["a", "bb", "c", "dd", "eeee", "f"]
    assert {*caller.results} == {"a", "bb", "c", "dd", "eeee", "f"}
    assert idle(engine)


async def test_enough_for_a_batch_is_computed_beside_the_running_one() -> None:
    gate = Gate()
    engine = BatchEngine(gate, full=6, max_waiting=1000, at_once=2, enough=3)
    async with Caller(engine) as caller:
        await caller.submit("a", "bb")
        assert gate.batches == [["a"]]
        await caller.submit("c", "dddd")
        assert gate.batches == [["a"], ["bb", "c"]]
        gate.let_go(3)
    assert gate.batches[2:] == [["dddd"]]
    assert caller.results == {x: x.upper() for x in ("a", "bb", "c", "dddd")}
    assert idle(engine)


async def test_a_large_call_has_several_batches_computed_at_a_time() -> None:
    """While the results of one are handed out, the device computes the next one."""
    gate, found = Gate(), list[str]()
    engine = BatchEngine(gate, full=4, max_waiting=1000, at_once=2, enough=2)
    items = [*"abcdefghijk"]
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            found.extend(await engine.submit_all(items))

        tasks.start_soon(call)
        await quiet()
        assert gate.batches == [[*"abcd"], [*"efgh"]]
        gate.let_go()
        await quiet()
        assert gate.batches[2:] == [[*"ijk"]]
        tasks.start_soon(engine.submit, "z")
        await quiet()
        gate.let_go(3)
    assert gate.batches[3:] == [["z"]]
    assert found == [x.upper() for x in items]
    assert idle(engine)


async def test_a_large_call_ends_when_it_is_cancelled_or_a_batch_fails() -> None:
    gate = Gate()
    engine = BatchEngine(gate, full=2, max_waiting=1000, at_once=2, enough=1)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.submit_all, [*"abcdef"])
            await quiet()
            assert gate.batches == [[*"ab"], [*"cd"]]
            scope.cancel()
    assert gate.cancelled == 2
    assert idle(engine)
    gate.fail = ValueError("broken")
    gate.let_go(2)  # each of the tasks that compute may have had items of both batches
    with pytest.raises(EngineError, match="broken") as caught:
        await engine.submit_all([*"abcdef"])
    assert isinstance(caught.value.__cause__, ValueError)
    assert len(gate.batches) == 4
    assert idle(engine)


async def test_a_large_call_goes_on_while_others_fill_the_queue() -> None:
    gate, found = Gate(), list[str]()
    engine = BatchEngine(gate, full=2, max_waiting=2, at_once=2, enough=2)
    items = [*"abcdefgh"]
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            found.extend(await engine.submit_all(items))

        tasks.start_soon(call)
        await quiet()
        gate.let_go(100)
    assert found == [x.upper() for x in items]
    with pytest.raises(FullError):
        await BatchEngine(gate, full=2, max_waiting=0, at_once=2).submit_all(items)
    assert idle(engine)


async def test_an_item_longer_than_a_batch_goes_alone() -> None:
    gate = Gate()
    async with Caller(made(gate, full=2)) as caller:
        await caller.submit("a", "long", "b")
        gate.let_go(3)
    assert gate.batches == [["a"], ["long"], ["b"]]


async def test_a_higher_priority_is_computed_first() -> None:
    gate = Gate()
    async with Caller(made(gate, full=1)) as caller:
        await caller.submit("a", "b", "c")
        await caller.submit("x", priority=5)
        gate.let_go(4)
    assert gate.batches == [["a"], ["x"], ["b"], ["c"]]


async def test_a_caller_with_many_items_does_not_keep_one_with_few_waiting() -> None:
    gate = Gate()
    engine = made(gate, full=2)
    async with Caller(engine) as many, Caller(engine) as few:
        the_caller.set("many")
        await many.submit(*"abcdefg")
        the_caller.set("few")
        await few.submit("x", "y")
        gate.let_go(9)
    assert gate.batches == [["a"], ["x", "b"], ["y", "c"], ["d", "e"], ["f", "g"]]
    assert idle(engine)


async def test_cancelling_one_leaves_the_others() -> None:
    gate = Gate()
    engine = made(gate)
    async with Caller(engine) as caller:
        await caller.submit("a", "b", "c", "d")
        await caller.cancel("c")  # while it is in the queue
        gate.let_go()
        await quiet()
        assert gate.batches == [["a"], ["b", "d"]]
        await caller.cancel("d")  # while it is in the running batch
        gate.let_go()
    assert caller.results == {"a": "A", "b": "B"}
    assert idle(engine)


async def test_if_the_computing_task_is_cancelled_another_one_takes_over() -> None:
    gate = Gate()
    engine = made(gate)
    async with Caller(engine) as caller:
        await caller.submit("a", "b", "c")
        gate.let_go()
        await quiet()
        assert gate.batches[1:] == [["b", "c"]]
        await caller.submit("d")
        driver = next(x for x in "bc" if gate.cancelled == 0 and _drives(engine, x))
        await caller.cancel(driver)
        other = "c" if driver == "b" else "b"
        assert gate.cancelled == 1
        assert gate.batches[2][0] == other  # before "d", which came later
        gate.let_go(2)
    assert caller.results == {"a": "A", other: other.upper(), "d": "D"}
    assert idle(engine)


def _drives(engine: BatchEngine[str, str], item: str) -> bool:
    (batch,) = engine._batches
    return any(x.item == item and x.call.batch is batch for x in batch.requests)


async def test_a_batch_that_nobody_waits_for_is_cancelled() -> None:
    gate = Gate()
    engine = made(gate)
    async with Caller(engine) as caller:
        await caller.submit("a", "b")
        await caller.cancel("a")
        assert gate.cancelled == 1
        assert gate.batches == [["a"], ["b"]]
        gate.let_go()
    assert caller.results == {"b": "B"}
    assert idle(engine)


async def test_a_batch_of_others_is_cancelled_when_they_have_left() -> None:
    """Whoever is awake computes, also a batch that has nothing of its own."""
    gate = Gate()
    engine = made(gate, full=1)
    async with Caller(engine) as caller:
        await caller.submit("a", "b")
        await caller.submit("x", priority=1)
        gate.let_go()
        await quiet()
        assert gate.batches == [["a"], ["x"]]
        await caller.cancel("x")
        assert gate.cancelled == 1
        gate.let_go()
    assert caller.results == {"a": "A", "b": "B"}
    assert idle(engine)


async def test_a_failure_reaches_those_of_its_batch_only() -> None:
    gate = Gate()
    gate.fail = OSError("broken")
    engine = made(gate, full=2)
    async with Caller(engine) as caller:
        await caller.submit("a", "b", "c", "d")
        gate.let_go()
        await quiet()
        gate.let_go()
        await quiet()
        gate.fail = None
        gate.let_go()
    for item in "abc":
        error = caller.results[item]
        assert isinstance(error, EngineError)
        assert isinstance(error.__cause__, OSError)
    assert caller.results["d"] == "D"
    assert idle(engine)


async def test_too_few_results_are_a_failure() -> None:
    async def short(items: list[str]) -> list[str]:
        await checkpoint()
        return items[1:] + items + items

    engine = BatchEngine(short, full=9, max_waiting=9)
    with pytest.raises(EngineError, match="2 results for 1 requests"):
        await engine.submit("a")


async def test_more_than_max_waiting_are_refused() -> None:
    gate = Gate()
    engine = BatchEngine(gate, full=100, max_waiting=3)
    async with Caller(engine) as caller:
        await caller.submit(*"abcd")  # one is being computed, three wait
        with pytest.raises(FullError, match="3 requests are waiting") as caught:
            await engine.submit("e")
        assert caught.value.seconds >= 1
        await caller.cancel("c")
        await caller.submit("f")
        gate.let_go(2)
    assert {*caller.results} == {*"abdf"}
    assert idle(engine)


async def test_a_deadline_that_passes_ends_one_request_alone() -> None:
    gate = Gate()
    engine = made(gate)
    async with Caller(engine) as caller:
        await caller.submit("a")
        with pytest.raises(DeadlineError, match="has passed") as caught:
            await engine.submit("b", deadline=0.01)
        assert isinstance(caught.value, TimeoutError)
        gate.let_go()
    assert caller.results == {"a": "A"}
    assert gate.batches == [["a"]]
    assert idle(engine)


async def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    gate = Gate()
    engine = made(gate)
    with pytest.raises(DeadlineError, match="cannot be met"):
        await engine.submit("a", deadline=0)
    gate.let_go()
    await engine.submit("a", deadline=1e9)
    engine._rate = 2.0  # items of one letter take half a second
    async with Caller(engine) as caller:
        await caller.submit("b", "c")
        with pytest.raises(DeadlineError, match=r"of 1\.4 s cannot be met: 1\.5 s are predicted"):
            await engine.submit("d", deadline=1.4)
        gate.let_go(2)
    assert gate.batches == [["a"], ["b"], ["c"]]
    assert idle(engine)


async def test_a_large_call_leaves_room_for_others() -> None:
    gate = Gate()
    engine = made(gate, full=2)
    found: list[str] = []

    async def bulk() -> None:
        found.extend(await engine.submit_all("abcdefgh"))

    async with Caller(engine) as caller:
        caller.tasks.start_soon(bulk)
        await quiet()
        await caller.submit("x")
        gate.let_go(9)
    assert found == [*"ABCDEFGH"]
    assert caller.results == {"x": "X"}
    assert ["x" in batch for batch in gate.batches].index(True) <= 2
    assert idle(engine)


async def test_no_items_have_no_results() -> None:
    assert await made(Gate()).submit_all([]) == []


@pytest.mark.long(cases=1)
async def test_a_thousand_tasks_each_get_their_own_though_many_are_cancelled() -> None:
    choices = random.Random(5)

    async def double(items: list[str]) -> list[str]:
        for _ in range(choices.randrange(3)):
            await checkpoint()
        return [x + x for x in items]

    engine = BatchEngine(double, full=64, max_waiting=1000, at_once=2)
    answered = 0

    async def check(item: str, turns: int | None) -> None:
        nonlocal answered
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                if turns is not None:
                    tasks.start_soon(cancel_after, scope, turns)
                assert await engine.submit(item, choices.randrange(3)) == item + item
                answered += 1

    async def cancel_after(scope: anyio.CancelScope, turns: int) -> None:
        for _ in range(turns):
            await checkpoint()
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        for i in range(1000):
            tasks.start_soon(check, str(i), choices.randrange(60) if i % 3 else None)
    assert answered >= 334
    assert idle(engine)


@pytest.mark.parametrize("seed", range(4))
def test_tasks_of_many_threads_and_loops_share_batches(seed: int) -> None:
    """Every loop ends while others go on; a third of the tasks is cancelled by its end."""
    sizes: list[int] = []

    async def double(items: list[str]) -> list[str]:
        sizes.append(len(items))
        for _ in range(len(items) % 4):
            await checkpoint()
        return [x + x for x in items]

    engine = BatchEngine(double, full=16, max_waiting=10_000, at_once=1 + seed % 2)
    wrong: list[object] = []
    right = [0] * 4

    def work(thread: int) -> None:
        choices = random.Random(10 * seed + thread)

        async def ask(item: str) -> None:
            try:
                if await engine.submit(item, choices.randrange(2)) != item + item:
                    wrong.append(item)
                right[thread] += 1
            except Exception as error:
                wrong.append(error)

        async def several(n: int) -> None:
            async with anyio.create_task_group() as tasks:
                for i in range(n):
                    tasks.start_soon(ask, f"{thread}.{i}")
                await ask("own")
                if choices.random() < 0.3:
                    tasks.cancel_scope.cancel()

        for _ in range(8):
            anyio.run(several, choices.randrange(30), backend=choices.choice(["asyncio", "trio"]))

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "the engine hangs"
    assert not wrong
    assert min(right) >= 8
    assert idle(engine)


def test_a_loop_that_nobody_runs_any_more_does_not_stop_the_others() -> None:
    gate_open = False
    begun = 0

    async def slow(items: list[str]) -> list[str]:
        nonlocal begun
        begun += 1
        while not gate_open:  # noqa: ASYNC110 other loops are involved
            await asyncio.sleep(0)
        return [x + x for x in items]

    engine = BatchEngine(slow, full=1, max_waiting=10)

    async def leave(n: int) -> list[asyncio.Task[str]]:
        found = [asyncio.ensure_future(engine.submit("x")) for _ in range(n)]
        await asyncio.sleep(0)
        return found

    still, closed = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def go() -> str:
        nonlocal gate_open
        mine = asyncio.ensure_future(engine.submit("a"))
        while not begun:  # noqa: ASYNC110
            await asyncio.sleep(0)
        # Tasks of two other loops wait behind it; then one loop stands still, the other is closed.
        thread = threading.Thread(target=elsewhere)
        thread.start()
        while thread.is_alive():  # noqa: ASYNC110
            await asyncio.sleep(0)
        last = asyncio.ensure_future(engine.submit("b"))
        await asyncio.sleep(0)
        gate_open = True
        assert await mine == "aa"
        return await asyncio.wait_for(last, 30)

    kept: list[asyncio.Task[str]] = []

    def elsewhere() -> None:
        kept.extend(still.run_until_complete(leave(2)))
        kept.extend(closed.run_until_complete(leave(2)))
        closed.close()

    assert asyncio.run(go()) == "bb"
    for task in kept:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    still.run_until_complete(asyncio.gather(*kept[:2]))  # the loop that stood still goes on
    still.close()
    kept.clear()
    gc.collect()
    assert idle(engine)
