"""Callbacks of a Future: in which loop they run, when, and what happens if one raises."""

from __future__ import annotations

import threading

import anyio
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from support import Array, holding, ramp

import aggml


async def test_callbacks_run_in_the_loop_that_added_them(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    called = anyio.Event()
    calls: list[tuple[object, int]] = []

    def callback(future: aggml.Future[Array]) -> None:
        calls.append((future, threading.get_ident()))
        called.set()

    with be.stream.hold():
        future = be.get(tensor)
        future.add_done_callback(callback)
        await wait_all_tasks_blocked()
        assert calls == []
    with anyio.fail_after(60):
        await called.wait()
    assert calls == [(future, threading.get_ident())]


async def test_callback_of_a_done_future_runs_soon_but_not_at_once(be: aggml.Backend) -> None:
    future = be.synchronize()
    await future
    called = anyio.Event()
    future.add_done_callback(lambda _: called.set())
    assert not called.is_set()
    with anyio.fail_after(60):
        await called.wait()


async def test_a_callback_that_raises_is_logged_and_others_run(
    be: aggml.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    tensor = holding(be, ramp())
    called = anyio.Event()

    def broken(_: object) -> None:
        raise ValueError("broken callback")

    with be.stream.hold():
        future = be.get(tensor)
        future.add_done_callback(broken)
        future.add_done_callback(lambda _: called.set())
    with anyio.fail_after(60):
        await called.wait()
    assert "broken callback" in caplog.text
    assert np.array_equal(await future, ramp())


async def test_a_callback_may_enqueue_and_add_callbacks(be: aggml.Backend) -> None:
    tensor = holding(be, ramp())
    called = anyio.Event()
    order: list[int] = []

    def add(depth: int) -> None:
        order.append(depth)
        if depth == 3:
            called.set()
        else:
            be.get(tensor).add_done_callback(lambda _: add(depth + 1))

    with be.stream.hold():
        be.get(tensor).add_done_callback(lambda _: add(0))
        await wait_all_tasks_blocked()
    with anyio.fail_after(60):
        await called.wait()
    assert order == [0, 1, 2, 3]


def test_a_callback_needs_a_loop(be: aggml.Backend) -> None:
    future = be.synchronize()
    with pytest.raises(aggml.InvalidState, match="loop"):
        future.add_done_callback(print)


async def test_a_callback_that_cannot_be_called_is_refused_at_the_call(be: aggml.Backend) -> None:
    future = be.get(holding(be, ramp()))
    with pytest.raises(aggml.InvalidHandle, match=r"^\[Future\] callback 5 is no function$"):
        future.add_done_callback(5)  # type: ignore[arg-type]
    assert np.array_equal(await future, ramp())


async def test_a_callback_that_is_added_and_due_in_one_turn_of_the_loop_comes(
    be: aggml.Backend,
) -> None:
    """It comes in the next turn, and nobody else waits meanwhile."""
    gate = aggml.Stream("gate")
    order: list[str] = []
    came = anyio.Event()

    def last(_: object) -> None:
        order.append("last")
        came.set()

    be.stream.native.hold()
    held = be.stream.mark()

    def add(_: object) -> None:
        held.add_done_callback(last)
        order.append("added")

    def release(_: object) -> None:
        be.stream.native.release()
        assert held.wait(60)  # in the same turn of the loop
        order.append("done")

    with gate.hold():
        gate.mark().add_done_callback(add)
        end = gate.mark()
        end.add_done_callback(release)
    assert end.wait(60)  # without a turn of the loop: then both callbacks are due
    with anyio.fail_after(60):
        await came.wait()
    assert order == ["added", "done", "last"]
