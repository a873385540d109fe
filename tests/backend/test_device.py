"""Devices as such: names, properties, capabilities, memory of the host, simulated time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from support import N, holding, placed, ramp, sum_graph, sum_on, vector
from waiting import until

import aggml
from aggml import Graph, new_tensor, ops
from aggml.devices.sim import SimDevice, operations

if TYPE_CHECKING:
    from conftest import AnyDevice

    from aggml.devices.cpu import CPUBackend, CPUDevice
    from aggml.devices.sim import SimBackend


def test_what_every_device_tells(device: AnyDevice) -> None:
    props = device.props
    assert props.name == device.name
    assert props.description
    assert props.type is device.type
    assert 0 <= props.memory_free <= props.memory_total
    assert props.caps.async_
    assert props.caps.events
    assert device.name in repr(device)
    assert device.supports_buffer_type(device.buffer_type)
    assert device.buffer_type.alignment in (1 << k for k in range(16))
    assert device.buffer_type.max_size > 0
    assert device.supports_op(sum_graph().y)
    assert device.supports_op(vector())  # a leaf cannot be run
    assert not device.event().wait(0) or device.event().done()


def test_the_cpu_is_found_by_name_and_type() -> None:
    cpu = aggml.get_device("CPU")
    assert aggml.get_device("cpu") is cpu
    assert aggml.get_device(type="cpu") is cpu
    assert cpu in aggml.list_devices()
    assert isinstance(aggml.best_device(), aggml.Device)


def test_offers_that_a_device_does_not_make(sim_device: SimDevice) -> None:
    assert not sim_device.caps.buffer_from_host
    with pytest.raises(aggml.Unsupported, match="SIM"):
        sim_device.buffer_from_host(bytearray(64))


async def test_host_memory_is_wrapped_without_copy(cpu_device: CPUDevice, cpu: CPUBackend) -> None:
    memory = np.zeros(4 * N + 64, np.uint8)
    start = -memory.ctypes.data % 64
    mine = memory[start : start + 4 * N].view(np.float32)
    buffer = cpu_device.buffer_from_host(mine)
    a = vector(name="mine")
    buffer.place(a, 0)
    mine[:] = ramp()
    assert np.array_equal(await cpu.get(a), ramp())
    await cpu.set(a, ramp(start=1))
    assert np.array_equal(mine, ramp(start=1))
    y = ops.add(a, a)
    graph = Graph(y)
    cpu.alloc_graph(graph)
    assert np.array_equal(await cpu.run(graph, None, y), 2 * ramp() + 2)
    del memory, mine, buffer
    assert np.array_equal(await cpu.get(a), ramp(start=1))  # the tensor keeps it alive


def test_host_memory_of_the_cpu_shows_as_bytes(cpu: CPUBackend) -> None:
    a = holding(cpu, ramp())
    assert a.buffer is not None
    assert a.placement is not None
    seen = np.frombuffer(a.buffer.memory, np.float32, N, a.placement.offset)  # type: ignore[call-overload]
    assert np.array_equal(seen, ramp())


def test_threads_of_the_cpu(cpu_device: CPUDevice) -> None:
    with cpu_device.backend(n_threads=3) as be:
        assert be.n_threads == 3
        be.n_threads = 1
        s = sum_on(be, 1 << 16)
        run = s.run(be, ramp(1 << 16), ramp(1 << 16))
        assert run.wait(60)
        with pytest.raises(aggml.InvalidArgument, match="0"):
            be.n_threads = 0


# -- the simulated device


async def test_transfers_take_their_time() -> None:
    device = SimDevice("SLOW", latency=0.005, bandwidth=4 * 4096 / 0.01)
    async with device.backend() as be:
        a = placed(be, 4096)
        begin = time.perf_counter()
        await be.set(a, ramp(4096))
        assert time.perf_counter() - begin >= 0.015
        future = be.get(a)
        await future
        assert future.times.done is not None
        assert future.times.done - future.times.submitted >= 0.015


async def test_computing_takes_its_time() -> None:
    device = SimDevice("SLOW", speed=N / 0.01)
    async with device.backend() as be:
        s = sum_on(be)
        begin = time.perf_counter()
        assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())
        assert time.perf_counter() - begin >= 0.01


async def test_slow_devices_overlap() -> None:
    """All 8 transfers are under way at once, however few threads there are."""
    devices = [SimDevice(f"S{i}", latency=1000) for i in range(8)]
    backends = [d.backend() for d in devices]
    tensors = [placed(be) for be in backends]
    sets = [be.set(t, ramp()) for be, t in zip(backends, tensors, strict=True)]
    await until(lambda: all(future.times.started is not None for future in sets))
    assert not any(future.done() for future in sets)
    for be, future in zip(backends, sets, strict=True):
        future.abort()
        await be.aclose()


async def test_aborting_a_run_that_pretends_to_be_slow() -> None:
    async with SimDevice("SLOW", speed=1e-3).backend() as be:
        s = sum_on(be)
        with anyio.fail_after(60):
            with anyio.move_on_after(0.01):
                await s.run(be, ramp(), ramp())
            await be.synchronize()


async def test_hold_of_a_device_holds_all_of_its_backends(
    sim_device: SimDevice, sim: SimBackend
) -> None:
    second = sim_device.backend()
    a, b = holding(sim, ramp()), holding(second, ramp())
    with sim_device.hold():
        got = [sim.get(a), second.get(b)]
        await anyio.lowlevel.checkpoint()
        assert not any(f.done() for f in got)
    await aggml.gather(*got)
    with pytest.raises(aggml.InvalidArgument, match="not held"):
        sim.release()
    await second.aclose()


def test_alignment_of_a_simulated_device() -> None:
    device = SimDevice("WIDE", alignment=1024)
    with device.backend() as be:
        tensors = [vector(3, f"t{i}") for i in range(5)]
        be.alloc(tensors)
        assert all(t.address is not None and t.address % 1024 == 0 for t in tensors)


def test_what_a_simulated_device_does_not_support() -> None:
    device = SimDevice("PICKY", unsupported=["soft_max"], offload=["mul_mat"])
    a = aggml.new_tensor("f32", ne=(8, 8))
    assert not device.supports_op(ops.soft_max_ext(a, None))
    assert device.supports_op(ops.add(a, a))
    assert device.offload_op(ops.mul_mat(a, a))
    assert not device.offload_op(ops.add(a, a))


async def test_a_device_that_reads_host_memory(cpu: CPUBackend) -> None:
    device = SimDevice("UNIFIED", reads_host=True)
    a = holding(cpu, ramp(), "a")
    y = ops.add(a, a)
    graph = Graph(y)
    async with device.backend() as be:
        be.alloc_graph(graph)
        assert a.buffer is not None
        assert a.buffer.is_host
        assert np.array_equal(await be.run(graph, None, y), 2 * ramp())


def test_a_graph_over_memory_out_of_reach_is_refused(sim: SimBackend, cpu: CPUBackend) -> None:
    a = holding(cpu, ramp(), "far")
    y = ops.add(a, a)
    graph = Graph(y)
    sim.alloc_graph(graph)
    for call in (
        lambda: sim.graph_compute(graph),
        lambda: sim.run(graph, None, y),
        lambda: sim.graph_plan(graph),
    ):
        with pytest.raises(aggml.InvalidArgument, match=r"far.*out of reach"):
            call()
    b = holding(sim, ramp(), "private")
    z = ops.add(b, b)
    second = Graph(z)
    cpu.alloc_graph(second)
    with pytest.raises(aggml.InvalidArgument, match=r"private.*out of reach"):
        cpu.run(second, None, z)
    assert sim.pending == cpu.pending == 0


async def test_preparing_a_graph_over_memory_out_of_reach(sim: SimBackend, cpu: CPUBackend) -> None:
    a = holding(cpu, ramp(), "far")
    with pytest.raises(aggml.InvalidArgument, match=r"far.*out of reach"):
        await sim.prepare(Graph(ops.add(a, a)))


def test_faults_of_the_past_are_refused(sim_device: SimDevice) -> None:
    with pytest.raises(aggml.InvalidArgument, match="-1"):
        sim_device.fail_at(-1)


async def test_a_device_on_hold_holds_what_is_opened_meanwhile() -> None:
    device = SimDevice("S")
    with device.hold():
        be = device.backend()
        marked = be.stream.mark()
        assert not marked.done()
    await marked


def test_operations_of_products() -> None:
    w, x = new_tensor("f32", ne=(8, 4)), new_tensor("f32", ne=(8, 3))
    assert operations(ops.mul_mat(w, x)) == 2 * 8 * 4 * 3
    assert operations(ops.relu(x)) == 24
    assert operations(ops.transpose(x)) == 0
    q, k = new_tensor("f32", ne=(8, 5, 2)), new_tensor("f16", ne=(8, 7, 2))
    attention = ops.flash_attn_ext(q, k, k, None, 1.0, 0.0, 0.0)
    assert operations(attention) == 2 * 2 * 8 * 5 * 7 * 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory": -1}, "memory=-1 is negative"),
        ({"memory": 1.5}, "memory=1.5 is no integer"),
        ({"memory": "1G"}, "memory='1G' is no integer"),
        ({"alignment": 48}, "alignment=48 is no power of two"),
        ({"alignment": "64"}, "alignment='64' is no integer"),
        ({"bandwidth": 0}, "bandwidth=0 is no finite number above 0"),
        ({"bandwidth": float("nan")}, "bandwidth=nan is no finite number above 0"),
        ({"speed": -2.0}, "speed=-2.0 is no finite number above 0"),
        ({"speed": "fast"}, "speed='fast' is no number"),
        ({"latency": -1}, "latency=-1 is no finite number from 0 on"),
        ({"latency": float("inf")}, "latency=inf is no finite number from 0 on"),
        ({"latency": None}, "latency=None is no number"),
        ({"unsupported": "soft_max"}, "unsupported='soft_max' is no list of names"),
        ({"unsupported": ["soft_max_ext"]}, "unsupported has 'soft_max_ext', which is no op"),
        ({"offload": 5}, "offload=5 is no list of names"),
        ({"offload": [5]}, "offload has 5, which is no op"),
        ({"reads_host": "yes"}, "reads_host='yes' is no bool"),
        ({"name": ""}, "name='' is no name"),
        ({"name": None}, "name=None is no name"),
    ],
)
def test_wrong_arguments_of_a_simulated_device_are_refused(
    options: dict[str, Any], said: str
) -> None:
    """What is taken silently makes a test of a program mean less than it says."""
    with pytest.raises((aggml.InvalidArgument, aggml.InvalidHandle)) as caught:
        SimDevice(**options)
    assert str(caught.value).startswith(f"[SimDevice] {said}")


def test_a_simulated_device_takes_numbers_of_numpy() -> None:
    numbers: dict[str, Any] = {
        "memory": np.int64(1 << 20), "alignment": np.int32(64), "bandwidth": np.float32(1e9),
        "latency": 0, "speed": 10**9,
    }  # fmt: skip
    device = SimDevice("SIM-numpy", unsupported={"soft_max"}, offload=iter(["mul_mat"]), **numbers)
    assert device.memory() == (1 << 20, 1 << 20)
    assert device.buffer_type.alignment == 64
    assert [*device.unsupported, *device.offload] == ["soft_max", "mul_mat"]
