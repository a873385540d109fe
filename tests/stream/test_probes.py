"""Probes 5, 23, 31 and 32: order, the state after an abort, the state after a cancelled task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest
from support import N, holding, placed, ramp, sum_on, vector

import aggml
from aggml import Graph, Status, ops

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend


@pytest.mark.feature("TD-09", "BE-14")
async def test_probe_05_a_copy_then_a_graph_without_waiting(
    cpu: CPUBackend, sim: SimBackend
) -> None:
    a = holding(cpu, ramp())
    s = sum_on(sim)
    sim.set(s.b, ramp())
    with cpu.stream.hold():
        cpu.memset(a, 0)
        cpu.copy(a, s.a, to=sim)
        sim.graph_compute(s.graph)
        result = sim.get(s.y)
    cpu.set(a, ramp())
    assert np.array_equal(await result, ramp())


@pytest.mark.feature("CP-05", "BE-18")
@pytest.mark.parametrize("k", [0, 1, 4])
async def test_probe_23_abort_on_the_kth_node(cpu: CPUBackend, k: int) -> None:
    """A graph cut into its nodes: k of them are done when the abort comes, the rest is queued."""
    x = holding(cpu, ramp())
    nodes = [ops.scale(x, float(i + 1)).set_output() for i in range(6)]
    graph = Graph(*nodes)
    cpu.alloc_graph(graph)
    for node in nodes:
        cpu.memset(node, 0x40)
    parts = [graph.part(i, i + 1) for i in range(len(nodes))]
    for part in parts:
        cpu.alloc_graph(part)
    done = [cpu.graph_compute(part) for part in parts[:k]]
    await cpu.synchronize()
    with cpu.stream.hold():
        rest = [cpu.graph_compute(part) for part in parts[k:]]
        for future in rest:
            future.abort()
    for future in rest:
        with pytest.raises(aggml.Aborted):
            await future
    assert [Status.of(f.exception()) for f in (*done, *rest)] == (
        [Status.SUCCESS] * k + [Status.ABORTED] * (6 - k)
    )
    for i, node in enumerate(nodes):
        await cpu.accept(node)
        got = await cpu.get(node, offset=0)
        if i < k:
            assert np.array_equal(got.view(np.float32), ramp() * (i + 1))
        else:
            assert (got == 0x40).all()
    await cpu.graph_compute(graph)
    assert np.array_equal(await cpu.get(nodes[5]), 6 * ramp())


@pytest.mark.feature("CP-05")
async def test_probe_23_abort_inside_a_graph(cpu: CPUBackend) -> None:
    """An abort amid a graph of large nodes: nodes before it are whole, later ones untouched."""
    n, count = 1 << 20, 40
    x = placed(cpu, n)
    cpu.memset(x, 0)
    nodes = [ops.scale_bias(x, 1.0, float(i + 1)).set_output() for i in range(count)]
    graph = Graph(*nodes)
    cpu.alloc_graph(graph)
    await cpu.graph_compute(graph)  # compiles the plan, and touches all pages
    for node in nodes:
        cpu.memset(node, 0)
    future = cpu.graph_compute(graph)
    while future.times.started is None and not future.done():
        await anyio.lowlevel.checkpoint()
    future.abort()
    await future.wait_until_done()
    for node in nodes:
        cpu.accept(node)
    states = []
    for i, node in enumerate(nodes):
        got = await cpu.get(node)
        states.append("done" if (got == i + 1).all() else "untouched" if not got.any() else "part")
    if isinstance(future.exception(), aggml.Aborted):
        assert states[-1] != "done"
    order = {"done": 0, "part": 1, "untouched": 2}
    assert [order[s] for s in states] == sorted(order[s] for s in states)
    # Several nodes may be written in part: they do not depend on each other, so the other threads
    # go on while the system keeps one from running.
    await cpu.graph_compute(graph)
    assert ((await cpu.get(nodes[-1])) == count).all()


@pytest.mark.feature("EV-01", "EV-02", "EV-03", "EV-04", "EV-05", "IF-07")
async def test_probe_31_events(cpu: CPUBackend, sim: SimBackend) -> None:
    for one, two in ((cpu, sim), (sim, cpu), (cpu, cpu.device.backend())):
        a, b = holding(one, ramp()), holding(two, ramp())
        event = one.device.event()
        assert event.done()
        assert event.wait(0)
        await two.wait(event)  # an event that was never recorded counts as reached
        with one.stream.hold():
            one.memset(a, 0)
            mark = one.record(event)
            two.wait(event)
            later = two.get(b)
            assert not event.done()
            assert not event.wait(0.001)
            await anyio.lowlevel.checkpoint()
            assert not later.done()
        await event
        assert mark.done()
        assert np.array_equal(await later, ramp())
        for bad in (None, 3, "event", a):
            with pytest.raises(aggml.InvalidHandle):
                one.record(bad)  # type: ignore[arg-type]
            with pytest.raises(aggml.InvalidHandle):
                one.wait(bad)  # type: ignore[arg-type]


async def test_probe_32_a_cancelled_task_leaves_all_as_it_should_be(be: aggml.Backend) -> None:
    s = sum_on(be)
    extra = vector(name="extra")
    be.alloc([extra])
    with be.stream.hold():
        with anyio.move_on_after(0):
            await be.set(extra, ramp(start=5), copy=True)
        with anyio.move_on_after(0):
            await be.run(s.graph, {s.a: ramp(), s.b: ramp()}, s.y)
    # the wait was abandoned; the set was not undone
    assert np.array_equal(await be.get(extra), ramp(start=5))
    assert np.array_equal(await s.run(be, ramp(), ramp(start=1)), 2 * ramp() + 1)
    await be.synchronize()
    assert be.pending == 0
    assert extra.nbytes == 4 * N
