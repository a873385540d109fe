"""A meta device beside others in a scheduler: values cross to it, from it, and back.

Here: chains of ops that two devices compute in turns, views of divided tensors. Not here: random
programs (fuzz/schedules.py), graphs on the meta device alone (test_parts.py).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest

import aggml
from aggml import Graph, Scheduler, ops
from aggml.devices.meta import MetaDevice
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from aggml.devices.meta.backend import MetaBackend

N = 8
X = np.arange(N, dtype=np.float32) - 3


def meta(*unsupported: str) -> MetaBackend:
    members = [SimDevice(f"S{i}", unsupported=unsupported) for i in range(2)]
    return MetaDevice(members).backend()


def leaf(be: aggml.Backend, name: str) -> aggml.Tensor:
    """A placed vector; one that is named like a cache is divided between the members."""
    t = aggml.new_tensor("f32", ne=(N,), name=name)
    be.alloc([t])
    be.set(t, X)
    return t


@pytest.mark.parametrize("name", ["x", "cache_k.0"])
@pytest.mark.parametrize("lacks", ["neg", "abs"])
@pytest.mark.parametrize("home", ["meta", "cpu"])
async def test_a_value_crosses_at_each_node(home: str, lacks: str, name: str) -> None:
    async with AsyncExitStack() as stack:
        be = await stack.enter_async_context(meta(lacks))
        cpu = await stack.enter_async_context(aggml.get_device("CPU").backend())
        sched = await stack.enter_async_context(Scheduler([be, cpu]))
        x = leaf(be if home == "meta" else cpu, name)
        y, wanted, kept = x, X, []
        for i in range(6):  # so many that values take turns at the same place
            y = ops.add(ops.neg(y) if i % 2 else ops.abs(y), x)
            wanted = (-wanted if i % 2 else np.abs(wanted)) + X
            kept.append((y, wanted))
        for t, _ in kept:
            t.set_output()
        graph = Graph(y)
        for _ in range(3):
            found = await (await sched.submit(graph, {}, [t for t, _ in kept]))
            for got, (_, expected) in zip(found, kept, strict=True):
                np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("at", [0, 2, 4])
async def test_a_view_of_a_divided_tensor_is_copied_whatever_parts_it_takes(at: int) -> None:
    async with meta() as be, aggml.get_device("CPU").backend() as cpu:
        x, target = leaf(be, "cache_k.0"), aggml.new_tensor("f32", ne=(4,))
        cpu.alloc([target])
        be.copy(ops.view_1d(x, 4, 4 * at), target, to=cpu)
        np.testing.assert_array_equal(await cpu.get(target), X[at : at + 4])
        whole = leaf(be, "whole")
        be.copy(ops.view_1d(x, 4, 4 * at), ops.view_1d(whole, 4, 8))
        wanted = X.copy()
        wanted[2:6] = X[at : at + 4]
        np.testing.assert_array_equal(await be.get(whole), wanted)


async def test_a_view_that_another_device_reads_needs_no_memory_on_the_meta_device() -> None:
    async with AsyncExitStack() as stack:
        be = await stack.enter_async_context(meta())
        cpu = await stack.enter_async_context(aggml.get_device("CPU").backend())
        sched = await stack.enter_async_context(Scheduler([be, cpu]))
        here, there = leaf(be, "here"), leaf(cpu, "there")
        graph = Graph(
            ops.cpy(ops.view_1d(here, 4, 0), ops.view_1d(there, 4, 16)),
            ops.cpy(ops.view_1d(there, 4, 0), ops.view_1d(here, 4, 16)),
        )
        await (await sched.submit(graph, {}, []))
        wanted = np.concatenate([X[:4], X[:4]])
        np.testing.assert_array_equal(await cpu.get(there), wanted)
        np.testing.assert_array_equal(await be.get(here), wanted)
