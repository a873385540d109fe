"""The batcher of the example, with computations that wait until the test lets them go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.abc
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from aggml.models.batching import Batcher, BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    """Submits items, each in a task of the group, and notes the results."""

    batcher: Batcher[str, str]
    tasks: anyio.abc.TaskGroup

    def __init__(self) -> None:
        self.results: dict[str, str | Exception] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}

    async def submit(self, *items: str) -> None:
        for item in items:
            self.tasks.start_soon(self._one, item)
            await wait_all_tasks_blocked()  # so that the items are submitted in this order

    async def _one(self, item: str) -> None:
        with anyio.CancelScope() as self.scopes[item]:
            try:
                self.results[item] = await self.batcher.submit(item)
            except BatchError as error:
                self.results[item] = error


async def test_what_arrives_during_a_batch_is_the_next_batch() -> None:
    gate = Gate()
    caller = Caller()
    async with Batcher(gate) as batcher, anyio.create_task_group() as tasks:
        caller.batcher, caller.tasks = batcher, tasks
        await caller.submit("a", "b", "c")
        assert gate.batches == [["a"]]
        gate.let_go(2)
    assert gate.batches == [["a"], ["b", "c"]]
    assert caller.results == {"a": "A", "b": "B", "c": "C"}


async def test_a_full_batch_is_handed_over_behind_the_running_one() -> None:
    gate = Gate()
    caller = Caller()
    async with Batcher(gate, full=4) as batcher, anyio.create_task_group() as tasks:
        caller.batcher, caller.tasks = batcher, tasks
        await caller.submit("a", "bb", "c")
        assert gate.batches == [["a"]]
        await caller.submit("dd", "eeee", "f")
        assert gate.batches == [["a"], ["bb", "c"]]  # only two batches at a time
        for _ in range(5):
            gate.let_go()
            await wait_all_tasks_blocked()
    assert gate.batches == [["a"], ["bb", "c"], ["dd"], ["eeee"], ["f"]]
    assert set(caller.results) == {"a", "bb", "c", "dd", "eeee", "f"}


async def test_an_item_longer_than_a_batch_goes_alone() -> None:
    gate = Gate()
    caller = Caller()
    async with Batcher(gate, full=2) as batcher, anyio.create_task_group() as tasks:
        caller.batcher, caller.tasks = batcher, tasks
        await caller.submit("a", "long", "b")
        gate.let_go(3)
    assert gate.batches == [["a"], ["long"], ["b"]]


async def test_cancelling_one_leaves_the_others() -> None:
    gate = Gate()
    caller = Caller()
    async with Batcher(gate) as batcher, anyio.create_task_group() as tasks:
        caller.batcher, caller.tasks = batcher, tasks
        await caller.submit("a", "b", "c", "d")
        caller.scopes["c"].cancel()  # while it is in the queue
        await wait_all_tasks_blocked()
        gate.let_go()
        await wait_all_tasks_blocked()
        assert gate.batches == [["a"], ["b", "d"]]
        caller.scopes["b"].cancel()  # while it is in the running batch
        await wait_all_tasks_blocked()
        gate.let_go()
    assert caller.results == {"a": "A", "d": "D"}
    assert gate.cancelled == 0


async def test_a_batch_that_nobody_waits_for_is_cancelled() -> None:
    gate = Gate()
    caller = Caller()
    async with Batcher(gate) as batcher, anyio.create_task_group() as tasks:
        caller.batcher, caller.tasks = batcher, tasks
        await caller.submit("a", "b")
        caller.scopes["a"].cancel()
        await wait_all_tasks_blocked()
        assert gate.cancelled == 1
        assert gate.batches == [["a"], ["b"]]
        gate.let_go()
    assert caller.results == {"b": "B"}


async def test_a_failure_reaches_those_of_its_batch_only() -> None:
    gate = Gate()
    gate.fail = OSError("broken")
    caller = Caller()
    async with Batcher(gate) as batcher, anyio.create_task_group() as tasks:
        caller.batcher, caller.tasks = batcher, tasks
        await caller.submit("a", "b", "c")
        gate.let_go()
        await wait_all_tasks_blocked()
        gate.fail = None
        gate.let_go()
    first = caller.results["a"]
    assert isinstance(first, BatchError)
    assert isinstance(first.__cause__, OSError)
    assert (caller.results["b"], caller.results["c"]) == ("B", "C")


async def test_too_few_results_are_a_failure() -> None:
    async def short(items: list[str]) -> list[str]:
        await checkpoint()
        return items[1:] + items + items

    async with Batcher(short) as batcher:
        with pytest.raises(BatchError, match="results for 1 requests"):
            await batcher.submit("a")


async def test_no_more_than_max_waiting_are_held() -> None:
    gate = Gate()
    caller = Caller()
    async with Batcher(gate, max_waiting=3) as batcher, anyio.create_task_group() as tasks:
        caller.batcher, caller.tasks = batcher, tasks
        await caller.submit(*"abcde")
        assert len(batcher._queue) == 2  # and one is being computed
        caller.scopes["d"].cancel()  # an item that is not admitted yet can also be cancelled
        await wait_all_tasks_blocked()
        gate.let_go(5)
    assert [x for batch in gate.batches for x in batch] == list("abce")


async def test_ending_tells_those_who_wait() -> None:
    gate = Gate()
    caller = Caller()
    async with anyio.create_task_group() as tasks, Batcher(gate) as batcher:
        caller.batcher, caller.tasks = batcher, tasks
        await caller.submit("a", "b")
    assert all(isinstance(x, BatchError) for x in caller.results.values())
    assert set(caller.results) == {"a", "b"}
    with pytest.raises(BatchError, match="ended"):
        await batcher.submit("c")


async def test_an_exception_of_the_body_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with Batcher(Gate()):
            raise KeyError("mine")


async def test_leaving_by_cancellation_works() -> None:
    with anyio.move_on_after(0.01) as scope:
        async with Batcher(Gate()) as batcher:
            await batcher.submit("a")
    assert scope.cancelled_caught


async def test_a_thousand_tasks_each_get_their_own() -> None:
    async def double(items: list[str]) -> list[str]:
        await checkpoint()
        return [x + x for x in items]

    async def check(item: str) -> None:
        assert await batcher.submit(item) == item + item

    async with (
        Batcher(double, full=64, max_waiting=100) as batcher,
        anyio.create_task_group() as tasks,
    ):
        for i in range(1000):
            tasks.start_soon(check, str(i))
