"""Streams of a CUDA device: who blocks where, pinned and pageable memory, graphs, two devices.

Not here: what every device promises (test_conformance.py), failures (test_faults.py).
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import aggml
from aggml import Graph, ops
from aggml.devices.cuda import CUDAFamily, driver
from aggml.errors import Aborted, AllocFailed
from aggml.native import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from devices.cuda.fake_driver import Fake, SimpleKernels

    from aggml.devices.cuda import CUDADevice

N = 16


def ramp(n: int = N, start: float = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(n, dtype=np.float32) + np.float32(start)


def vector(name: str = "", n: int = N) -> aggml.Tensor:
    return aggml.new_tensor("f32", ne=(n,), name=name)


def chain(length: int) -> tuple[aggml.Tensor, aggml.Tensor, Graph]:
    """y = x + b + b ..., and the two leaves."""
    x, b = vector("x"), vector("b")
    y = x
    for i in range(length):
        y = ops.add(y, b).set_name(f"y{i}")
    return x, b, Graph(y)


async def turns(n: int = 20) -> None:
    """Let the loop go round: it does so however long something else stands still."""
    for _ in range(n):
        await anyio.lowlevel.checkpoint()


#: What may hold its caller up: none of it is for the thread of a loop.
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
                while fake.counter("full queue") == 0:  # the issuing thread is stuck in the driver
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


#: What may map or unmap memory, or waits for it.
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
            assert fake.calls("cuMemAllocFromPoolAsync") == 3  # leaves and end, scratch twice
            assert fake.marked_calls("cuMemFreeAsync") == 0
            assert {name: n for name in MAPPING if (n := fake.marked_calls(name))} == {}
            with pytest.raises(AllocFailed, match="OUT_OF_MEMORY"):
                await be.reserve(1 << 40)
            _, _, other = chain(3)
            fake.fail("cuMemAllocFromPoolAsync", 2)
            with pytest.raises(AllocFailed, match="OUT_OF_MEMORY"):
                await be.prepare(other)
            assert other.memory is None
            await be.prepare(other)  # nothing is left of the failure
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
    be.alloc_graph(graph)  # with nothing to place, and scratch that is the queue's
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


#: What an await may come down to, and which call of the driver takes long meanwhile.
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
                        await anyio.lowlevel.checkpoint()  # until some thread is there
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
        await second.prepare(other)  # of the same module
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


async def test_pageable_memory_never_reaches_the_driver(device: CUDADevice, fake: Fake) -> None:
    big = aggml.new_tensor("f32", ne=(1000, 3000), name="big")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 1000)).astype(np.float32)
    async with device.backend() as be:
        be.alloc([big])
        fake.reset_counts()
        with fake.marked(), fake.held():
            sent, got = be.set(big, x), be.get(big)
            await turns()
            assert not sent.done()
        assert (await got == x).all()
        assert fake.counter("pageable") == 0
        assert fake.calls("cuMemcpyHtoDAsync") == -(-x.nbytes // (1 << 20))  # pieces


@pytest.mark.parametrize("case", ["rows", "columns", "reversed", "broadcast", "offset view"])
async def test_arrays_of_any_strides(device: CUDADevice, case: str) -> None:
    rng = np.random.default_rng(1)
    t = aggml.new_tensor("f32", ne=(700, 600), name="t")
    x = rng.standard_normal((600, 700)).astype(np.float32)
    async with device.backend() as be:
        be.alloc([t])
        if case == "rows":
            wide = np.zeros((600, 900), np.float32)
            wide[:, :700] = x
            await be.set(t, wide[:, :700])
        elif case == "columns":
            await be.set(t, np.asfortranarray(x))
        elif case == "reversed":
            await be.set(t, x[::-1, ::-1])
            x = x[::-1, ::-1].copy()
        elif case == "broadcast":
            x = np.broadcast_to(x[0], x.shape)
            await be.set(t, x)
        else:
            await be.set(t, x)
            view = ops.view_2d(t, 100, 50, t.nb[1] * 3, 400)
            turned = ops.transpose(view)
            assert (await be.get(view) == x[:150:3, 100:200]).all()
            assert (await be.get(turned) == x[:150:3, 100:200].T).all()
            await be.set(turned, np.ones((100, 50), np.float32))
            x[:150:3, 100:200] = 1
        assert (await be.get(t) == x).all()
        out = np.zeros((700, 600), np.float32).T[:, ::-1]
        assert (await be.get(t, out) == x).all()


@pytest.mark.parametrize(("source", "target"), [(0, 1000), (1000, 0)])
async def test_a_copy_onto_a_neighbour_that_it_overlaps(
    device: CUDADevice, source: int, target: int
) -> None:
    n = 700_000  # more than a piece of the ring
    t = vector("t", n + 1000)
    x = ramp(n + 1000)
    async with device.backend() as be:
        be.alloc([t])
        await be.set(t, x)
        await be.copy(ops.view_1d(t, n, 4 * source), ops.view_1d(t, n, 4 * target))
        expected = x.copy()
        expected[target : target + n] = x[source : source + n]
        assert (await be.get(t) == expected).all()


async def test_pinned_memory_is_copied_as_it_lies(device: CUDADevice) -> None:
    host = device.host_buffer_type
    assert host is not None
    assert host.name == "CUDA_Host"
    assert host.is_host
    pinned, t = vector("pinned"), vector("t")
    buffer = host.alloc_tensors([pinned])
    cpu = aggml.get_device("CPU").backend()
    async with device.backend() as be, cpu:
        be.alloc([t])
        await cpu.set(pinned, ramp())
        await cpu.copy(pinned, t, to=be)
        assert (await be.get(t) == ramp()).all()
        await be.memset(t, 0)
        await be.copy(t, pinned, to=cpu)
        assert (await cpu.get(pinned) == 0).all()
    buffer.close()


async def test_registered_memory_needs_no_staging(device: CUDADevice, fake: Fake) -> None:
    x = np.arange(1 << 20, dtype=np.float32)
    t = vector("t", 1 << 20)
    async with device.backend() as be:
        be.alloc([t])
        with device.register_host(x):
            fake.reset_counts()
            await be.set(t, x)
            assert fake.calls("cuMemcpyHtoDAsync") == 1
        assert (await be.get(t) == x).all()


async def test_a_plan_becomes_a_graph_and_is_updated_in_place(
    device: CUDADevice, fake: Fake
) -> None:
    x, b, graph = chain(3)
    y = graph.ends[0]
    async with device.backend() as be:
        be.alloc_graph(graph)
        be.set(b, ramp())

        async def run(times: int) -> None:
            for i in range(times):
                assert (
                    await be.run(graph, {x: ramp(start=i)}, y) == ramp(start=i) + 3 * ramp()
                ).all()

        await run(1)
        assert fake.counter("graph launches") == 0  # one run is not worth it
        await run(5)
        assert fake.counter("graph launches") == 5
        assert fake.calls("cuGraphInstantiateWithFlags") == 1
        await be.reserve(16 << 20)  # scratch moves
        await run(2)
        assert fake.counter("graph updates") == 1
        assert fake.calls("cuGraphInstantiateWithFlags") == 1


async def test_an_abort_stops_what_is_not_launched(device: CUDADevice, fake: Fake) -> None:
    x, b, graph = chain(2)
    y = graph.ends[0]
    async with device.backend() as be:
        be.alloc_graph(graph)
        be.set(b, ramp())
        await be.run(graph, {x: ramp()}, y)
        with fake.held():
            futures = [be.graph_compute(graph) for _ in range(5)]
            futures[4].abort()
        for future in futures[:4]:
            await future
        with pytest.raises(Aborted):
            await futures[4]
        assert (await be.run(graph, {x: ramp()}, y) == 3 * ramp()).all()


async def test_streams_of_a_device_wait_for_each_other_and_for_the_cpu(
    device: CUDADevice, fake: Fake
) -> None:
    cpu = aggml.get_device("CPU").backend()
    async with device.backend() as be, device.backend() as second, cpu:
        t, h = vector("t"), vector("h")
        be.alloc([t])
        cpu.alloc([h])
        for i in range(20):
            with fake.held():
                be.set(t, ramp(start=i), copy=True)
                event = device.event()
                be.record(event)
                second.wait(event)
                got = second.get(t)
                cpu.wait(event)
                second.copy(t, h, to=cpu)
                here = cpu.get(h)
                await turns(2)
                assert not got.done()
                assert not here.done()
            assert (await got == ramp(start=i)).all()
            assert (await here == ramp(start=i)).all()


async def test_a_soak_leaves_nothing_behind(device: CUDADevice, fake: Fake) -> None:
    x, b, graph = chain(3)
    y = graph.ends[0]
    async with device.backend() as be:
        be.alloc_graph(graph)
        be.set(b, ramp())
        levels = []
        for _ in range(4):
            for _ in range(25):
                futures = [be.run(graph, {x: ramp(start=i)}, y) for i in range(20)]
                for i, future in enumerate(futures):
                    assert (await future == ramp(start=i) + 3 * ramp()).all()
            be.stream.native.release_finished()
            gc.collect()
            assert device.native.trim() is None  # what may take long to free is freed aside
            levels.append((fake.live_blocks, fake.counter("graph execs"), be.stream.native.kept))
        assert len(set(levels[1:])) == 1  # the first still sheds what tests before left
        assert levels[1] <= levels[0]
        assert fake.counter("events") <= 257 * 8  # pooled, per queue
    assert fake.counter("wild") == 0


async def test_buffers_are_freed_when_nothing_refers_to_them(
    device: CUDADevice, fake: Fake
) -> None:
    async with device.backend() as be:
        await be.set(first := _placed(be), ramp())
        before = fake.live_blocks
        for _ in range(10):
            await be.set(_placed(be), ramp())
        be.stream.native.release_finished()
        gc.collect()
        await be.get(first)
        t = _placed(be)  # which synchronises the stream that frees
        assert fake.live_blocks <= before + 1
        del t


def _placed(be: aggml.Backend) -> aggml.Tensor:
    t = vector("t")
    be.alloc([t])
    return t


TWO_DEVICES = """
import sys; sys.path.insert(0, {tests!r})
import anyio, numpy as np
from devices.cuda.fake_driver import Fake, SimpleKernels
fake = Fake()
import aggml
from aggml.devices.cuda import CUDAFamily

