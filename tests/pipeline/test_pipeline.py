"""Pipelines: stages, order, errors, urgency, cancellation.

Random pipelines: test_random_pipelines.py.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from anyio.lowlevel import checkpoint

import aggml
import aggml.pipeline
from aggml import InvalidArgument, InvalidState
from aggml.pipeline import Stage, StageError, Urgent, current_urgency, fan, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


async def double(x: Any) -> Any:
    return 2 * x


async def same(x: Any) -> Any:
    return x


async def all_of(opened: Any) -> list[Any]:
    async with opened as results:
        return [x async for x in results]


async def collect(opened: Any, into: list[Any], pause: int = 0) -> None:
    async with opened as results:
        async for x in results:
            for _ in range(pause):
                await checkpoint()
            into.append(x)


async def test_items_go_through_all_stages_in_order() -> None:
    assert await all_of(run(range(5), double, Stage(same, workers=3))) == [0, 2, 4, 6, 8]


async def test_without_a_stage_the_items_of_the_source_come_out() -> None:
    async def source() -> AsyncIterator[Any]:
        for x in "abc":
            yield x

    assert await all_of(run(source())) == ["a", "b", "c"]
    assert await all_of(run([])) == []


async def test_a_generator_gives_many_and_none_drops_an_item() -> None:
    async def split(text: str) -> AsyncIterator[str]:
        for word in text.split():
            yield word

    async def long_ones(word: str) -> str | None:
        return word if len(word) > 2 else None

    assert await all_of(run(["a fine day", "", "to sea"], split, long_ones)) == [
        "fine", "day", "sea",
    ]  # fmt: skip


async def test_a_function_may_return_an_awaitable_or_an_async_iterator() -> None:
    async def split(text: str) -> AsyncIterator[str]:
        for letter in text:
            yield letter

    assert await all_of(run(["ab"], lambda x: split(x), lambda x: double(x))) == ["aa", "bb"]
    assert await all_of(run([3], functools.partial(double))) == [6]


async def test_a_batch_is_given_when_it_is_full_or_the_source_has_ended() -> None:
    sizes = []

    async def count(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return items

    assert await all_of(run(range(10), Stage(count, batch=4, within=3600))) == [*range(10)]
    assert sizes == [4, 4, 2]


async def test_a_batch_waits_no_longer_for_others_than_it_may() -> None:
    more = anyio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        await more.wait()
        yield 2

    async def sizes(items: list[int]) -> list[int]:
        more.set()  # it would never come if the batch waited for the second item
        return [len(items)] * len(items)

    assert await all_of(run(source(), Stage(sizes, batch=2, within=0.001))) == [1, 1]


@pytest.mark.parametrize("give", [lambda x: x[1:], lambda x: None, lambda x: 3])
async def test_a_batch_that_gives_another_number_of_results_fails(give: Any) -> None:
    async def wrong(items: list[int]) -> Any:
        return give(items)

    with pytest.raises(StageError, match="batch of 3 items") as caught:
        await all_of(run(range(3), Stage(wrong, batch=3, within=3600)))
    assert caught.value.item == [0, 1, 2]


async def test_a_fan_gives_tuples_in_order_and_drops_what_a_branch_drops() -> None:
    async def odd(x: int) -> int | None:
        return x if x % 2 else None

    async def plus(items: list[int]) -> list[int]:
        return [x + 100 for x in items]

    branches = fan(odd, Stage(plus, batch=2, within=3600), fan(double, Stage(same, workers=4)))
    assert await all_of(run(range(4), branches)) == [(1, 101, (2, 1)), (3, 103, (6, 3))]


async def test_a_stream_of_results_has_no_place_in_a_fan() -> None:
    async def many(x: int) -> AsyncIterator[int]:
        yield x

    with pytest.raises(StageError, match="branch gave a stream"):
        await all_of(run([1], fan(many, same)))


@pytest.mark.parametrize("kind", [dict.fromkeys, set, frozenset, str, bytes])
async def test_a_batch_gives_its_results_in_the_order_of_the_items(kind: Any) -> None:
    async def pair(items: list[int]) -> Any:
        return kind(items) if kind is not str else "ab"

    with pytest.raises(StageError, match=f"gave {kind([]).__class__.__name__}.*expected a list"):
        await all_of(run([1, 2], Stage(pair, batch=2, within=3600)))


async def test_a_batch_gives_no_stream() -> None:
    async def one_by_one(items: list[int]) -> AsyncIterator[int]:
        for item in items:
            yield item

    with pytest.raises(StageError, match="a batch gave a stream of results"):
        await all_of(run([1, 2], Stage(one_by_one, batch=2, within=3600)))


@pytest.mark.parametrize("anyio_backend", ["trio"])  # asyncio's loop itself ends by an interrupt
async def test_an_interrupt_of_a_stage_is_no_end_of_the_results() -> None:
    async def interrupted(x: int) -> int:
        raise KeyboardInterrupt

    got: list[int] = []

    async def consume() -> None:
        async with run([1], interrupted) as results:
            async for _ in results:
                pass
            got.append(-1)  # the loop ended as if all was done

    with pytest.raises(BaseExceptionGroup) as caught:
        await consume()
    assert caught.value.subgroup(KeyboardInterrupt)
    assert not got


async def test_without_order_a_result_comes_when_it_is_ready() -> None:
    first = anyio.Event()

    async def work(x: int) -> int:
        if x == 0:
            await first.wait()
        return x

    async with run(range(3), Stage(work, workers=2), ordered=False) as results:
        assert [await anext(results), await anext(results)] == [1, 2]
        first.set()
        assert await anext(results) == 0


async def test_workers_go_on_while_the_oldest_item_is_slow_and_order_is_kept() -> None:
    first, others = anyio.Event(), []

    async def work(x: int) -> int:
        if x == 0:
            await first.wait()
        else:
            others.append(x)
            if len(others) == 4:
                first.set()  # one worker alone did these
        return x

    opened = run(range(6), Stage(work, workers=2, buffer=4))
    assert await all_of(opened) == [*range(6)]


async def test_a_slow_consumer_slows_down_the_source() -> None:
    taken = 0

    def source() -> Any:
        nonlocal taken
        for i in range(1000):
            taken += 1
            yield i

    async with run(source(), double, Stage(same, workers=2), buffer=2) as results:
        for n in range(10):
            await anext(results)
            for _ in range(100):
                await checkpoint()
            # three queues of two, three workers, results that wait for their turn, one that enters
            assert taken <= n + 1 + 3 * 2 + 3 + 4 + 1


async def test_an_error_names_stage_and_item_and_ends_the_run() -> None:
    async def bad(x: int) -> int:
        if x == 6:
            raise ValueError("not six")
        return x

    got: list[int] = []
    opened = run(range(100), double, Stage(bad, name="check"))
    with pytest.raises(StageError, match=r"'check'.*6.*not six") as caught:
        await collect(opened, got)
    assert (caught.value.stage, caught.value.item) == ("check", 6)
    assert isinstance(caught.value.__cause__, ValueError)
    assert isinstance(caught.value, aggml.AggmlError)
    assert got == [0, 2, 4][: len(got)]


async def test_an_error_that_no_step_of_the_loop_saw_is_raised_at_the_end() -> None:
    failed = anyio.Event()

    async def bad(x: int) -> int:
        failed.set()
        raise ValueError(x)

    async def leave_early() -> None:
        async with run([1], bad):
            await failed.wait()
            for _ in range(5):
                await checkpoint()

    with pytest.raises(StageError):
        await leave_early()


async def test_an_error_does_not_cancel_the_consumer() -> None:
    async def bad(x: int) -> int:
        if x:
            raise ValueError(x)
        return x

    done: list[int] = []
    with pytest.raises(StageError):
        await collect(run(range(3), bad), done, pause=50)
    assert done == [0]


@pytest.mark.parametrize("wait", [True, False])
async def test_a_handler_gets_errors_and_the_run_goes_on(wait: bool) -> None:
    async def bad(x: int) -> int:
        if x % 3 == 0:
            raise KeyError(x)
        return x

    seen: list[Any] = []

    async def later(error: StageError) -> None:
        await checkpoint()
        seen.append(error.item)

    def now(error: StageError) -> None:
        seen.append(error.item)

    on_error: Any = later if wait else now
    assert await all_of(run(range(7), Stage(bad, workers=2), on_error=on_error)) == [1, 2, 4, 5]
    assert sorted(seen) == [0, 3, 6]


async def test_what_a_handler_raises_ends_the_run() -> None:
    async def bad(x: int) -> int:
        raise KeyError(x)

    def refuse(error: StageError) -> None:
        raise LookupError("enough") from error

    with pytest.raises(LookupError, match="enough"):
        await all_of(run(range(3), bad, on_error=refuse))


async def test_a_source_that_fails_ends_the_run_under_its_name() -> None:
    def source() -> Any:
        yield 1
        raise OSError("no more")

    with pytest.raises(StageError, match="'source'") as caught:
        await all_of(run(source(), same))
    assert (caught.value.stage, caught.value.item) == ("source", None)
    errors: list[StageError] = []
    assert await all_of(run(source(), same, on_error=errors.append)) == [1]
    assert [x.stage for x in errors] == ["source"]


async def test_what_the_consumer_raises_comes_out_as_it_is() -> None:
    async def divide() -> None:
        async with run(range(9), double) as results:
            async for x in results:
                _ = 1 // x

    with pytest.raises(ZeroDivisionError):
        await divide()


@pytest.mark.parametrize("given", [lambda x: x, lambda x: [x]])
async def test_a_function_that_is_not_async_fails_with_advice(given: Any) -> None:
    with pytest.raises(StageError, match="async def"):
        await all_of(run([1], given))


async def test_retries_call_again_until_the_call_succeeds() -> None:
    tries = []

    async def flaky(x: int) -> int:
        tries.append(x)
        if tries.count(x) <= x:
            raise OSError(x)
        return x

    assert await all_of(run(range(3), Stage(flaky, retries=2))) == [0, 1, 2]
    assert [tries.count(x) for x in range(3)] == [1, 2, 3]
    tries.clear()
    with pytest.raises(StageError):
        await all_of(run([3], Stage(flaky, retries=2)))
    assert len(tries) == 3


async def test_a_generator_that_has_given_something_is_not_called_again() -> None:
    calls = []

    async def breaks(x: int) -> AsyncIterator[int]:
        calls.append(x)
        if len(calls) == 1:
            raise OSError
        yield 1
        raise ValueError

    errors: list[StageError] = []
    assert await all_of(run([0], Stage(breaks, retries=5), on_error=errors.append)) == [1]
    assert len(calls) == 2
    assert isinstance(errors[0].__cause__, ValueError)


async def test_a_call_that_takes_longer_than_its_time_out_fails() -> None:
    async def hang(x: int) -> int:
        if x:
            await anyio.sleep_forever()
        return x

    async def drip(x: int) -> AsyncIterator[int]:
        yield x
        await anyio.sleep_forever()

    with pytest.raises(StageError, match=r"time-out of 0\.01 s") as caught:
        await all_of(run([1], Stage(hang, timeout=0.01)))
    assert isinstance(caught.value.__cause__, TimeoutError)
    errors: list[StageError] = []
    found = await all_of(run([5], Stage(drip, timeout=0.01), on_error=errors.append))
    assert found == [5]
    assert len(errors) == 1


async def test_a_time_out_of_a_generator_does_not_count_the_wait_for_the_consumer() -> None:
    async def count(x: int) -> AsyncIterator[int]:
        for i in range(x):
            yield i

    async with run([20], Stage(count, timeout=0.2), buffer=1) as results:
        await anyio.sleep(0.3)  # a consumer that takes longer than the stage may
        assert [x async for x in results] == [*range(20)]


async def test_urgency_travels_with_the_item() -> None:
    async def look(x: str) -> tuple[str, int, bool]:
        found = current_urgency()
        return x, found.priority, found.until is not None

    async def raised(x: str) -> Urgent[str]:
        return Urgent(x + "!", priority=9)

    items = [Urgent("a", priority=3), "b", Urgent("c", deadline=1000)]
    found = await all_of(run(items, same, look))
    assert found == [("a", 3, False), ("b", 0, False), ("c", 0, True)]
    assert await all_of(run(["x"], raised, look)) == [("x!", 9, False)]
    assert current_urgency() == (0, None)


async def test_a_run_within_a_stage_has_the_urgency_of_its_item() -> None:
    async def look(x: int) -> int:
        return current_urgency().priority

    async def inner(x: int) -> list[int]:
        return await all_of(run([x, Urgent(x, priority=1)], look))

    assert await all_of(run([Urgent(0, priority=7)], inner)) == [[7, 1]]


async def test_without_order_the_most_urgent_item_is_taken_first() -> None:
    begun, go = anyio.Event(), anyio.Event()
    seen = []

    async def work(x: str) -> str:
        begun.set()
        await go.wait()
        seen.append(x)
        return x

    items = [
        "first", Urgent("low", priority=-1), "none", Urgent("late", deadline=900),
        Urgent("soon", deadline=800), Urgent("high", priority=5),
    ]  # fmt: skip
    async with run(items, work, ordered=False) as results:
        await begun.wait()
        for _ in range(30):
            await checkpoint()
        go.set()
        async for _ in results:
            pass
    assert seen == ["first", "high", "soon", "late", "none", "low"]


async def test_an_item_fails_when_its_deadline_passes_before_or_in_a_stage() -> None:
    async def hang(x: str) -> str:
        if x == "in":
            await anyio.sleep_forever()
        return x

    errors: list[StageError] = []
    items = [Urgent("in", deadline=0.02), Urgent("before", deadline=0.0), "free"]
    assert await all_of(run(items, Stage(hang, retries=9), on_error=errors.append)) == ["free"]
    assert [x.item for x in errors] == ["in", "before"]
    assert all("deadline" in str(x) for x in errors)
    assert all(isinstance(x.__cause__, TimeoutError) for x in errors)


async def test_a_batch_gives_up_only_the_items_that_are_late() -> None:
    errors: list[StageError] = []

    async def work(items: list[str]) -> list[str]:
        return items

    items = ["a", Urgent("late", deadline=0.0), Urgent("b", deadline=1000)]
    stage = Stage(work, batch=3, within=3600)
    assert await all_of(run(items, stage, on_error=errors.append)) == ["a", "b"]
    assert [x.item for x in errors] == ["late"]


async def test_a_generator_that_is_the_source_is_closed_when_the_block_is_left() -> None:
    open_: set[str] = set()

    def source() -> Iterator[int]:
        open_.add("source")
        try:
            yield from range(1000)
        finally:
            open_.discard("source")

    items = source()
    async with run(items, double, buffer=1) as results:
        async for _ in results:
            assert open_ == {"source"}
            break
    assert not open_
    assert list(items) == []


async def test_an_iterator_that_is_the_source_goes_on_behind_the_block() -> None:
    items = iter(range(100))
    async with run(items, double, buffer=1) as results:
        async for _ in results:
            break
    left = list(items)
    assert left
    assert left == list(range(100 - len(left), 100))


async def test_leaving_the_block_cancels_calls_and_closes_source_and_generators() -> None:
    open_: set[str] = set()
    hanging = anyio.Event()

    async def source() -> AsyncIterator[int]:
        open_.add("source")
        try:
            for i in range(1000):
                yield i
        finally:
            await checkpoint_shielded()
            open_.discard("source")

    async def checkpoint_shielded() -> None:
        with anyio.CancelScope(shield=True):
            await checkpoint()

    async def many(x: int) -> AsyncIterator[int]:
        open_.add("many")
        try:
            while True:
                yield x
        finally:
            await checkpoint_shielded()
            open_.discard("many")

    async def hang(x: int) -> int:
        open_.add("hang")
        hanging.set()
        try:
            await anyio.sleep_forever()
        finally:
            open_.discard("hang")
        return x

    async with run(source(), many, fan(Stage(hang, workers=3), same)):
        await hanging.wait()
        assert open_ == {"source", "many", "hang"}
    assert not open_


async def test_cancelling_the_consumer_cancels_all_stages() -> None:
    running = 0
    begun = anyio.Event()

    async def hang(x: int) -> int:
        nonlocal running
        running += 1
        if running == 4:
            begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            running -= 1
        return x

    async with anyio.create_task_group() as tasks:

        async def consume() -> None:
            await all_of(run(range(9), Stage(hang, workers=4)))

        tasks.start_soon(consume)
        await begun.wait()
        tasks.cancel_scope.cancel()
    assert running == 0


async def test_a_wait_for_a_result_may_be_cancelled_without_losing_it() -> None:
    go = anyio.Event()

    async def work(x: int) -> int:
        await go.wait()
        return x

    async with run(range(3), work) as results:
        with anyio.move_on_after(0.001):
            await anext(results)
        go.set()
        assert [x async for x in results] == [0, 1, 2]


async def test_several_consumers_share_the_results() -> None:
    got: list[int] = []
    async with run(range(50), double) as results, anyio.create_task_group() as tasks:

        async def consume() -> None:
            got.extend([x async for x in results])

        for _ in range(3):
            tasks.start_soon(consume)
    assert sorted(got) == [2 * x for x in range(50)]


async def test_after_the_block_results_that_were_left_are_refused() -> None:
    async with run(range(1000), double) as results:
        assert await anext(results) == 0
    with pytest.raises(InvalidState, match="left"):
        _ = [x async for x in results]
    async with run(range(3), double) as results:
        assert [x async for x in results] == [0, 2, 4]
    with pytest.raises(StopAsyncIteration):
        await anext(results)


async def test_a_cancellation_that_nobody_asked_for_is_an_error_of_the_stage(
    anyio_backend_name: str,
) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("only asyncio has tasks that others can cancel")

    async def awaits_a_cancelled_task(x: int) -> int:
        task = asyncio.ensure_future(asyncio.sleep(3600))
        task.cancel()
        await task
        return x

    with anyio.fail_after(30), pytest.raises(StageError) as caught:
        await all_of(run([1], awaits_a_cancelled_task, same))
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


async def test_statistics_count_what_each_stage_did() -> None:
    async def odd(x: int) -> int | None:
        return x if x % 2 else None

    def ignore(error: StageError) -> None:
        pass

    async def bad(x: int) -> int:
        return 1 // (x - 3)

    async with run(range(10), odd, odd, Stage(bad, name="bad"), on_error=ignore) as results:
        assert len([x async for x in results]) == 4
        first, second, third = results.stats.values()
    assert list(results.stats) == ["odd", "odd (2)", "bad"]
    assert (first.taken, first.given, first.waiting, first.failed) == (10, 5, 0, 0)
    assert (second.taken, second.given) == (5, 5)
    assert (third.taken, third.given, third.failed) == (5, 4, 1)
    assert all(x.busy_seconds > 0 and x.latency > 0 for x in (first, second, third))


async def test_the_drawing_names_stages_branches_and_numbers() -> None:
    stages = fan(Stage(same, name="left"), Stage(same, name="right", workers=2))
    async with run(range(4), Stage(double, buffer=3), stages) as results:
        assert len([x async for x in results]) == 4
    lines = str(results).splitlines()
    assert [line.split("  ")[0].strip() for line in lines if "->" not in line] == ["source"]
    assert "-> double" in lines[1]
    assert "4 taken" in lines[1]
    assert lines[2] == "-> each of"
    assert lines[3].startswith("   -> left")
    assert "2 at a time" in lines[4]
    assert lines[5] == "-> results"


async def test_a_trace_has_a_row_for_each_worker(tmp_path: Any) -> None:
    both = anyio.Event()
    running = 0

    async def wait(x: int) -> int:
        nonlocal running
        running += 1
        if running == 2:
            both.set()
        await both.wait()
        return x

    with aggml.trace() as trace:
        await all_of(run(range(2), double, Stage(wait, workers=2)))
    rows = {x.stream for x in trace.events}
    assert rows == {"double", "wait 1", "wait 2"}
    first, second = (x for x in trace.events if x.operation == "wait")
    assert max(first.started, second.started) <= min(first.done, second.done)
    assert all(x.submitted <= x.started <= x.done for x in trace.events)
    trace.plot(tmp_path / "run.svg")
    assert "wait 1" in (tmp_path / "run.svg").read_text()
    events = trace.to_json()["traceEvents"]
    assert sum(x["ph"] == "X" for x in events) == 4


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_change_nothing() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 newer Python
        found = await all_of(run(range(20), Stage(double, workers=3), fan(same, double)))
        assert found == [(2 * x, 4 * x) for x in range(20)]
        async with run(range(1000), Stage(same, workers=2)) as results:
            await anext(results)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


untyped: Any = aggml.pipeline  # what a type checker would refuse


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: untyped.run(3), "source is of type int"),
        (lambda: untyped.run([], 3), "expected an async function"),
        (lambda: untyped.run([], buffer=0), "buffer is 0"),
        (lambda: untyped.run([], buffer=True), "buffer is True"),
        (lambda: untyped.run([], ordered=1), "ordered is 1"),
        (lambda: untyped.run([], on_error=3), "on_error is 3"),
        (lambda: untyped.Stage("x"), "fn is 'x'"),
        (lambda: untyped.Stage(Stage(double)), "fn is <Stage double"),
        (lambda: untyped.Stage(double, workers=0), "workers is 0"),
        (lambda: untyped.Stage(double, workers=1.0), "workers is 1.0"),
        (lambda: untyped.Stage(double, workers=10**30), "expected a whole number of 1 to 65536"),
        (lambda: untyped.Stage(double, workers=np.True_), "workers is "),
        (lambda: untyped.Stage(double, batch=np.ones((2, 2))), "[[1., 1.], [1., 1.]]"),
        (lambda: untyped.Stage(double, timeout=10**400), "timeout is 1000"),
        (lambda: untyped.Stage(double, batch=0), "batch is 0"),
        (lambda: untyped.Stage(double, within=-1), "within is -1"),
        (lambda: untyped.Stage(double, within=float("nan")), "within is nan"),
        (lambda: untyped.Stage(double, timeout="1"), "timeout is '1'"),
        (lambda: untyped.Stage(double, retries=-1), "retries is -1"),
        (lambda: untyped.Stage(double, buffer=0), "buffer is 0"),
        (lambda: untyped.Stage(double, name=""), "name is ''"),
        (lambda: untyped.fan(), "no stage"),
        (lambda: untyped.fan(1), "expected an async function"),
        (lambda: untyped.Urgent(1, priority="high"), "priority is 'high'"),
        (lambda: untyped.Urgent(1, priority=True), "priority is True"),
        (lambda: untyped.Urgent(1, deadline=-1), "deadline is -1"),
        (lambda: untyped.Urgent(1, deadline=float("inf")), "deadline is inf"),
    ],
)
def test_misuse_is_refused_at_the_call(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert message in str(caught.value)


async def test_a_stage_takes_numbers_of_numpy() -> None:
    stage = untyped.Stage(double, workers=np.int8(2), timeout=np.float32(5), retries=np.uint64(1))
    async with run([1, 2], stage) as results:
        assert [x async for x in results] == [2, 4]


async def test_an_exception_without_a_text_ends_the_run() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

    async def fail(x: int) -> int:
        raise Silent

    async def run_it() -> None:
        async with run([1], fail) as results:
            async for _ in results:
                pass

    with pytest.raises(StageError, match=r"failed on the item 1: Silent") as caught:
        await run_it()
    assert isinstance(caught.value.__cause__, Silent)
