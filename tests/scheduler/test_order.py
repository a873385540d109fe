"""A submission runs after all work that users queued on its backends before, from any thread.

Not here: the order within a submission (test_split.py), between submissions (test_pipelines.py).
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest
from support import holding, ramp

import aggml
from aggml import Graph, Scheduler, ops
from aggml.devices.sim import SimDevice
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

NEW = ramp(start=100)


class Three:
    """Two accelerators and a CPU. `elsewhere` uses the second, `down` reads a leaf on the first."""

    def __init__(self, **options: Any) -> None:
        self.one = SimDevice("one", unsupported=["neg"]).backend()
        self.two = SimDevice("two").backend()
        self.cpu = aggml.get_device("CPU").backend(n_threads=1)
        self.w = holding(self.one, ramp(), "w")
        self.v = holding(self.two, ramp(), "v")
        self.elsewhere = Graph(ops.sqr(self.v))
        self.minus = ops.neg(self.w)
        self.down = Graph(self.minus)
        self.sched = Scheduler([self.one, self.two, self.cpu], **options)
        self.sched.set_tensor_backend(self.elsewhere.ends[0], self.two)
        self.sched.set_tensor_backend(self.minus, self.cpu)

    async def apart(self) -> None:
        """Submit both graphs while one is held, so that the scheduler gives each its own memory."""
        with self.two.stream.hold():
            first = [await self.sched.submit(g, {}, g.ends[0]) for g in (self.elsewhere, self.down)]
            more = [await self.sched.submit(g, {}, g.ends[0]) for g in (self.elsewhere, self.down)]
        for future in first + more:
            await future


@pytest.fixture(params=[{}, {"parallel": True}, {"parallel": 2, "max_in_flight": None}], ids=str)
def three(request: pytest.FixtureRequest) -> Iterator[Three]:
    found = Three(**request.param)
    yield found
    for be in (found.one, found.two, found.cpu):
        while be.stream.native.release():
            pass
        be.close()


async def test_work_of_the_user_before_a_submission_that_is_elsewhere(three: Three) -> None:
    await three.apart()
    with aggml.check_races(), three.one.stream.hold():
        three.one.set(three.w, NEW)
        first = await three.sched.submit(three.elsewhere, {}, three.elsewhere.ends[0])
        second = await three.sched.submit(three.down, {}, three.minus)
    assert np.array_equal(await first, ramp() ** 2)
    assert np.array_equal(await second, -NEW)


@pytest.mark.parametrize("parallel", [False, True])
async def test_work_of_the_user_afterwards_by_another_backend_that_reaches_the_memory(
    *, parallel: bool
) -> None:
    """The accelerator reads host memory, which the user writes through the CPU backend."""
    one = SimDevice("one", reads_host=True).backend()
    cpu = aggml.get_device("CPU").backend(n_threads=1)
    w = holding(cpu, ramp(), "w")
    y = ops.sqr(w)
    graph = Graph(y)
    sched = Scheduler([one, cpu], parallel=parallel)
    sched.set_tensor_backend(y, one)
    with aggml.check_races():
        for _ in range(3):
            await cpu.set(w, ramp())
            with one.stream.hold():
                future = await sched.submit(graph, {}, y)
                written = cpu.set(w, NEW)
            assert np.array_equal(await future, ramp() ** 2)
            await written


async def test_the_same_of_what_was_asked_for_before(three: Three) -> None:
    """As above, for submissions that are replayed: recordings take another way through the code."""
    await three.apart()
    for k in range(6):
        with three.one.stream.hold():
            three.one.set(three.w, NEW + np.float32(k))
            first = await three.sched.submit(three.elsewhere, {}, three.elsewhere.ends[0])
            second = await three.sched.submit(three.down, {}, three.minus)
            assert not second.done()
        assert np.array_equal(await first, ramp() ** 2)
        assert np.array_equal(await second, -NEW - np.float32(k))


class AtLine:
    """Calls a function in another thread just before the k-th line of these files is run."""

    FILES = ("observe.py", "batch.py", "unit.py", "prepared.py", "submits.py", "submitter.py")

    def __init__(self, k: int, function: Callable[[], object]) -> None:
        self.left, self.function = k, function
        self.threads = ThreadPoolExecutor(1)

    def __call__(self, frame: FrameType, event: str, _arg: object) -> AtLine | None:
        if not frame.f_code.co_filename.endswith(self.FILES):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.threads.submit(self.function).result(60)
        return self

    def __enter__(self) -> Self:
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)
        self.threads.shutdown()


@pytest.mark.long(cases=1)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("same", [False, True])
async def test_what_another_thread_queues_at_any_line_is_seen(*, same: bool, again: bool) -> None:
    """The submission during which it is queued may come before it; the next one comes after it.

    Args:
        same: that submission reads the leaf, too; else it uses other streams.
        again: the same graph and outputs were submitted before, so that it is a replay.
    """
    three = Three(parallel=True)
    await three.apart()
    graph = three.down if same else three.elsewhere
    k, queued = 0, True
    while queued:
        k, queued = k + 1, False
        assert three.one.set(three.w, ramp()).wait(60)
        await three.sched.synchronize()

        def queue() -> None:
            nonlocal queued
            queued = True
            three.one.set(three.w, NEW)

        with three.one.stream.hold():
            with AtLine(k, queue):
                await three.sched.submit(graph, {}, [graph.ends[0]] * (1 if again else 1 + k % 9))
            second = await three.sched.submit(three.down, {}, three.minus)
        assert np.array_equal(await second, -(NEW if queued else ramp())), f"line {k}"
    assert k > 20


def test_submitting_in_line_is_refused_if_somebody_was_faster() -> None:
    three = Three()
    home = three.one.stream.native
    joined = aggml.Stream("joined")
    line = _native.Lineup(joined.native, [home], 1)
    use = _native.Use(-1, [joined.native], [], [])
    waits, ahead = line.before(use, True)
    three.one.memset(three.w, 0)
    groups = [(joined.native, [_native.mark("submit", ())])]
    assert _native.submit_in_line(groups, line, use, ahead) is None
    assert joined.native.submitted == 0
    again, ahead = line.before(use, True)
    assert len(again) == 1
    assert again[0][2] == waits[0][2] + 1
    assert _native.submit_in_line(groups, line, use, ahead) is not None
    assert line.before(use, True)[0] == []