async def main():
    family = CUDAFamily(SimpleKernels())
    aggml.register_family(family)
    assert [d.name for d in family.devices] == ["CUDA0", "CUDA1"]
    assert aggml.best_device() is family.devices[0]
    one, two = (d.backend() for d in family.devices)
    x = np.arange(4096, dtype=np.float32).reshape(64, 64)
    a, b = (aggml.new_tensor("f32", ne=(64, 64)) for _ in "ab")
    one.alloc([a]); two.alloc([b])
    with fake.held():
        one.set(a, x)
        copied = one.copy(a, b, to=two)
        got = two.get(b)
    assert (await got == x).all()
    assert fake.counter("peer copies") == 1
    assert fake.counter("direct peer copies") == 1  # both pools are open
    assert fake.counter("peer access") == 2
    c, d = (aggml.ops.view_2d(t, 8, 64, 256, 32) for t in (a, b))
    await two.memset(b, 0)
    await one.copy(c, d, to=two)  # rows that lie apart
    assert ((await two.get(b))[:, 8:16] == x[:, 8:16]).all()
    fake.break_device(700, device=0)
    for future in (one.get(a),):
        try:
            await future
        except aggml.errors.DeviceError as error:
            assert "ILLEGAL" in str(error)
        else:
            raise AssertionError
    await two.set(b, x)
    assert (await two.get(b) == x).all()  # the other device is well
    await one.aclose(); await two.aclose()
