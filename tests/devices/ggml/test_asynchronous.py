"""Libraries that work asynchronously: work issued ahead, waits on the device, memory.

On the fake backend, whose operations are delayed, and over RPC and Vulkan, whose libraries have
events. Not here: the tests for every device (test_conformance.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from devices.ggml import builds, fakes
from waiting import until

import aggml
from aggml import Graph, ops
from aggml.devices.ggml.backend import GgmlBackend
from aggml.devices.ggml.memory import result_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aggml.devices.ggml import GgmlDevice

N = 256


@pytest.fixture(params=["fake", "rpc", "vulkan"])
def device(request: pytest.FixtureRequest) -> Iterator[GgmlDevice]:
    """A device whose library works asynchronously."""
    if request.param == "rpc":
        with builds.server() as (_, devices):
            yield devices[0]
    elif request.param == "vulkan":
        yield builds.device("Vulkan0")
    else:
        fakes.delay(2000)
        yield fakes.device()
        fakes.delay(100)


def _doubled(be: aggml.Backend, name: str = "") -> tuple[aggml.Tensor, aggml.Tensor, Graph]:
    x = aggml.new_tensor("f32", ne=(N,))
    y = ops.scale(x, 2.0).set_name(name)
    graph = Graph(y)
    be.alloc([x])
    be.alloc_graph(graph)
    return x, y, graph


def _ramp(start: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return start + np.arange(N, dtype=np.float32)


async def test_rounds_without_waiting_in_between(device: GgmlDevice) -> None:
    assert device.native.facts["ahead"]
    async with device.backend() as be:
        x, y, graph = _doubled(be)
        got = []
        for k in range(40):
            be.set(x, _ramp(k), copy=True)
            be.graph_compute(graph)
            got.append(be.get(y))
        for k, future in enumerate(got):
            assert np.array_equal(await future, 2 * _ramp(k))


async def test_the_device_is_given_work_ahead() -> None:
    """In a stream without this permission each operation is over before the next one begins."""
    device, longest = fakes.device(), []
    fakes.delay(2000)
    for ahead in (True, False):
        be = GgmlBackend(device, result_of(device.native.stream("test", 1, ahead)), None)
        x, y, graph = _doubled(be)
        await be.set(x, _ramp(0))
        fakes.longest_queue()
        with be.stream.hold():
            be.set(x, _ramp(1))  # nothing is queued before it, so it is issued at once
            be.graph_compute(graph)
            be.graph_compute(graph)
            got = be.get(y)
        assert np.array_equal(await got, 2 * _ramp(1))
        longest.append(fakes.longest_queue())
        await be.aclose()
    fakes.delay(100)
    assert longest[0] >= 3
    assert longest[1] == 1


async def test_two_streams_pass_a_tensor_to_and_fro(device: GgmlDevice) -> None:
    async with device.backend() as one, device.backend() as two:
        x, y = aggml.new_tensor("f32", ne=(N,)), aggml.new_tensor("f32", ne=(N,))
        there, back = Graph(ops.cpy(ops.scale(x, 2.0), y)), Graph(ops.cpy(ops.scale(y, 0.5), x))
        one.alloc([x, y])
        one.alloc_graph(there)
        two.alloc_graph(back)
        got = []
        for k in range(20):
            one.set(x, _ramp(k), copy=True)
            two.wait(one.graph_compute(there))
            got.append(two.get(y))
            one.wait(two.graph_compute(back))
        for k, future in enumerate(got):
            assert np.array_equal(await future, 2 * _ramp(k))
        assert np.array_equal(await one.get(x), _ramp(19))
    assert not device.name.startswith("ggml:Fake") or fakes.misused_events() == 0


async def test_a_wait_between_streams_is_left_to_the_device() -> None:
    """The other stream's work is issued and takes long: an event of the library makes us wait."""
    device = fakes.device()
    async with device.backend() as one, device.backend() as two:
        x, y, graph = _doubled(one)
        await one.set(x, _ramp(0))
        await two.get(x)
        fakes.delay(50000)
        before = device.native.followed
        with one.stream.hold():
            one.set(x, _ramp(4))
            computed = one.graph_compute(graph)
        # time in which both are issued: with less, two would wait without the library's event
        await anyio.sleep(0.02)
        two.wait(computed)
        got = two.get(y)
        await until(lambda: device.native.followed == before + 1)
        assert not computed.done()
        assert not got.done()
        assert np.array_equal(await got, 2 * _ramp(4))
        assert computed.done()
    fakes.delay(100)
    assert fakes.misused_events() == 0


