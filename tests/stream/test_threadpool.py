"""Pools of worker threads: parameters, pause and resume, the end: TP-01 to TP-09."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from support import ramp, sum_on
from waiting import until

import aggml
from aggml import ThreadPool, ThreadPoolParams, ThreadPriority

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUDevice

TASKS = Path("/proc/self/task")
EXITING = 0x4  # PF_EXITING of Linux


def tasks() -> set[int]:
    """The threads of this process; those that earlier tests left may end at any time."""
    return {int(task) for task in os.listdir(TASKS)}


def affinity(task: int) -> set[int]:
    """The cores where a thread may run; none if it has ended."""
    try:
        return os.sched_getaffinity(task)
    except ProcessLookupError:
        return set()


def has_ended(task: int) -> bool:
    """Whether a thread has ended.

    Linux wakes a thread's joiner some time before it removes the thread from the list of tasks.
    """
    try:
        fields = (TASKS / str(task) / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(fields[6]) & EXITING)


@pytest.mark.feature("TP-01")
@pytest.mark.feature("TP-02")
@pytest.mark.feature("TP-03")
def test_defaults() -> None:
    params = ThreadPoolParams(4)
    assert params.n_threads == 4
    assert params.priority is ThreadPriority.NORMAL
    assert params.poll == 50
    assert params.strict_cpu is False
    assert params.paused is False
    assert not any(params.cpumask)
    assert (
        ThreadPoolParams().n_threads == len(os.sched_getaffinity(0))
        or (ThreadPoolParams().n_threads or 0) >= 1
    )


@pytest.mark.feature("TP-01")
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"n_threads": 0}, "n_threads=0"),
        ({"n_threads": 513}, "n_threads=513"),
        ({"poll": -1}, "poll=-1"),
        ({"poll": 101}, "poll=101"),
        ({"priority": 4}, "priority=4"),
        ({"priority": -2}, "priority=-2"),
        ({"cpumask": [True] * 513}, "513"),
    ],
    ids=str,
)
def test_values_outside_their_range(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(aggml.InvalidArgument, match=told):
        ThreadPoolParams(**wrong)
    with pytest.raises(aggml.InvalidArgument, match=told):
        ThreadPool(**wrong)


@pytest.mark.feature("TP-01")
def test_values_of_the_wrong_kind() -> None:
    for wrong in ({"n_threads": "2"}, {"poll": 1.5}, {"priority": "high"}, {"cpumask": 3}):
        values: Any = wrong
        with pytest.raises(aggml.InvalidHandle):
            ThreadPoolParams(**values)
    with pytest.raises(aggml.InvalidHandle):
        ThreadPool.from_params(2)  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidHandle):
        ThreadPoolParams(2).matches(2)  # type: ignore[arg-type]


@pytest.mark.feature("TP-04")
def test_paused_does_not_count_when_pools_are_compared() -> None:
    params = ThreadPoolParams(2)
    assert params.matches(ThreadPoolParams(2, paused=True))
    assert params.matches(ThreadPoolParams(2, cpumask=(False,) * 512))
    assert ThreadPoolParams(2, cpumask=(True, False)).matches(ThreadPoolParams(2, cpumask=(True,)))
    for other in (
        ThreadPoolParams(3),
        ThreadPoolParams(2, priority=ThreadPriority.LOW),
        ThreadPoolParams(2, poll=0),
        ThreadPoolParams(2, strict_cpu=True),
        ThreadPoolParams(2, cpumask=(True,)),
    ):
        assert not params.matches(other)
        assert not other.matches(params)


@pytest.mark.feature("TP-05")
@pytest.mark.feature("TP-07")
async def test_a_pool_from_parameters_computes(cpu_device: CPUDevice) -> None:
    params = ThreadPoolParams(3, poll=0, priority=ThreadPriority.LOW)
    pool = ThreadPool.from_params(params)
    assert pool.n_threads == 3
    assert pool.params == params
    async with cpu_device.backend(pool=pool, n_threads=2) as be:
        s = sum_on(be, 1 << 16)
        assert np.array_equal(await s.run(be, ramp(1 << 16), ramp(1 << 16)), 2 * ramp(1 << 16))
    pool.grow(4)
    assert pool.params.n_threads == pool.n_threads == 4
    pool.close()


async def test_more_threads_for_one_backend_are_not_the_others_default(
    cpu_device: CPUDevice,
) -> None:
    usual = cpu_device.backend().n_threads
    async with cpu_device.backend(n_threads=usual + 3) as wide, cpu_device.backend() as be:
        assert wide.n_threads == usual + 3
        assert be.n_threads == usual
        wide.n_threads = usual + 4
        assert be.n_threads == usual
        assert wide.pool is be.pool
        assert be.pool.n_threads >= usual + 4
    with ThreadPool(2) as pool, cpu_device.backend(pool=pool) as own:
        pool.grow(4)  # grows the pool itself, for all backends that use it
        assert own.n_threads == 4


@pytest.mark.feature("TP-05")
async def test_workers_run_where_the_mask_says() -> None:
    mine = sorted(os.sched_getaffinity(0))
    before = tasks()
    wanted = mine[-1]
    mask = [cpu == wanted for cpu in range(wanted + 1)]
    with ThreadPool(2, cpumask=mask) as pool:
        with aggml.Stream("masked", pool=pool).hold():
            pass
        with aggml.get_device("CPU").backend(pool=pool) as be:  # type: ignore[call-arg]
            s = sum_on(be, 1 << 18)
            await s.run(be, ramp(1 << 18), ramp(1 << 18))
            await asleep(pool)  # so both threads have begun; one may have computed all
        masks = [affinity(task) for task in tasks() - before]
        # the others may be threads that another part of this process has begun
        assert masks.count({wanted}) == 2
    assert sorted(os.sched_getaffinity(0)) == mine  # the caller's own mask is unchanged


@pytest.mark.feature("TP-06")
def test_closing_a_pool_joins_its_threads(cpu_device: CPUDevice) -> None:
    before = tasks()
    pool = ThreadPool(3)
    workers = tasks() - before
    assert len(workers) == 3
    be = cpu_device.backend(pool=pool)
    with pytest.raises(aggml.InvalidState, match="Stream CPU"):
        pool.close()
    be.close()
    assert be.synchronize().wait(60)
    pool.close()
    assert all(has_ended(task) for task in workers)
    pool.close()
    assert "closed" in repr(pool)
    with pytest.raises(aggml.InvalidState, match="closed"):
        cpu_device.backend(pool=pool)


@pytest.mark.feature("TP-06")
async def test_a_pool_does_the_work_of_a_stream_that_was_dropped_before_it_closes() -> None:
    """The pool owns queued work: its Future ends even if nobody holds the stream."""
    pool, gate = ThreadPool(2), aggml.Stream("gate")
    stream = aggml.Stream("dropped", pool=pool)
    with gate.hold():
        mark = gate.delay(0)
        stream.wait(mark)
        future = stream.delay(0)
        del stream
        gc.collect()
        for _ in range(3):
            with pytest.raises(aggml.InvalidState, match="2 operations of 'dropped'"):
                pool.close()
    with anyio.fail_after(60):
        await future
    pool.close()
    assert pool.n_threads == 2
    assert "closed" in repr(pool)


@pytest.mark.feature("TP-06")
async def test_a_stream_that_was_dropped_idle_holds_up_nothing() -> None:
    pool = ThreadPool(1)
    future = aggml.Stream("dropped", pool=pool).delay(0)
    with anyio.fail_after(60):
        await future
    pool.close()
    assert future.done()


async def asleep(pool: ThreadPool) -> None:
    """Wait until all workers sleep, which they do after their time of polling for work."""
    with anyio.fail_after(60):
        while pool.native.sleepers < pool.n_threads:
            await anyio.lowlevel.checkpoint()


@pytest.mark.feature("TP-08")
async def test_a_paused_pool_does_not_spin(cpu_device: CPUDevice) -> None:
    pool = ThreadPool(2, poll=100, paused=True)
    assert pool.paused
    assert pool.params.paused
    await asleep(pool)
    pool.pause()
    assert "paused" in repr(pool)
    pool.resume()
    assert not pool.paused
    pool.resume()
    pool.close()


@pytest.mark.feature("TP-09")
async def test_work_ends_a_pause(cpu_device: CPUDevice) -> None:
    """Submitting work resumes a paused pool, so that nobody waits for ever."""
    pool = ThreadPool(2)
    async with cpu_device.backend(pool=pool) as be:
        s = sum_on(be, 1 << 16)
        x = ramp(1 << 16)
        for _ in range(10):
            pool.pause()
            await asleep(pool)
            with anyio.fail_after(60):
                assert np.array_equal(await s.run(be, x, x), 2 * x)
            assert not pool.paused
    pool.close()


@pytest.mark.feature("TP-09")
async def test_a_pause_holds_up_nothing_that_is_queued(cpu_device: CPUDevice) -> None:
    pool = ThreadPool(1)
    async with cpu_device.backend(pool=pool) as be:
        s = sum_on(be, 1 << 16)
        x = ramp(1 << 16)
        with be.stream.hold():
            runs = [s.run(be, x, x) for _ in range(5)]
            pool.pause()
        with anyio.fail_after(60):
            for run in runs:
                assert np.array_equal(await run, 2 * x)
    pool.close()


def test_misuse_of_a_pool() -> None:
    wrong: Any = "2"
    with ThreadPool(1) as pool:
        with pytest.raises(aggml.InvalidHandle, match="'2'"):
            pool.grow(wrong)
        for n in (0, 513):
            with pytest.raises(aggml.InvalidArgument, match=str(n)):
                pool.grow(n)
        assert pool.n_threads == 1
        with pytest.raises(aggml.InvalidHandle, match="'2'"):
            aggml.Stream("mine", pool=wrong)
    with pytest.raises(aggml.InvalidState, match="closed"):
        pool.grow(2)
    with pytest.raises(aggml.InvalidState, match="closed"):
        aggml.Stream("mine", pool=pool)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads have no affinity here")
async def test_workers_may_run_wherever_the_process_may(cpu_device: CPUDevice) -> None:
    """A worker that is woken is kept off the waker's core while it wakes, and only then."""
    mine = os.sched_getaffinity(0)
    before = tasks()
    x = aggml.new_tensor("f32", ne=(1024, 64))
    graph = aggml.Graph(aggml.ops.gelu(x))
    with ThreadPool(3, poll=0) as pool:  # with poll=0 they sleep at once
        workers = tasks() - before
        assert len(workers) >= 3
        async with cpu_device.backend(pool=pool) as be:
            be.alloc_graph(graph)
            be.memset(x, 0)
            for _ in range(100):
                await be.graph_compute(graph)
        await until(lambda: all(affinity(t) in (mine, set()) for t in workers))
