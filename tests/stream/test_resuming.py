"""Tasks of asyncio resume within the callback that learns of their operation, not a turn later.

Here: turns of the loop, cancellation, Ctrl-C, contexts, what debug mode names. Not here: cancelled
waits of every kind (test_cancellation.py), trio.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aggml
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


@pytest.fixture
def stream() -> Iterator[aggml.Stream]:
    made = aggml.Stream("resuming")
    with made.hold():
        yield made


def run(
    main: Callable[[aggml.Stream], Coroutine[Any, Any, None]],
    stream: aggml.Stream,
    *,
    debug: bool = False,
) -> None:
    asyncio.run(main(stream), debug=debug)


async def waiting(stream: aggml.Stream, then: Callable[[], object]) -> asyncio.Task[None]:
    """A task that waits for a mark of a held stream, and then calls something."""
    mark = stream.mark()

    async def wait() -> None:
        await mark
        then()

    task = asyncio.create_task(wait())
    for _ in range(3):  # one turn to begin, one for the second look at the operation, one to spare
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("debug", [False, True])
def test_a_task_runs_in_the_turn_that_learns_of_its_operation(
    stream: aggml.Stream, debug: bool
) -> None:
    async def main(stream: aggml.Stream) -> None:
        order: list[str] = []
        tasks = [await waiting(stream, partial(order.append, f"task {i}")) for i in range(3)]
        loop = asyncio.get_running_loop()
        select = loop._selector.select  # type: ignore[attr-defined]

        def counted(timeout: float | None) -> Any:
            found = select(timeout)
            order.append("poll" if found else "nothing")
            return found

        loop._selector.select = counted  # type: ignore[attr-defined]
        last = stream.mark()
        stream.native.release()
        assert last.wait(60)  # waits without a turn of the loop: afterwards all three tasks are due
        stream.native.hold()
        await asyncio.gather(*tasks)
        resumed = [order.index(f"task {i}") for i in range(3)]
        assert resumed == sorted(resumed)
        between = order[resumed[0] : resumed[-1]]
        assert order[resumed[0] - 1] == "poll"
        assert "nothing" not in between  # the loop made no turn for a task that was known to be due

    run(main, stream, debug=debug)


def test_cancellation_comes_before_an_operation_that_is_done(stream: aggml.Stream) -> None:
    """Both are known in the same turn: the task gets its cancellation, once, and not the result."""

    async def main(stream: aggml.Stream) -> None:
        told: list[str] = []
        task = await waiting(stream, lambda: told.append("done"))
        last = stream.mark()
        stream.native.release()
        assert last.wait(60)  # waits without a turn of the loop
        stream.native.hold()
        assert task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        for _ in range(3):
            await asyncio.sleep(0)
        assert told == []

    run(main, stream)


def test_what_a_future_holds_is_called_once(stream: aggml.Stream) -> None:
    """The reactor calls again after Ctrl-C; a task that has resumed must not resume twice."""

    async def main(_: aggml.Stream) -> None:
        waiter, steps = asyncio.get_running_loop().create_future(), []

        async def wait() -> None:
            await waiter
            steps.append(1)
            await asyncio.sleep(0)
            steps.append(2)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)

        def twice() -> None:
            _native.resume(waiter)
            assert steps == [1]
            _native.resume(waiter)
            assert steps == [1]

        asyncio.get_running_loop().call_soon(twice)
        await task
        assert steps == [1, 2]

    run(main, stream)


def test_a_future_that_others_look_at_tells_all_of_them(stream: aggml.Stream) -> None:
    async def main(_: aggml.Stream) -> None:
        waiter, told = asyncio.get_running_loop().create_future(), []
        waiter.add_done_callback(lambda _: told.append("callback"))

        async def wait() -> None:
            await waiter
            told.append("task")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(_native.resume, waiter)
        await task
        assert told == ["callback", "task"]
        nobody = asyncio.get_running_loop().create_future()
        _native.resume(nobody)
        assert nobody.done()

    run(main, stream)


@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_ends_the_loop_and_others_are_told_in_the_next(
    stream: aggml.Stream, problem: type[BaseException]
) -> None:
    told: list[str] = []

    def interrupt() -> None:
        raise problem

    async def main(stream: aggml.Stream) -> None:
        await waiting(stream, interrupt)
        await waiting(stream, lambda: told.append("second"))
        stream.native.release()
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    try:
        ends = loop.create_task(main(stream))
        with pytest.raises(problem):
            loop.run_until_complete(ends)
        assert told == []
        while not told:
            loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(ends)
    finally:
        loop.close()
    stream.native.hold()


def test_a_task_keeps_its_context(stream: aggml.Stream) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody's")

    async def main(stream: aggml.Stream) -> None:
        seen: list[str] = []
        name.set("main's")
        context = contextvars.copy_context()
        context.run(name.set, "the task's")
        mark = stream.mark()

        async def wait() -> None:
            await mark
            seen.append(name.get())
            name.set("changed")

        task = asyncio.create_task(wait(), context=context)
        await asyncio.sleep(0)
        stream.native.release()
        await task
        stream.native.hold()
        assert (seen, context[name], name.get()) == (["the task's"], "changed", "main's")

    run(main, stream)


def test_debug_mode_names_the_task_that_held_up_the_loop(
    stream: aggml.Stream, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(stream: aggml.Stream) -> None:
        asyncio.get_running_loop().slow_callback_duration = 0.001
        task = await waiting(stream, lambda: time.sleep(0.002))
        task.set_name("the slow one")
        stream.native.release()
        await task
        stream.native.hold()

    caplog.set_level(logging.WARNING, "asyncio")
    run(main, stream, debug=True)
    assert any("the slow one" in line and "took" in line for line in caplog.messages)