anyio.run(main)
"""


def test_two_devices_copy_directly_and_fail_apart(fake: Fake) -> None:
    tests = str(Path(__file__).resolve().parents[3])
    _child(TWO_DEVICES.format(tests=tests), FAKE_CUDA_DEVICES="2")


EXIT_WHILE_BUSY = """
import sys; sys.path.insert(0, {tests!r})
import numpy as np
from devices.cuda.fake_driver import Fake, SimpleKernels
fake = Fake()
import aggml
from aggml.devices.cuda import CUDADevice, driver
be = CUDADevice(driver.facts(0), SimpleKernels()).backend()
t = aggml.new_tensor("f32", ne=(1000, 1000))
be.alloc([t])
for _ in range(20):
    be.set(t, np.ones((1000, 1000), np.float32), copy=True)
    f = be.get(t)
"""


def test_the_process_ends_while_a_device_is_busy(fake: Fake) -> None:
    tests = str(Path(__file__).resolve().parents[3])
    _child(EXIT_WHILE_BUSY.format(tests=tests))


def _child(script: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def in_child(check: Callable[[], None]) -> None:
    """Run ``check`` in a forked child; what it raises, and a hang, fail this test."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(60)
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"the child ended with {status}"


def test_after_fork_the_device_is_refused(device: CUDADevice, fake: Fake) -> None:
    be = device.backend()
    be.synchronize().wait(60)  # there is a context

    def check() -> None:
        with pytest.raises(aggml.InvalidState):
            device.backend()

    in_child(check)
    be.close()


