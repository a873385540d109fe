"""Copies of a device of several that fail on one of them poison their target; reservations end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import N, holding, placed, ramp

import aggml
from aggml import Graph, ops
from aggml.devices.meta import MetaDevice
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUBackend

Array = np.ndarray[Any, Any]


class Injected(Exception):
    pass


async def failure(future: aggml.Future[object]) -> aggml.AggmlError:
    with pytest.raises(aggml.AggmlError) as caught:
        await future
    return caught.value


def members() -> list[SimDevice]:
    return [SimDevice(f"SIM{i}") for i in range(3)]


def weight(be: aggml.Backend, n: int) -> tuple[aggml.Tensor, Array]:
    """A tensor that is divided among the devices: its name is that of a weight of a layer."""
    tensor = aggml.new_tensor("f32", ne=(3 * n, 6 * n), name="blk.0.ffn_up.weight")
    be.alloc([tensor])
    value = np.arange(tensor.ne[0] * tensor.ne[1], dtype=np.float32).reshape(tensor.shape)
    assert be.set(tensor, value).wait(60)
    return tensor, value


@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("divides", [True, False])
async def test_a_copy_to_the_host_that_fails_on_a_member_poisons_its_target(
    cpu: CPUBackend, k: int, divides: bool
) -> None:
    devices = members()
    async with MetaDevice(devices).backend() as be:
        if divides:
            src, value = weight(be, 4)
        else:
            src, value = holding(be, ramp()), ramp()
            if k:
                return  # all members have the same, and the first one is asked
        dst = aggml.new_tensor("f32", ne=src.ne[: src.ndim], name="target")
        cpu.alloc([dst])
        await cpu.set(dst, np.zeros(dst.shape, np.float32))
        cause = Injected()
        devices[k].fail_at(0, "transfer", cause)
        copy = be.copy(src, dst, to=cpu)
        read = cpu.get(dst)
        assert (await failure(copy)).__cause__ is cause
        assert (await failure(read)).__cause__ is cause
        await be.copy(src, dst, to=cpu)  # a full write cures
        assert np.array_equal(await cpu.get(dst), value)


@pytest.mark.parametrize("k", range(3))
async def test_a_copy_between_differently_divided_tensors_that_fails_poisons_its_target(
    k: int,
) -> None:
    devices = members()
    async with MetaDevice(devices).backend() as be:
        src, value = weight(be, 4)
        dst = aggml.new_tensor("f32", ne=src.ne[:2], name="target")
        be.alloc([dst])
        await be.set(dst, np.zeros(dst.shape, np.float32))
        cause = Injected()
        devices[k].fail_at(0, "transfer", cause)
        copy, read = be.copy(src, dst), be.get(dst)
        assert (await failure(copy)).__cause__ is cause
        assert (await failure(read)).__cause__ is cause
        y = ops.neg(dst)
        graph = Graph(y)
        be.alloc_graph(graph)
        assert (await failure(be.run(graph, {}, y))).__cause__ is cause
        await be.copy(src, dst)
        assert np.array_equal(await be.get(dst), value)
        assert np.array_equal(await be.run(graph, {}, y), -value)


@pytest.mark.parametrize("shape", [(12,), (12, 6), (12, 6, 2), (12, 6, 2, 3)])
async def test_copies_of_every_rank_arrive(cpu: CPUBackend, shape: tuple[int, ...]) -> None:
    async with MetaDevice(members()).backend() as be:
        for name in ("t", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"):
            src = aggml.new_tensor("f32", ne=shape, name=name)
            be.alloc([src])
            value = np.random.default_rng(1).standard_normal(src.shape).astype(np.float32)
            await be.set(src, value)
            dst, back = (aggml.new_tensor("f32", ne=shape, name="t") for _ in range(2))
            cpu.alloc([dst])
            be.alloc([back])
            await be.copy(src, dst, to=cpu)
            assert np.array_equal(await cpu.get(dst), value)
            await cpu.copy(dst, back, to=be)
            await be.copy(src, back)
            assert np.array_equal(await be.get(back), value)


def test_what_a_failed_allocation_reserved_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimDevice("SIM", memory=1 << 20)
    be = device.backend()
    free, _ = device.memory()

    def fails(size: int) -> aggml.Buffer:
        raise aggml.AllocFailed(f"[host] no memory for {size} bytes")

    with monkeypatch.context() as patch:
        patch.setattr("aggml.devices.sim.HOST.alloc_buffer", fails)
        with pytest.raises(aggml.AllocFailed):
            placed(be, N)
    assert device.memory()[0] == free
    device.fail_at(0, "alloc")
    with pytest.raises(aggml.AllocFailed):
        placed(be, N)
    assert device.memory()[0] == free
    tensor = placed(be, N)
    assert device.memory()[0] < free
    del tensor
    assert device.memory()[0] == free
    be.close()
