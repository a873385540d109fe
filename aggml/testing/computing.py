"""ComputingTests: how graphs are run: run, graph_compute, plans, scratch memory, leaves that move.

The graphs add, multiply and copy f32; on a device that cannot do that, the tests are skipped. Not
here: what each op computes (op_corpus.py).
"""

from __future__ import annotations

import numpy as np
import pytest

import aggml
from aggml import Graph, ops
from aggml.testing.fixtures import (
    DeviceFixtures,
    N,
    needs,
    place,
    ramp,
    sum_graph,
    sum_on,
    vector,
)

__all__ = ["ComputingTests"]


class ComputingTests(DeviceFixtures):
    """Graphs are placed once, compiled once and run often."""

    async def test_run_gives_an_array_or_a_list(self, be: aggml.Backend) -> None:
        a, b = vector(name="a"), vector(name="b")
        y, z = ops.add(a, b), ops.mul(a, b)
        graph = Graph(y, z)
        needs(be.device, graph)
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

    async def test_each_run_gives_an_array_of_its_own(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        first, second = s.run(be, ramp(), ramp()), s.run(be, ramp(start=1), ramp())
        assert np.array_equal(await first, 2 * ramp())
        assert np.array_equal(await second, 2 * ramp() + 1)
        assert np.array_equal(await first, 2 * ramp())

    async def test_the_same_by_hand(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        be.set(s.a, ramp())
        be.set(s.b, ramp())
        be.graph_compute(s.graph)
        assert np.array_equal(await be.get(s.y), 2 * ramp())

    async def test_intermediates_in_the_arena(
        self, be: aggml.Backend, rng: np.random.Generator
    ) -> None:
        """A long and wide graph: memory is reused often, and many results are alive at once."""
        a = vector(64, "a")
        layers = [a]
        for i in range(40):
            layers.append(ops.add(layers[-1], layers[max(0, i - 7)]))
        y = layers[-1]
        for other in layers[10:20]:
            y = ops.add(y, other)
        graph = Graph(y)
        needs(be.device, graph)
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
        self,
        be: aggml.Backend,
    ) -> None:
        """No edge leads from the cpy to the later read; the order of the nodes orders them."""
        cache = aggml.new_tensor("f32", ne=(N, 4), name="cache")
        x = vector(name="x")
        written = ops.cpy(x, ops.view_1d(cache, N, 2 * 4 * N))
        y = ops.add(ops.view_1d(cache, N, 2 * 4 * N), x)
        graph = Graph(written, y)
        needs(be.device, graph)
        be.alloc_graph(graph)
        be.memset(cache, 0)
        for k in range(5):
            assert np.array_equal(await be.run(graph, {x: ramp(start=k)}, y), 2 * ramp(start=k))
        got = await be.get(cache)
        assert np.array_equal(got[2], ramp(start=4))
        assert not got[[0, 1, 3]].any()

    async def test_graph_plan(self, be: aggml.Backend) -> None:
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

    async def test_rerunning_compiles_once(self, be: aggml.Backend) -> None:
        s = sum_on(be)
        plan = be.graph_plan(s.graph)
        first = plan.plan
        await s.run(be, ramp(), ramp())
        assert plan.plan is first
        tmp = place(be)  # a placement elsewhere changes nothing
        tmp.buffer.close()  # type: ignore[union-attr]
        await s.run(be, ramp(), ramp())
        assert plan.plan is first

    async def test_a_moved_leaf_is_found(self, be: aggml.Backend) -> None:
        s = sum_graph()
        needs(be.device, s.graph)
        first = be.alloc([s.a])
        be.alloc_graph(s.graph)
        assert np.array_equal(await s.run(be, ramp(), ramp()), 2 * ramp())
        first.close()
        with pytest.raises(aggml.NotAllocated, match="a"):
            s.run(be, ramp(), ramp())
        be.alloc([s.a])
        assert np.array_equal(await s.run(be, ramp(start=1), ramp()), 2 * ramp() + 1)

    async def test_small_and_large_graphs_of_several_backends_at_once(
        self, device: aggml.Device
    ) -> None:
        backends = [device.backend() for _ in range(4)]
        sums = [
            sum_on(be, n) for be, n in zip(backends, (16, 1 << 12, 1 << 16, 1 << 18), strict=True)
        ]
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
        self, be: aggml.Backend, other: aggml.Backend
    ) -> None:
        s = sum_on(be)
        event = be.device.event()
        other.set(s.a, ramp())
        other.set(s.b, ramp())
        other.record(event)
        be.wait(event)
        be.graph_compute(s.graph)
        assert np.array_equal(await be.get(s.y), 2 * ramp())
