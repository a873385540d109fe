"""The properties of a device and the abilities that it reports: features DV-01 to DV-16."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import vector

import aggml
from aggml import DeviceCaps, DeviceProps, DeviceType, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from conftest import AnyDevice

    from aggml.devices.cpu import CPUDevice


@pytest.mark.feature("DV-01")
@pytest.mark.feature("DV-02")
@pytest.mark.feature("DV-04")
def test_name_description_and_type(cpu_device: CPUDevice, sim_device: SimDevice) -> None:
    assert (cpu_device.name, cpu_device.type) == ("CPU", DeviceType.CPU)
    assert (sim_device.name, sim_device.type) == ("SIM", DeviceType.GPU)
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = {line.split(":", 1)[1].strip() for line in file if line.startswith("model name")}
    assert cpu_device.description in (models or {cpu_device.description})
    assert cpu_device.description
    assert sim_device.description


@pytest.mark.feature("DV-03")
def test_memory_of_the_host(cpu_device: CPUDevice) -> None:
    free, total = cpu_device.memory()
    with open("/proc/meminfo", encoding="utf-8") as file:
        told = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file}
    assert total == told["MemTotal"]
    assert 0 < free <= total


@pytest.mark.feature("DV-03")
def test_memory_of_a_device_follows_its_buffers() -> None:
    device = SimDevice("SIM", memory=1 << 20)
    assert device.memory() == (1 << 20, 1 << 20)
    buffer = device.buffer_type.alloc_buffer(4096)
    assert device.memory() == ((1 << 20) - 4096, 1 << 20)
    del buffer
    assert device.memory() == (1 << 20, 1 << 20)


@pytest.mark.feature("DV-05")
@pytest.mark.feature("DV-16")
def test_props_are_all_of_it_at_once(device: AnyDevice) -> None:
    props = device.props
    assert isinstance(props, DeviceProps)
    assert props[:3] == (device.name, device.description, device.type)
    assert props.memory_total == device.memory()[1]
    assert props.caps is device.caps
    assert props.device_id is None  # not on a bus


@pytest.mark.feature("DV-15")
def test_caps_are_kept(cpu_device: CPUDevice, sim_device: SimDevice) -> None:
    """The CPU has async and events, which ggml's CPU device has not."""
    assert cpu_device.caps == DeviceCaps(
        async_=True, host_buffer=False, buffer_from_host=True, events=True, mmap=True
    )
    assert not sim_device.caps.buffer_from_host
    for device in (cpu_device, sim_device):
        assert device.caps.host_buffer == (device.host_buffer_type is not None)
        assert isinstance(device.event(), aggml.Event)


@pytest.mark.feature("DV-06")
def test_the_family_of_a_device(cpu_device: CPUDevice, sim_device: SimDevice) -> None:
    assert cpu_device.family is aggml.get_family("CPU")
    assert aggml.get_family("CPU").device(0) is cpu_device
    assert sim_device.family is None  # made outside of the registry


@pytest.mark.feature("DV-07")
def test_each_backend_is_a_stream_of_its_own(device: AnyDevice) -> None:
    with device.backend() as one, device.backend_from_params("") as two:
        assert one is not two
        assert one.stream is not two.stream
        assert one.device is two.device is device
        one.close()
        assert not two.closed


@pytest.mark.feature("DV-07")
def test_a_backend_of_wrong_options_is_refused(cpu_device: CPUDevice) -> None:
    for n in (0, -1, 513):
        with pytest.raises(aggml.InvalidArgument, match=str(n)):
            cpu_device.backend(n_threads=n)
    with pytest.raises(aggml.InvalidHandle, match="3"):
        cpu_device.backend_from_params(3)  # type: ignore[arg-type]


@pytest.mark.feature("DV-08")
def test_the_preferred_memory(device: AnyDevice) -> None:
    assert device.buffer_type is device.buffer_type
    assert device.supports_buffer_type(device.buffer_type)
    with device.backend() as be:
        assert be.buffer_type is device.buffer_type


@pytest.mark.feature("DV-09")
def test_host_memory_for_transfers_is_none_where_there_is_none(device: AnyDevice) -> None:
    assert device.host_buffer_type is None


@pytest.mark.feature("DV-10")
async def test_memory_of_the_caller_is_used_where_it_lies(cpu_device: CPUDevice) -> None:
    memory = np.zeros(64 + 64, np.uint8)
    mine = memory[-memory.ctypes.data % 32 :][:64].view(np.float32)
    with cpu_device.buffer_from_host(mine, max_tensor_size=64) as buffer:
        assert (buffer.base, buffer.size) == (mine.ctypes.data, 64)
        assert buffer.is_host
        assert buffer.type.name == "CPU_Mapped"
        assert buffer.type is not cpu_device.buffer_type
        tensor = vector(16)
        buffer.place(tensor, 0)
        async with cpu_device.backend() as be:
            await be.set(tensor, np.arange(16, dtype=np.float32))
    assert mine[3] == 3
    with pytest.raises(aggml.Misaligned, match="no multiple of 2"):
        cpu_device.buffer_from_host(mine.view(np.uint8)[1:])
    with pytest.raises(aggml.InvalidHandle, match="contiguous"):
        cpu_device.buffer_from_host(mine[::2])
    with pytest.raises(aggml.InvalidHandle, match="int"):
        cpu_device.buffer_from_host(3)


@pytest.mark.feature("DV-10")
def test_a_device_that_cannot_use_host_memory_says_so(sim_device: SimDevice) -> None:
    with pytest.raises(aggml.Unsupported, match="SIM"):
        sim_device.buffer_from_host(bytearray(64))


@pytest.mark.feature("DV-11")
def test_what_can_be_run_is_told_without_running(device: AnyDevice) -> None:
    a = aggml.new_tensor("f32", ne=(8, 8))
    free = device.memory()[0] if isinstance(device, SimDevice) else None
    y = ops.mul_mat(a, ops.add(a, a))
    assert device.supports_op(a)  # a leaf
    assert device.supports_op(ops.view_1d(a, 8, 0))
    assert device.supports_op(y)
    picky = SimDevice("PICKY", unsupported=["mul_mat"])
    assert not picky.supports_op(y)
    assert picky.supports_op(y.src[1])  # type: ignore[arg-type]
    assert y.placement is a.placement is None
    if free is not None:
        assert device.memory()[0] == free


@pytest.mark.feature("DV-12")
def test_whose_memory_kernels_reach(cpu_device: CPUDevice, sim_device: SimDevice) -> None:
    assert cpu_device.supports_buffer_type(cpu_device.buffer_type)
    assert not cpu_device.supports_buffer_type(sim_device.buffer_type)
    assert not sim_device.supports_buffer_type(cpu_device.buffer_type)
    assert not sim_device.supports_buffer_type(SimDevice("OTHER").buffer_type)
    unified = SimDevice("UNIFIED", reads_host=True)
    assert unified.supports_buffer_type(cpu_device.buffer_type)


@pytest.mark.feature("DV-13")
def test_wanting_an_op_is_another_question_than_being_able(cpu_device: CPUDevice) -> None:
    a = aggml.new_tensor("f32", ne=(8, 8))
    keen = SimDevice("KEEN", offload=["mul_mat"])
    assert keen.offload_op(ops.mul_mat(a, a))
    assert not keen.offload_op(ops.add(a, a))
    assert not cpu_device.offload_op(ops.mul_mat(a, a))  # the default


@pytest.mark.feature("DV-14")
def test_kinds_of_devices() -> None:
    assert {kind.value for kind in DeviceType} == {"cpu", "gpu", "igpu", "accel", "meta"}
