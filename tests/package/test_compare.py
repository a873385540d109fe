"""copy_graph and compare_backends: clones that share only structure, correct verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import holding, ramp, sum_graph, sum_on

import aggml
from aggml import Graph, ops
from aggml.devices.sim import SimBackend, SimDevice

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUBackend
    from aggml.plan import Plan


def network(be: aggml.Backend, rng: np.random.Generator) -> tuple[Graph, dict[str, aggml.Tensor]]:
    """A graph with products, views of one storage, writes through a view, an inner output."""
    t = {
        "w": aggml.new_tensor("f32", ne=(8, 6), name="w"),
        "x": aggml.new_tensor("f32", ne=(8, 4), name="x").set_input(),
        "cache": aggml.new_tensor("f16", ne=(6, 8), name="cache"),
    }
    be.alloc(t.values())
    for tensor in t.values():
        kind = tensor.dtype.numpy
        assert be.set(tensor, rng.standard_normal(tensor.shape).astype(kind)).wait(60)
    t["y"] = ops.mul_mat(t["w"], t["x"]).set_name("y").set_output()
    slot = ops.view_2d(t["cache"], 6, 4, t["cache"].nb[1], 2 * t["cache"].nb[1])
    t["stored"] = ops.cpy(t["y"], slot).set_name("stored")
    half = ops.view_2d(t["y"], 3, 4, t["y"].nb[1], 12)
    t["z"] = ops.add(ops.sqr(ops.cont(half)), ops.cont(half)).set_name("z")
    return Graph(t["stored"], t["z"]), t


class Wrong(SimDevice):
    """A simulated device that spoils the results of one op."""

    def __init__(self, op: str) -> None:
        super().__init__("WRONG")
        self.op = op

    def backend(self, **options: Any) -> SimBackend:
        return WrongBackend(self, **options)


class WrongBackend(SimBackend):
    def _compute(self, plan: Plan, arena: aggml.Buffer | None) -> aggml.Future[None]:
        future = super()._compute(plan, arena)
        assert isinstance(self.device, Wrong)
        for node in plan.graph.nodes:
            if node.op == self.device.op and node.placement is not None:
                future = self.stream.fill(node, 0x3F, 0, 4)
        return future


# -- copies


@pytest.mark.feature("GC-01", "GC-02")
async def test_a_copy_holds_the_same_and_shares_no_memory(
    cpu: CPUBackend, sim: SimBackend, rng: np.random.Generator
) -> None:
    graph, t = network(cpu, rng)
    before = await cpu.get(t["x"])
    copy = await aggml.copy_graph(graph, cpu, sim)
    assert [n.op for n in copy.graph.nodes] == [n.op for n in graph.nodes]
    clones = (*copy.graph.leafs, *copy.graph.nodes)
    for mine, clone in zip((*graph.leafs, *graph.nodes), clones, strict=True):
        assert copy.tensors[mine] is clone
        assert (clone.name, clone.ne, clone.nb) == (mine.name, mine.ne, mine.nb)
        assert (clone.flags, clone.op_params) == (mine.flags, mine.op_params)
        assert clone.view_offs == mine.view_offs
        assert clone.root is copy.tensors[mine.root]
        assert clone.buffer is not None
        assert clone.buffer.type is sim.buffer_type
    x = copy.tensors[t["x"]]
    assert np.array_equal(await sim.get(x), before)
    await sim.memset(x, 0)
    assert np.array_equal(await cpu.get(t["x"]), before)
    assert graph.memory is None


@pytest.mark.feature("GC-02")
async def test_a_copy_computes_what_the_original_computes(
    cpu: CPUBackend, sim: SimBackend, rng: np.random.Generator
) -> None:
    graph, t = network(cpu, rng)
    copy = await aggml.copy_graph(graph, cpu, sim)
    cpu.alloc_graph(graph)
    await cpu.graph_compute(graph)
    await sim.graph_compute(copy.graph)
    for name in ("y", "z", "cache"):
        assert np.array_equal(await cpu.get(t[name]), await sim.get(copy.tensors[t[name]]))


@pytest.mark.feature("GC-03")
async def test_the_end_of_a_copy(cpu: CPUBackend, rng: np.random.Generator) -> None:
    graph, t = network(cpu, rng)
    with await aggml.copy_graph(graph, cpu, cpu) as copy:
        clone = copy.tensors[t["w"]]
        assert clone.buffer is not None
    assert clone.buffer is None
    assert copy.graph.memory is None
    assert t["w"].buffer is not None
    with pytest.raises(aggml.NotAllocated):
        cpu.graph_compute(copy.graph)
    copy.close()


@pytest.mark.feature("GC-02")
async def test_no_copy_of_what_is_not_there(cpu: CPUBackend, sim: SimBackend) -> None:
    with pytest.raises(aggml.NotAllocated, match="copy_graph"):
        await aggml.copy_graph(sum_graph().graph, cpu, sim)
    s = sum_on(sim)
    with pytest.raises(aggml.InvalidArgument, match="out of reach"):
        await aggml.copy_graph(s.graph, cpu, sim)
    with pytest.raises(aggml.InvalidHandle, match="no Graph"):
        await aggml.copy_graph(s.y, cpu, sim)  # type: ignore[arg-type]
    with pytest.raises(aggml.InvalidHandle, match="no Backend"):
        await aggml.copy_graph(s.graph, sim, None)  # type: ignore[arg-type]
    with SimDevice("TINY", memory=64).backend() as tiny, pytest.raises(aggml.AllocFailed):
        await aggml.copy_graph(s.graph, sim, tiny)
    with pytest.raises(aggml.InvalidState, match="closed"):
        await aggml.copy_graph(s.graph, sim, tiny)
    assert s.a.buffer is not None


# -- comparing


@pytest.mark.feature("GC-04", "GC-05")
async def test_equal_backends_pass(
    cpu: CPUBackend, sim: SimBackend, rng: np.random.Generator
) -> None:
    graph, t = network(cpu, rng)
    cache = await cpu.get(t["cache"])
    told: list[tuple[int, str]] = []

    def observe(found: aggml.NodeComparison, x: Any, y: Any) -> None:
        assert graph.nodes[found.index] is found.node
        assert np.array_equal(x, y)
        told.append((found.index, found.node.op))

    verdict = await aggml.compare_backends(graph, cpu, sim, observe)
    assert verdict
    assert verdict.passed
    assert [op for _, op in told] == ["mul_mat", "cpy", "cont", "sqr", "cont", "add"]
    assert [n.index for n in verdict.nodes] == [i for i, _ in told]
    assert all(n.nmse == 0 and n.seconds is not None for n in verdict.nodes)
    assert "6 nodes, 0 differ" in str(verdict)
    assert np.array_equal(await cpu.get(t["cache"]), cache)  # the original graph was not run


@pytest.mark.feature("GC-05")
async def test_a_difference_is_found_where_it_arises(
    cpu: CPUBackend, rng: np.random.Generator
) -> None:
    graph, _ = network(cpu, rng)
    async with Wrong("sqr").backend() as wrong:
        verdict = await aggml.compare_backends(graph, cpu, wrong)
    assert bool(verdict) is False
    assert [n.node.op for n in verdict.nodes if not n.passed] == ["sqr", "add"]
    assert verdict.stopped is None
    assert "DIFFERS" in str(verdict)


@pytest.mark.feature("GC-04", "GC-05")
async def test_a_callback_that_stops_the_walk_gets_no_good_verdict(
    cpu: CPUBackend, sim: SimBackend, rng: np.random.Generator
) -> None:
    graph, _ = network(cpu, rng)

    async def observe(found: aggml.NodeComparison, x: Any, y: Any) -> bool:
        await sim.synchronize()
        return found.node.op != "cpy"

    verdict = await aggml.compare_backends(graph, cpu, sim, observe)
    assert bool(verdict) is False
    assert verdict.stopped == verdict.nodes[-1].index
    assert [n.node.op for n in verdict.nodes] == ["mul_mat", "cpy"]
    assert all(n.passed for n in verdict.nodes)


@pytest.mark.feature("GC-05")
async def test_some_nodes_after_a_run_of_the_whole(
    cpu: CPUBackend, sim: SimBackend, rng: np.random.Generator
) -> None:
    graph, t = network(cpu, rng)
    verdict = await aggml.compare_backends(graph, cpu, sim, nodes=[t["z"], t["y"]])
    assert verdict
    assert [n.node for n in verdict.nodes] == [t["y"], t["z"]]
    async with Wrong("add").backend() as wrong:
        verdict = await aggml.compare_backends(graph, cpu, wrong, nodes=[t["y"], t["z"]])
    assert [n.passed for n in verdict.nodes] == [True, False]
    for bad in ([t["w"]], []):
        with pytest.raises(aggml.InvalidArgument, match="compare_backends"):
            await aggml.compare_backends(graph, cpu, sim, nodes=bad)


async def test_infinities_and_nan_are_equal_to_themselves(cpu: CPUBackend, sim: SimBackend) -> None:
    a = holding(cpu, np.array([np.inf, -np.inf, np.nan, 1], np.float32))
    assert await aggml.compare_backends(Graph(ops.neg(a)), cpu, sim)


async def test_what_one_of_them_cannot_run_is_no_verdict(cpu: CPUBackend) -> None:
    a = holding(cpu, ramp())
    async with SimDevice("PICKY", unsupported=["neg"]).backend() as picky:
        with pytest.raises(aggml.Unsupported, match="neg"):
            await aggml.compare_backends(Graph(ops.neg(a)), cpu, picky)


# -- parts of graphs


async def test_a_part_of_a_graph_runs_alone(cpu: CPUBackend) -> None:
    a = holding(cpu, ramp())
    b = ops.sqr(a).set_output()
    c = ops.sqrt(b)
    graph = Graph(c)
    cpu.alloc_graph(graph)
    await cpu.set(b, ramp(start=4))
    part = graph.part(1, 2)
    assert (part.nodes, part.leafs, part.ends) == ((c,), (b,), (c,))
    cpu.alloc_graph(part)
    await cpu.graph_compute(part)
    assert np.allclose(await cpu.get(c), np.sqrt(ramp(start=4)))
    for bad in ((0, 0), (1, 0), (-1, 1), (0, 3), (2, 3)):
        with pytest.raises(aggml.OutOfBounds):
            graph.part(*bad)
    with pytest.raises(aggml.InvalidHandle):
        graph.part("0", 1)  # type: ignore[arg-type]