async def test_a_failure_that_comes_late_is_typed() -> None:
    """Readers of the result fail with it; other operations and the stream go on."""
    async with fakes.device().backend() as be:
        x, y, graph = _doubled(be, "break")
        other = aggml.new_tensor("f32", ne=(N,))
        be.alloc([other])
        await be.set(x, _ramp(0))
        computed, got = be.graph_compute(graph), be.get(y)
        with pytest.raises(aggml.DeviceError, match="broke down"):
            await computed
        with pytest.raises(aggml.AggmlError):
            await got
        await be.set(other, _ramp(5))
        assert np.array_equal(await be.get(other), _ramp(5))


async def test_a_cancelled_task_leaves_what_was_issued_in_order() -> None:
    fakes.delay(5000)
    async with fakes.device().backend() as be:
        x, y, graph = _doubled(be)
        await be.set(x, _ramp(1))
        with anyio.move_on_after(0.002):
            for _ in range(20):
                await be.graph_compute(graph)
        be.set(x, _ramp(7))
        be.graph_compute(graph)
        assert np.array_equal(await be.get(y), 2 * _ramp(7))
    fakes.delay(100)


async def test_pinned_memory_is_the_librarys() -> None:
    device = fakes.device()
    kind, before = device.host_buffer_type, fakes.pinned_bytes()
    assert kind is not None
    memory = kind.alloc_buffer(4 * N)
    assert fakes.pinned_bytes() - before >= 4 * N
    near = np.asarray(memory.memory).view(np.float32)
    x = aggml.new_tensor("f32", ne=(N,))
    async with device.backend() as be:
        be.alloc([x])
        near[:] = _ramp(2)
        await be.set(x, near)
        near[:] = 0
        await be.get(x, out=near)
        assert np.array_equal(near, _ramp(2))


async def test_a_device_reads_memory_that_the_host_gives() -> None:
    """The device uses the caller's bytes, not a copy. Memory that is not whole pages is refused."""
    device = fakes.device()
    block = np.zeros(2 * 4096 + 4096, np.uint8)
    start = -block.ctypes.data % 4096
    page = block[start : start + 4096]
    x = aggml.new_tensor("f32", ne=(N,))
    y = ops.scale(x, 2.0)
    graph = Graph(y)
    page[: 4 * N].view(np.float32)[:] = _ramp(1)
    async with device.backend() as be:
        memory = device.buffer_from_host(page)
        memory.place(x, 0)
        be.alloc_graph(graph)
        assert np.array_equal(await be.run(graph, None, y), 2 * _ramp(1))
        page[: 4 * N].view(np.float32)[:] = _ramp(9)
        assert np.array_equal(await be.run(graph, None, y), 2 * _ramp(9))
        with pytest.raises(aggml.Unsupported, match="the library refuses"):
            device.buffer_from_host(block[start + 4 :])


async def test_a_copy_between_two_devices_of_a_library() -> None:
    one, two = fakes.device(0), fakes.device(1)
    async with one.backend() as near, two.backend() as far:
        x, y = aggml.new_tensor("f32", ne=(N,)), aggml.new_tensor("f32", ne=(N,))
        near.alloc([x])
        far.alloc([y])
        for k in range(5):
            near.set(x, _ramp(k), copy=True)
            near.copy(x, y, to=far)
            assert np.array_equal(await far.get(y), _ramp(k))
