"""The event loop goes on during slow driver calls: launches, contexts, memory, modules.

Not here: the results of the work (test_streams.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from devices.cuda.small_graphs import chain, turns, vector
from support import ramp

import aggml
from aggml.errors import AllocFailed

if TYPE_CHECKING:
    from devices.cuda.fake_driver import Fake

    from aggml.devices.cuda import CUDADevice


#: Calls that may block their caller: the thread of a loop must make none of them.
BLOCKING = (
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuCtxSynchronize",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuLibraryLoadData",
    "cuLaunchKernel",
    "cuGraphLaunch",
    "cuGraphInstantiateWithFlags",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync",
    "cuMemcpy2DAsync",
    "cuMemsetD8Async",
    "cuEventRecord",
    "cuStreamCreate",
)


async def test_a_full_launch_queue_holds_no_loop(device: CUDADevice, fake: Fake) -> None:
    x, b, graph = chain(1500)
    y = graph.ends[0]
    async with device.backend() as be:
        await be.prepare(graph)
        be.set(b, ramp())
        await be.synchronize()
        fake.reset_counts()
        with fake.marked():
            with fake.held():
                futures = [be.run(graph, {x: ramp(start=i)}, y) for i in range(3)]
                while fake.counter("full queue") == 0:  # the issuing thread blocks in the driver
                    await anyio.lowlevel.checkpoint()
                await turns()
                assert not any(future.done() for future in futures)
            for i, future in enumerate(futures):
                assert (await future == ramp(start=i) + 1500 * ramp()).all()
            assert {
                name: fake.marked_calls(name) for name in BLOCKING if fake.marked_calls(name)
            } == {}
        assert fake.counter("full queue of the marked thread") == 0


async def test_the_context_is_made_off_the_loop(device: CUDADevice, fake: Fake) -> None:
    x, b, graph = chain(2)
    with fake.marked():
        async with device.backend() as be, device.backend():
            assert not device.native.ready
            await be.prepare(graph)
            assert device.native.ready
            assert fake.marked_calls("cuDevicePrimaryCtxRetain") == 0
            assert fake.marked_calls("cuMemPoolCreate") == 0
            result = await be.run(graph, {x: ramp(), b: ramp()}, graph.ends[0])
    assert (result == 3 * ramp()).all()


#: Calls that may map or unmap memory, or wait for that.
MAPPING = (
    "cuMemAllocFromPoolAsync",
    "cuMemAllocAsync",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostAlloc",
    "cuMemPoolTrimTo",
    "cuStreamSynchronize",
)


async def test_memory_is_taken_off_the_loop(device: CUDADevice, fake: Fake) -> None:
    x, b, graph = chain(3)
    y = graph.ends[0]
    with fake.marked():
        async with device.backend() as be:
            await be.prepare(graph)
            await be.reserve(16 << 20)
            result = await be.run(graph, {x: ramp(), b: ramp()}, y)
            # one for leaves and result, two for scratch
            assert fake.calls("cuMemAllocFromPoolAsync") == 3
            assert fake.marked_calls("cuMemFreeAsync") == 0
            assert {name: n for name in MAPPING if (n := fake.marked_calls(name))} == {}
            with pytest.raises(AllocFailed, match="OUT_OF_MEMORY"):
                await be.reserve(1 << 40)
            _, _, other = chain(3)
            fake.fail("cuMemAllocFromPoolAsync", 2)
            with pytest.raises(AllocFailed, match="OUT_OF_MEMORY"):
                await be.prepare(other)
            assert other.memory is None
            await be.prepare(other)  # the failure left nothing behind
            await be.synchronize()
    assert (result == 4 * ramp()).all()


async def _reserve(device: CUDADevice, be: aggml.Backend) -> None:
    await be.reserve(16 << 20)


async def _alloc(device: CUDADevice, be: aggml.Backend) -> None:
    await be.alloc_async([vector()])


async def _pinned(device: CUDADevice, be: aggml.Backend) -> None:
    assert device.host_buffer_type is not None
    await device.host_buffer_type.provide(1 << 20)


async def _prepare(device: CUDADevice, be: aggml.Backend) -> None:
    _, _, graph = chain(3)
    await be.prepare(graph)


async def _compute(device: CUDADevice, be: aggml.Backend) -> None:
    x, b, graph = chain(3)
    for tensor in (x, b, graph.ends[0]):
        await be.alloc_async([tensor])
    be.alloc_graph(graph)  # all tensors are placed already; scratch belongs to the queue
    assert (await be.run(graph, {x: ramp(), b: ramp()}, graph.ends[0]) == 4 * ramp()).all()


async def _sched_prepare(device: CUDADevice, be: aggml.Backend) -> None:
    _, _, graph = chain(3)
    await aggml.Scheduler([be, _cpu(be)], parallel=True).prepare(graph)


async def _sched_run(device: CUDADevice, be: aggml.Backend) -> None:
    x, b, graph = chain(3)
    sched = aggml.Scheduler([be, _cpu(be)], parallel=True)
    futures = [await sched.submit(graph, {x: ramp(), b: ramp()}, graph.ends[0]) for _ in range(3)]
    for future in futures:
        assert (await future == 4 * ramp()).all()


async def _sched_evaluate(device: CUDADevice, be: aggml.Backend) -> None:
    x, b, graph = chain(3)
    sched = aggml.Scheduler([be, _cpu(be)])
    seen = [value async for _, value in sched.evaluate(graph, {x: ramp(), b: ramp()})]
    assert (seen[-1] == 4 * ramp()).all()


def _cpu(be: aggml.Backend) -> aggml.Backend:
    return aggml.get_device("CPU").backend(n_threads=1)


#: Operations that are awaited, each with the driver call that takes long meanwhile.
SLOW = [
    (_reserve, "cuMemAllocFromPoolAsync"),
    (_alloc, "cuMemAllocFromPoolAsync"),
    (_pinned, "cuMemHostAlloc"),
    (_prepare, "cuMemAllocFromPoolAsync"),
    (_prepare, "cuDevicePrimaryCtxRetain"),
    (_compute, "cuMemAllocFromPoolAsync"),
    (_compute, "cuLibraryLoadData"),
    (_compute, "cuMemHostAlloc"),
    (_sched_prepare, "cuMemAllocFromPoolAsync"),
    (_sched_run, "cuMemAllocFromPoolAsync"),
    (_sched_run, "cuLibraryLoadData"),
    (_sched_run, "cuStreamCreate"),
    (_sched_evaluate, "cuMemAllocFromPoolAsync"),
]


@pytest.mark.parametrize(("job", "entry"), SLOW, ids=lambda x: getattr(x, "__name__", x))
async def test_a_slow_driver_holds_no_loop(
    device: CUDADevice, fake: Fake, job: Any, entry: str
) -> None:
    done = anyio.Event()

    async def work(be: aggml.Backend) -> None:
        await job(device, be)
        done.set()

    async with device.backend() as be:
        with fake.marked():
            async with anyio.create_task_group() as tasks:
                with fake.slow(entry):
                    tasks.start_soon(work, be)
                    while not fake.inside(entry) and not done.is_set():
                        await anyio.lowlevel.checkpoint()  # until a thread is in the call
                    await turns()
                    assert not done.is_set()
                await done.wait()
            calls = {name for name in (*BLOCKING, *MAPPING, entry) if fake.marked_calls(name)}
        assert calls == set()


async def test_a_module_that_is_loaded_holds_no_other_run_up_at_the_call(
    device: CUDADevice, fake: Fake
) -> None:
    x, b, graph = chain(2)
    async with device.backend() as be, device.backend() as second:
        await be.prepare(graph)
        u, v, other = chain(1)
        await second.prepare(other)  # uses the same module
        fake.reset_counts()
        with fake.marked():
            with fake.slow("cuLibraryLoadData"):
                first = be.run(graph, {x: ramp(), b: ramp()}, graph.ends[0])
                while not fake.inside("cuLibraryLoadData"):
                    await anyio.lowlevel.checkpoint()
                later = second.run(other, {u: ramp(), v: ramp()}, other.ends[0])
                assert not first.done()
            assert (await first == 3 * ramp()).all()
            assert (await later == 2 * ramp()).all()


async def test_two_tasks_may_prepare_one_graph(device: CUDADevice, fake: Fake) -> None:
    x, b, graph = chain(3)
    async with device.backend() as be:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(be.prepare, graph)
        result = await be.run(graph, {x: ramp(), b: ramp()}, graph.ends[0])
    assert (result == 4 * ramp()).all()
