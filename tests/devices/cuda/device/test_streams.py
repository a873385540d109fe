"""Streams of a CUDA device: graphs, aborts, waits, freeing, reports of the family.

Not here: promises of every device (test_conformance.py), failures (test_faults.py), calls that
take long (test_off_the_loop.py), memory of the host (test_host_memory.py), processes
(test_processes.py).
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from devices.cuda.small_graphs import chain, turns, vector
from support import ramp

import aggml
from aggml.devices.cuda import CUDAFamily, driver
from aggml.errors import Aborted

if TYPE_CHECKING:
    from devices.cuda.fake_driver import Fake, SimpleKernels

    from aggml.devices.cuda import CUDADevice


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
        assert fake.counter("graph launches") == 0  # a graph is not made for a single run
        await run(5)
        assert fake.counter("graph launches") == 5
        assert fake.calls("cuGraphInstantiateWithFlags") == 1
        await be.reserve(16 << 20)  # scratch moves, so that the graph has to be updated
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
            # waits until a thread has freed the memory whose release may take long
            assert device.native.trim() is None
            levels.append((fake.live_blocks, fake.counter("graph execs"), be.stream.native.kept))
        # at the first round memory of earlier tests may still be freed
        assert len(set(levels[1:])) == 1
        assert levels[1] <= levels[0]
        assert fake.counter("events") <= 257 * 8  # events are pooled in each queue
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
        t = _placed(be)  # allocating synchronises the stream on which memory is freed
        assert fake.live_blocks <= before + 1
        del t


def _placed(be: aggml.Backend) -> aggml.Tensor:
    t = vector("t")
    be.alloc([t])
    return t


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