@pytest.mark.parametrize("state", ["idle", "the device is busy", "the stream is held"])
def test_each_guard_holds_in_the_child_of_a_fork(
    device: CUDADevice, fake: Fake, state: str
) -> None:
    """Nothing of the parent's device calls the driver, takes a lock or waits there.

    The fork comes while a thread of the parent may hold any of those. What is dropped in the child
    is left to the parent, which goes on.
    """
    be = device.backend()
    x, b, graph = chain(3)
    y = graph.nodes[-1]
    placed = be.alloc_graph(graph)
    be.set(b, ramp()).wait(60)
    be.run(graph, {x: ramp()}, y).wait(60)
    spare = be.alloc([vector("spare")])
    kept: list[Any] = [spare]
    native = device.native

    def check() -> None:
        # The locks of the fake driver may be held by threads of the parent: it is not asked.
        abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
        assert abort is not None
        _native.cuda_set_entries(dict.fromkeys(_native.cuda_entries(), abort))
        for call in (
            lambda: be.run(graph, {x: ramp()}, y),
            lambda: be.set(x, ramp()),
            pending.wait,
            pending.result,
        ):
            with pytest.raises(aggml.InvalidState):
                call()
        for refused in (
            native.alloc(4096)[1],
            native.alloc_host(4096)[1],
            native.memory()[2],
            native.trim(),
            native.register_host(0, 4096, False),
        ):
            assert refused is not None
            assert "after fork" in refused.text
        native.free(1 << 20)  # the lists of the parent are not touched
        native.free_host(1 << 20)
        native.unregister_host(1 << 20)
        assert native.blas_problem is None
        be.stream.abort()
        be.stream.native.release()
        kept.clear()
        be.close()
        gc.collect()
        _native.cuda_stop(0.1)  # as at exit

    with ExitStack() as held:
        if state == "the device is busy":
            held.enter_context(fake.held())
        elif state == "the stream is held":
            held.enter_context(be.stream.hold())
        pending = be.run(graph, {x: ramp(start=1)}, y)
        in_child(check)
    assert pending.wait(60)
    assert np.array_equal(be.run(graph, {x: ramp(start=2)}, y).get(60), ramp(start=2) + 3 * ramp())
    placed.close()
    be.close()


def test_what_the_family_tells(simple: SimpleKernels) -> None:
    family = CUDAFamily(simple)
    (found,) = family.devices
    assert found.name == "CUDA0"
    props = found.props
    assert props.type is aggml.DeviceType.GPU
    assert props.caps == aggml.DeviceCaps(host_buffer=True, buffer_from_host=False, mmap=True)
    assert 0 < props.memory_free <= props.memory_total == 1 << 30
    assert props.device_id == "0000:0a:00.0"
    assert family.features()["ARCHS"] == "900"
    assert found.buffer_type.alignment == 128
    q = aggml.new_tensor("q4_0", ne=(640, 2), name="q")
    assert found.buffer_type.alloc_size(q) == q.nbytes + q.dtype.row_size(384)


def test_missing_things_are_told(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.fail("cuInit", 100)
    with pytest.raises(driver.Missing, match="finds no CUDA device"):
        driver.probe()
    fake.fail("cuInit", 802)
    with pytest.raises(driver.Missing, match="does not start"):
        driver.probe()
    monkeypatch.setattr(driver, "API", 14000)
    with pytest.raises(driver.Missing, match=r"offers CUDA 13\.0, 14\.0 is needed"):
        driver.probe()
