"""Probes 1 to 15 and 28 to 30: buffers, tensors, allocators, conversions, copies of graphs.

Each probe checks one statement about ggml's behaviour, or one deliberate difference from it. Its
number is that of the list of probes. The probes of order, scheduler and registry are in
test_probes.py of those rooms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import N, holding, placed, ramp, sum_on, vector

import aggml
from aggml import BufferUsage, Graph, GraphAllocator, MultiBuffer, ops
from aggml.devices.sim import SimDevice

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend
    from aggml.plan import Plan


async def test_probe_01_a_buffer_of_no_bytes(be: aggml.Backend) -> None:
    with be.buffer_type.alloc_buffer(0) as buffer:
        assert (buffer.base, buffer.size) == (0, 0)
        await be.clear(buffer, 1)
    assert buffer.closed


@pytest.mark.feature("TD-03", "TD-05")
async def test_probe_02_transfers_of_no_bytes(be: aggml.Backend) -> None:
    unplaced, there = vector(name="unplaced"), placed(be)
    with pytest.raises(aggml.NotAllocated):
        be.set(unplaced, b"", offset=0, size=0)
    await be.set(there, b"", offset=0, size=0)
    assert (await be.get(there, offset=0, size=0)).size == 0
    await be.memset(unplaced, 0, offset=0, size=0)
    with pytest.raises(aggml.OutOfBounds):
        be.memset(unplaced, 0, offset=4 * N + 1, size=0)


@pytest.mark.feature("TD-03", "TD-04", "TD-05", "TD-06", "TD-07")
async def test_probe_03_ends_of_ranges(be: aggml.Backend) -> None:
    t = holding(be, ramp())
    n = t.nbytes
    await be.set(t, ramp(1), offset=n - 4)
    await be.memset(t, 0, offset=n - 4, size=4)
    assert not (await be.get(t, offset=n - 4, size=4)).any()
    for offset, size in ((n - 3, 4), (0, n + 1), (n + 1, 0), ((1 << 64) - 4, 8), (1 << 80, 4)):
        data = np.zeros(min(size, 64), np.uint8)
        for call in (
            lambda o=offset, s=size, d=data: be.set(t, d, offset=o, size=s),
            lambda o=offset, s=size: be.get(t, offset=o, size=s),
            lambda o=offset, s=size: be.memset(t, 0, offset=o, size=s),
        ):
            with pytest.raises(aggml.OutOfBounds):
                call()
    assert be.pending == 0


@pytest.mark.feature("TD-08", "TD-09", "BU-19", "IF-14")
async def test_probe_04_copies(cpu: CPUBackend, sim: SimBackend) -> None:
    second = sim.device.backend()
    other = SimDevice("OTHER").backend()
    t = holding(cpu, ramp())
    await cpu.copy(t, t)
    wide = aggml.new_tensor("f32", ne=(2, N), name="wide")
    cpu.alloc([wide])
    strided = ops.view_2d(wide, 1, N, wide.nb[1])
    flat = ops.reshape_2d(t, 1, N)
    assert strided.ne == flat.ne
    with pytest.raises(aggml.LayoutMismatch):
        cpu.copy(flat, strided)
    backends = [cpu, sim, second, other]
    for i, source in enumerate(backends):
        for j, target in enumerate(backends):
            a, b = holding(source, ramp(start=10 * i + j)), placed(target)
            await source.copy(a, b, to=target)
            assert np.array_equal(await target.get(b), ramp(start=10 * i + j))
    await second.aclose()
    await other.aclose()


@pytest.mark.feature("TD-01")
async def test_probe_06_placing(be: aggml.Backend) -> None:
    align = be.buffer_type.alignment
    buffer = be.buffer_type.alloc_buffer(align + 4 * N)
    a, b = vector(name="a"), vector(name="b")
    buffer.place(a, 0)
    with pytest.raises(aggml.AlreadyAllocated):
        buffer.place(a, 0)
    buffer.place(b, align)
    assert b.address == buffer.base + align
    tight = be.buffer_type.alloc_buffer(align + 4 * N - 1)
    with pytest.raises(aggml.OutOfBounds):
        tight.place(vector(), align)


@pytest.mark.feature("TD-02")
async def test_probe_07_views(be: aggml.Backend) -> None:
    t = aggml.new_tensor("f32", ne=(8, 4), name="t")
    row = ops.view_1d(t, 8, 2 * t.nb[1])
    part = ops.view_1d(row, 4, 8)
    assert part.view_src is t
    assert part.root is t
    assert part.view_offs == 2 * t.nb[1] + 8
    with pytest.raises(aggml.NotAllocated):
        be.get(part)
    assert part.address is None
    be.alloc([t])
    assert t.address is not None
    assert part.address == t.address + part.view_offs
    await be.set(t, ramp(32).reshape(4, 8))
    assert np.array_equal(await be.get(part), ramp(4, 18))
    with pytest.raises(aggml.InvalidArgument, match="view"):
        be.buffer_type.alloc_buffer(1024).place(part, 0)


async def test_probe_08_usage_of_a_multi_buffer() -> None:
    parts = [aggml.get_device("CPU").buffer_type.alloc_buffer(64) for _ in range(2)]
    a = vector(name="a")
    parts[1].place(a, 0)
    MultiBuffer(parts).usage = BufferUsage.WEIGHTS
    assert a.buffer is not None
    assert a.buffer.usage is BufferUsage.WEIGHTS
    assert [part.usage for part in parts] == [BufferUsage.WEIGHTS] * 2


class Limited(SimDevice):
    """Buffers of at most 1024 bytes."""

    def __init__(self) -> None:
        super().__init__("LIMITED", alignment=64)
        kind = type(self.buffer_type)
        limited = type("LimitedType", (kind,), {"max_size": property(lambda self: 1024)})
        self._type = limited(self, 64)  # pyright: ignore[reportCallIssue]


@pytest.mark.feature("AL-13", "AL-14", "BE-07")
async def test_probe_09_tensors_over_several_buffers() -> None:
    async with Limited().backend() as be:
        assert be.buffer_type.max_size == 1024
        exact = [vector(128, f"t{i}") for i in range(4)]  # each tensor has 512 bytes
        buffer = be.alloc(exact)
        assert isinstance(buffer, MultiBuffer)
        assert [part.size for part in buffer.parts] == [1024, 1024]
        one = be.alloc([vector(128), vector(128)])
        assert not isinstance(one, MultiBuffer)
        large = be.alloc([vector(16), vector(500, "large"), vector(16)])
        assert isinstance(large, MultiBuffer)
        assert [part.size for part in large.parts] == [64, 2048, 64]
        for i, t in enumerate(exact):
            be.set(t, ramp(128, i))
        assert np.array_equal(await be.get(exact[3]), ramp(128, 3))
        assert be.alloc([aggml.new_tensor("f32", ne=(0,))]).size == 0


def chain(*, output: bool = False, second: str = "") -> tuple[Graph, aggml.Tensor, aggml.Tensor]:
    """x -> cont -> scale -> cont. ``second`` adds another use of the result of the first cont."""
    x = vector(64, "x")
    parent = ops.cont(x)
    if output:
        parent.set_output()
    node = ops.scale(ops.view_1d(parent, 32, 0) if second == "layout" else parent, 2.0)
    ends = [ops.cont(node)]
    if second == "twice":
        ends.append(ops.neg(parent))
    if second == "view":
        ends.append(ops.cont(ops.view_1d(parent, 8, 4)))
    return Graph(*ends), parent, node


@pytest.mark.feature("AL-10")
async def test_probe_10_in_place(be: aggml.Backend) -> None:
    def shares(graph: Graph, parent: aggml.Tensor, node: aggml.Tensor) -> bool:
        GraphAllocator(be.buffer_type).alloc_graph(graph)
        return parent.address == node.address

    assert shares(*chain())
    assert not shares(*chain(output=True))
    assert not shares(*chain(second="twice"))
    assert not shares(*chain(second="view"))
    larger = vector(64, "larger")
    a = ops.cont(larger)
    b = ops.add(vector(64, "c"), ops.cont(ops.view_1d(a, 64, 0)))
    assert shares(Graph(ops.cont(b)), b.src[1], b)  # type: ignore[arg-type]
    f16 = ops.cpy(larger, vector(64, "half", "f16"))
    up = ops.cpy(f16, vector(64, "full"))
    graph = Graph(up)
    GraphAllocator(be.buffer_type).alloc_graph(graph)
    assert up.address != f16.address  # another layout


@pytest.mark.feature("AL-10")
async def test_probe_11_inputs_may_be_overwritten_outputs_never(be: aggml.Backend) -> None:
    def after(*, output: bool, reuse: bool) -> bool:
        x = vector(64, "x").set_input()
        if output:
            x.set_output()
        y = ops.cont(ops.relu(ops.neg(x)))
        graph = Graph(y)
        allocator = GraphAllocator(be.buffer_type, reuse_inputs=reuse)
        allocator.alloc_graph(graph)
        be.set(x, -ramp(64, 1))
        assert be.graph_compute(graph).wait(60)
        result = be.get(y)
        assert result.wait(60)
        assert np.array_equal(result.result(), ramp(64, 1))
        lies = [t.address for t in graph.nodes]
        return x.address in lies

    assert after(output=False, reuse=True)
    assert not after(output=True, reuse=True)
    assert not after(output=False, reuse=False)


@pytest.mark.feature("AL-10")
async def test_probe_12_equal_sizes_and_other_edges_do_not_alias(be: aggml.Backend) -> None:
    def make(first: bool) -> tuple[Graph, aggml.Tensor, aggml.Tensor]:
        x = vector(64, "x")
        c1 = ops.cont(x)
        c3 = ops.cont(ops.cont(c1))
        y = ops.add(c3, c1 if first else c3)
        return Graph(y), x, y

    allocator = GraphAllocator(be.buffer_type)
    allocator.reserve(make(False)[0])
    graph, x, y = make(True)
    allocator.alloc_graph(graph)
    await be.set(x, ramp(64))
    await be.graph_compute(graph)
    assert np.array_equal(await be.get(y), 2 * ramp(64))


def layers(n: int) -> tuple[Graph, aggml.Tensor, aggml.Tensor]:
    x = y = vector(64, "x")
    for _ in range(n):
        y = ops.cont(ops.relu(y))
    return Graph(y), x, y


@pytest.mark.feature("AL-07")
async def test_probe_13_a_smaller_graph_after_a_larger_one(be: aggml.Backend) -> None:
    allocator = GraphAllocator(be.buffer_type)
    allocator.reserve(layers(9)[0])
    buffers = allocator.buffers
    for n in (3, 1):
        graph, x, y = layers(n)
        allocator.alloc_graph(graph)
        await be.set(x, ramp(64))
        await be.graph_compute(graph)
        assert np.array_equal(await be.get(y), ramp(64))
    assert allocator.buffers == buffers


@pytest.mark.feature("AL-05", "AL-08")
async def test_probe_14_several_buffers_and_another_topology(
    cpu: CPUBackend, sim: SimBackend
) -> None:
    allocator = GraphAllocator([cpu.buffer_type, sim.buffer_type])
    first, second = layers(2)[0], layers(3)[0]
    ids = [0, 1, 1, 0]
    allocator.reserve(first, ids, [0])
    with pytest.raises(aggml.InvalidState, match="reserve first"):
        allocator.alloc_graph(second)
    allocator.alloc_graph(first)
    kinds = [cpu.buffer_type, sim.buffer_type]
    assert [t.buffer.type for t in first.nodes if t.buffer] == [kinds[i] for i in ids]


@pytest.mark.feature("AL-09")
async def test_probe_15_measuring_keeps_buffers_and_results(be: aggml.Backend) -> None:
    allocator = GraphAllocator(be.buffer_type)
    graph, x, y = layers(2)
    allocator.alloc_graph(graph)
    await be.set(x, ramp(64))
    await be.graph_compute(graph)
    buffers = allocator.buffers
    large = Graph(ops.cont(ops.cont(aggml.new_tensor("f32", ne=(64, 64)))))
    (size,) = allocator.reserve_size(large)
    assert size > allocator.buffer_size()
    assert allocator.buffers == buffers
    assert np.array_equal(await be.get(y), ramp(64))


@pytest.mark.feature("FC-01", "FC-02", "FC-05", "FC-06")
async def test_probe_28_sixteen_bits() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    half = bits.view(np.float16)
    number = ~np.isnan(half)
    wide = aggml.convert(half, "f32")
    assert np.array_equal(aggml.convert(wide, "f16").view(np.uint16)[number], bits[number])
    given = np.array([2049, 2051, 65519, 65520, -65520], np.float32)
    found = aggml.convert(given, "f16")
    assert found.tolist() == [2048, 2052, 65504, np.inf, -np.inf]
    quiet = aggml.convert(np.array([np.nan, -np.nan], np.float32), "bf16").astype(np.float32)
    assert np.isnan(quiet).all()
    signal = np.array([0x7F800001], np.uint32).view(np.float32)  # all but the last bit are cut off
    assert np.isnan(aggml.convert(signal, "bf16").astype(np.float32)).all()


def spoil(be: SimBackend, op: str) -> None:
    """Make the first element of each result of ``op`` wrong from now on."""
    compute = be._compute

    def wrong(plan: Plan, arena: aggml.Buffer | None) -> aggml.Future[None]:
        future = compute(plan, arena)
        for node in plan.graph.nodes:
            if node.op == op:
                future = be.stream.fill(node, 0x3F, 0, 4)
        return future

    be._compute = wrong  # type: ignore[method-assign]


@pytest.mark.feature("GC-05")
async def test_probe_29_compare_tells_the_truth(cpu: CPUBackend, sim: SimBackend) -> None:
    a = holding(cpu, ramp())
    graph = Graph(ops.sqr(ops.neg(a)))
    assert (await aggml.compare_backends(graph, cpu, sim)).passed

    for kind in ("neg", "sqr"):
        spoilt = SimDevice("SPOILT").backend()
        spoil(spoilt, kind)
        verdict = await aggml.compare_backends(graph, cpu, spoilt)
        assert not verdict.passed
        assert next(n.node.op for n in verdict.nodes if not n.passed) == kind
        await spoilt.aclose()


@pytest.mark.feature("GC-02")
async def test_probe_30_a_copied_graph(cpu: CPUBackend, sim: SimBackend) -> None:
    a = holding(cpu, ramp(), "a")
    view = ops.view_1d(a, 8, 16)
    y = ops.add(ops.cont(view), view).set_output()
    graph = Graph(y)
    flags = [t.flags for t in graph.nodes]
    copy = await aggml.copy_graph(graph, cpu, sim)
    mine = copy.tensors
    assert mine[view].root is mine[a]
    assert mine[view].address == (mine[a].address or 0) + 16
    assert [t.flags for t in copy.graph.nodes] == flags
    await sim.memset(mine[a], 0)
    await sim.graph_compute(copy.graph)
    assert not (await sim.get(mine[y])).any()
    assert np.array_equal(await cpu.get(a), ramp())
    assert (graph.memory, y.placement) == (None, None)
    copy.close()
    s = sum_on(cpu)
    assert np.array_equal(await s.run(cpu, ramp(), ramp()), 2 * ramp())
