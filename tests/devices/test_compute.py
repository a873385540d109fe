"""Graphs on every device: run, graph_compute, plans, what is supported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from runtime.support import N, assert_checkpoint, holding, placed, ramp, sum_graph, sum_on, vector

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    from conftest import AnyDevice

    from aggml.devices.cpu import CPUDevice


async def test_run_gives_an_array_or_a_list(be: aggml.Backend) -> None:
    a, b = vector(name="a"), vector(name="b")
    y, z = ops.add(a, b), ops.mul(a, b)
    graph = Graph(y, z)
    be.alloc_graph(graph)
    one = await be.run(graph, {a: ramp(), b: ramp()}, y)
    assert isinstance(one, np.ndarray)
    both = await be.run(graph, {a: ramp(), b: ramp()}, [y, z])
    assert isinstance(both, list)
    assert np.array_equal(both[0], 2 * ramp())
    assert np.array_equal(both[1], ramp() * ramp())
    assert await be.run(graph, None, []) == []
    assert np.array_equal((await be.run(graph, {}, (z,)))[0], ramp() * ramp())
    assert np.array_equal((await be.run(graph, {a: 0 * ramp()}, [a, y]))[1], ramp())


async def test_each_run_gives_an_array_of_its_own(be: aggml.Backend) -> None:
    s = sum_on(be)
    first, second = s.run(be, ramp(), ramp()), s.run(be, ramp(start=1), ramp())
    assert np.array_equal(await first, 2 * ramp())
    assert np.array_equal(await second, 2 * ramp() + 1)
    assert np.array_equal(await first, 2 * ramp())


async def test_the_same_by_hand(be: aggml.Backend) -> None:
    s = sum_on(be)
    be.set(s.a, ramp())
    be.set(s.b, ramp())
    be.graph_compute(s.graph)
    assert np.array_equal(await be.get(s.y), 2 * ramp())


async def test_intermediates_in_the_arena(be: aggml.Backend, rng: np.random.Generator) -> None:
    """Long and wide: much reuse of scratch, many live at once."""
    a = vector(64, "a")
    layers = [a]
    for i in range(40):
        layers.append(ops.add(layers[-1], layers[max(0, i - 7)]))
    y = layers[-1]
    for other in layers[10:20]:
        y = ops.add(y, other)
    graph = Graph(y)
    be.alloc_graph(graph)
    for _ in range(3):
        x = rng.integers(0, 3, 64).astype(np.float32)
        values = [x]
        for i in range(40):
            values.append(values[-1] + values[max(0, i - 7)])
        wanted = values[-1]
        for other_value in values[10:20]:
            wanted = wanted + other_value
        assert np.array_equal(await be.run(graph, {a: x}, y), wanted)


async def test_a_cache_written_through_a_view_is_read_later_in_the_same_graph(
    be: aggml.Backend,
) -> None:
    """No edge leads from the cpy to the later read: node order is program order."""
    cache = aggml.new_tensor("f32", ne=(N, 4), name="cache")
    x = vector(name="x")
    written = ops.cpy(x, ops.view_1d(cache, N, 2 * 4 * N))
    y = ops.add(ops.view_1d(cache, N, 2 * 4 * N), x)
    graph = Graph(written, y)
    be.alloc_graph(graph)
    be.memset(cache, 0)
    for k in range(5):
        assert np.array_equal(await be.run(graph, {x: ramp(start=k)}, y), 2 * ramp(start=k))
    got = await be.get(cache)
    assert np.array_equal(got[2], ramp(start=4))
    assert not got[[0, 1, 3]].any()


async def test_graph_plan(be: aggml.Backend) -> None:
    s = sum_on(be)
    plan = be.graph_plan(s.graph)
    assert "add" in str(plan)
    be.set(s.a, ramp())
    be.set(s.b, ramp())
    await plan.compute()
    assert np.array_equal(await be.get(s.y), 2 * ramp())
    t = sum_graph()
    be.alloc_graph(t.graph)
    plan.update(t.graph)
    be.set(t.a, ramp())
    be.set(t.b, ramp(start=1))
    await plan.compute()
    assert np.array_equal(await be.get(t.y), 2 * ramp() + 1)


async def test_rerunning_compiles_once(be: aggml.Backend) -> None:
    s = sum_on(be)
    plan = be.graph_plan(s.graph)
    first = plan.plan.native
    await s.run(be, ramp(), ramp())
    assert plan.plan.native is first
    tmp = placed(be)  # a placement elsewhere changes nothing
    tmp.buffer.close()  # type: ignore[union-attr]
    await s.run(be, ramp(), ramp())
    assert plan.plan.native is first


async def test_a_moved_leaf_is_found(be: aggml.Backend) -> None:
    s = sum_graph()
    first = be.alloc([s.a])
    be.alloc_graph(s.graph)
    assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())
    first.close()
    with pytest.raises(aggml.NotAllocated, match="a"):
        s.run(be, ramp(), ramp())
    be.alloc([s.a])
    assert np.array_equal(await s.run(be, ramp(start=1), ramp()), 2 * ramp() + 1)


async def test_synchronize_waits_for_all(be: aggml.Backend) -> None:
    s = sum_on(be)
    be.stream.delay(0.005)
    run = s.run(be, ramp(), ramp())
    with assert_checkpoint():
        await be.synchronize()
    assert run.done()
    assert be.pending == 0


@pytest.mark.parametrize("n_threads", [1, 2, 3])
async def test_results_do_not_depend_on_the_number_of_threads(
    cpu_device: CPUDevice, rng: np.random.Generator, n_threads: int
) -> None:
    w = aggml.new_tensor("f32", ne=(96, 64), name="w")
    x = aggml.new_tensor("f32", ne=(96, 33), name="x")
    y = ops.soft_max(ops.mul_mat(w, x))
    graph = Graph(y)
    values = {
        w: rng.standard_normal((64, 96)).astype(np.float32),
        x: rng.standard_normal((33, 96)).astype(np.float32),
    }
    results = []
    for n in (1, n_threads):
        async with cpu_device.backend(n_threads=n) as be:
            assert be.n_threads == n
            mem = be.alloc_graph(graph)
            results.append(await be.run(graph, values, y))
            mem.close()
    assert np.array_equal(results[0], results[1])


async def test_use_ref_agrees(cpu_device: CPUDevice, rng: np.random.Generator) -> None:
    w, x = aggml.new_tensor("f32", ne=(64, 8), name="w"), vector(64, "x")
    y = ops.mul_mat(w, x)
    graph = Graph(y)
    values = {
        w: rng.standard_normal((8, 64)).astype(np.float32),
        x: rng.standard_normal(64).astype(np.float32),
    }
    for use_ref in (True, False):
        async with cpu_device.backend(use_ref=use_ref) as be:
            mem = be.alloc_graph(graph)
            got = await be.run(graph, values, y)
            assert np.allclose(got.reshape(-1), values[w] @ values[x], atol=1e-4)
            mem.close()


async def test_small_and_large_graphs_of_several_backends_at_once(device: AnyDevice) -> None:
    backends = [device.backend() for _ in range(4)]
    sums = [sum_on(be, n) for be, n in zip(backends, (16, 1 << 12, 1 << 16, 1 << 18), strict=True)]
    runs = [
        (s.run(be, ramp(s.a.ne[0]), ramp(s.a.ne[0], k)), 2 * ramp(s.a.ne[0]) + np.float32(k), s)
        for k in range(10)
        for be, s in zip(backends, sums, strict=True)
    ]
    for run, wanted, s in runs:
        assert np.array_equal(await run, wanted), s
    for be in backends:
        await be.aclose()


async def test_a_graph_reads_leaves_that_another_stream_wrote(
    be: aggml.Backend, other: aggml.Backend
) -> None:
    s = sum_on(be)
    event = be.device.event()
    other.set(s.a, ramp())
    other.set(s.b, ramp())
    other.record(event)
    be.wait(event)
    be.graph_compute(s.graph)
    assert np.array_equal(await be.get(s.y), 2 * ramp())
    assert np.array_equal(await other.get(holding(other, ramp())), ramp())
