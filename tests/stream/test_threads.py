"""Many Python threads at one stream: their first call of Python, back-pressure, gather, tasks.

Not here: batches of several threads (test_batch.py), loops in several threads (test_future.py).
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from support import holding, ramp

import aggml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import AnyDevice


@contextmanager
def short_slices() -> Iterator[None]:
    """Have Python switch between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def at_once(n: int, function: Callable[[int], None]) -> None:
    """Run ``function(i)`` in n threads that begin together; raise the first error of any."""
    barrier, failures = threading.Barrier(n), list[BaseException]()

    def run(i: int) -> None:
        try:
            barrier.wait(60)
            function(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]


@pytest.mark.long
def test_the_first_calls_of_several_threads_at_once() -> None:
    pool = aggml.ThreadPool(1)
    with short_slices():
        for _ in range(100):
            stream = aggml.Stream("calls", pool=pool)
            futures: list[aggml.Future[Any]] = []
            at_once(4, lambda i: futures.append(stream.call(lambda i=i: i)))  # noqa: B023
            assert sorted(f.get(60) for f in futures) == [0, 1, 2, 3]
            stream.close()


def test_calls_of_many_threads_stay_with_their_futures() -> None:
    stream = aggml.Stream("calls", pool=aggml.ThreadPool(2))
    got: dict[tuple[int, int], aggml.Future[Any]] = {}

    def queue(i: int) -> None:
        for k in range(100):
            got[i, k] = stream.call(lambda k=k: (i, k))

    with short_slices():
        at_once(4, queue)
    assert all(future.get(60) == key for key, future in got.items())
    stream.close()


def test_max_queued_with_several_submitting_threads(device: AnyDevice) -> None:
    """No submission is lost: each call returns its Future, `pending` counts all until they end."""
    be = device.backend(max_queued=4)
    tensor = holding(be, ramp())
    futures: list[aggml.Future[Any]] = []

    def submit(_: int) -> None:
        for _ in range(300):
            futures.append(be.get(tensor))  # noqa: PERF401 - each as soon as it is there

    with short_slices():
        at_once(4, submit)
    assert len(futures) == 1200
    assert all(np.array_equal(f.get(60), ramp()) for f in futures)
    assert not be._admission.busy()
    be.close()


@pytest.mark.parametrize("backends", [("asyncio", "trio"), ("trio", "asyncio"), ("asyncio",) * 2])
def test_ready_of_loops_in_several_threads(device: AnyDevice, backends: tuple[str, str]) -> None:
    """First come, first served, in two loops at once; never more than ``max_queued``."""
    be = device.backend(max_queued=3)
    tensor = holding(be, ramp())
    most = [0]

    async def client() -> None:
        for _ in range(20):
            await be.ready()
            future = be.get(tensor)
            most.append(be.pending)
            await future

    async def clients() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(client)

    with short_slices():
        at_once(2, lambda i: anyio.run(clients, backend=backends[i]))
    assert max(most) <= 3
    be.close()
