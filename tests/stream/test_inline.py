"""A thread that submits, and the timers' thread, do only little work themselves, of any op.

Such work is counted by its estimated cost (`_native.inline_work`), never by a clock. The estimates
are checked against the bytes that a node has to read and write. Not here: whether results are
right.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_loader import op_cases
from ops.recorded import build
from support import N, holding, ramp, vector

import aggml
from aggml import BufferUsage, Graph, new_tensor, ops
from aggml.native import _native
from aggml.ops.table import IDLE, OPS, with_trait
from aggml.plan import Plan
from benchmarks.op_cases import data
from benchmarks.op_rows import all_cases
from benchmarks.ops import Builders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.op_cases import OpCase

UNITS = {name: op.units for name, op in OPS.items()}
SUBMIT_NS, TIMER_NS = 5000, 50000  # the limits ag_inline_submit and ag_inline_timer
BYTES_PER_NS = 64
MIB = 1 << 20
#: Sources of which only a part is read, because ids select rows, or which are only written.
PARTLY = {
    "get_rows": {0},
    "set_rows": {2},
    "cpy": {1},
    "mul_mat_id": {0},
    "set": {0},
    "acc": {0},
    "sample": {0},
}


def f32(*ne: int) -> aggml.Tensor:
    return new_tensor("f32", ne=ne)


def i32(*ne: int) -> aggml.Tensor:
    return new_tensor("i32", ne=ne)


# Cases of large operands and a small result, for each op that can have them. For other ops the
# benchmark of ops has a large case. An op in neither is checked by its recorded calls.
LARGE: dict[str, Callable[[], aggml.Tensor]] = {
    "sum": lambda: ops.sum(f32(4 * MIB)),
    "sum_rows": lambda: ops.sum_rows(f32(4 * MIB)),
    "mean": lambda: ops.mean(f32(4 * MIB)),
    "argmax": lambda: ops.argmax(f32(4 * MIB)),
    "count_equal": lambda: ops.count_equal(i32(2 * MIB), i32(2 * MIB)),
    "cross_entropy_loss": lambda: ops.cross_entropy_loss(f32(2 * MIB), f32(2 * MIB)),
    "mul_mat": lambda: ops.mul_mat(f32(2 * MIB), f32(2 * MIB)),
    "out_prod": lambda: ops.out_prod(f32(1, 2 * MIB), f32(1, 2 * MIB)),
    "pool_1d": lambda: ops.pool_1d(f32(4 * MIB), "max", 4 * MIB, 4 * MIB, 0),
    "pool_2d": lambda: ops.pool_2d(f32(2048, 2048), "avg", 2048, 2048, 2048, 2048, 0, 0),
    "conv_2d": lambda: ops.conv_2d_direct(f32(512, 512, 4, 1), f32(512, 512, 4), 1, 1, 0, 0, 1, 1),
    "conv_2d_dw": lambda: ops.conv_2d_dw_direct(
        f32(512, 512, 1, 4), f32(512, 512, 4), 1, 1, 0, 0, 1, 1
    ),
    "top_k": lambda: ops.top_k(f32(4 * MIB), 1),
    "sample": lambda: ops.sample(f32(2 * MIB), i32(MIB), new_tensor("f64", ne=(5,))),
    "penalize": lambda: ops.penalize(f32(4 * MIB), i32(1), f32(1, 5)),
    "repeat_back": lambda: ops.repeat_back(f32(4 * MIB), f32(1)),
    "get_rows_back": lambda: ops.get_rows_back(f32(1, 2 * MIB), i32(2 * MIB), f32(1, 1)),
    "upscale": lambda: ops.interpolate(f32(2048, 2048), 1, 1, 1, 1, "bilinear|antialias"),
    "flash_attn_ext": lambda: ops.flash_attn_ext(
        f32(64, 1, 1), new_tensor("f16", ne=(64, 65536, 1)), new_tensor("f16", ne=(64, 65536, 1)),
        None, 1.0, 0.0, 0.0,
    ),
    "arange": lambda: ops.arange(0, 2 * MIB, 1),
    "col2im_1d": lambda: ops.col2im_1d(f32(16, MIB), 8, 1, 0),
    "diag_mask_zero": lambda: ops.diag_mask_zero(f32(1024, 1024), 0),
    "dsv4_hc_comb": lambda: ops.dsv4_hc_comb(f32(24, 65536), f32(3), f32(24), 1e-6, 20),
    "dsv4_hc_pre": lambda: ops.dsv4_hc_pre(f32(64, 4, 8192), f32(4, 8192)),
    "dsv4_hc_post": lambda: ops.dsv4_hc_post(
        f32(64, 8192), f32(64, 4, 8192), f32(4, 8192), f32(4, 4, 8192)
    ),
    "flash_attn_back": lambda: ops.flash_attn_back(
        f32(64, 1, 1), f32(64, 16384, 1), f32(16384, 64, 1), f32(64, 1, 1), False
    ),
    "im2col_back": lambda: ops.im2col_back(
        f32(9, 510, 510, 1), f32(3, 3, 1, 1), (512, 512, 1, 1), 1, 1, 0, 0, 1, 1
    ),
    "lightning_indexer": lambda: ops.lightning_indexer(
        f32(128, 64), f32(128, 1, 16384), f32(64), new_tensor("f16", ne=(16384, 1))
    ),
    "pool_2d_back": lambda: ops.pool_2d_back(
        f32(1, 1), f32(1024, 1024), "avg", 1024, 1024, 1024, 1024, 0, 0
    ),
    "rope_back": lambda: ops.rope_ext_back(f32(128, 32, 256), i32(256), None, 128),
}  # fmt: skip


def _of_rows() -> dict[str, OpCase]:
    """For each op the case of the benchmark whose operands are the largest."""
    best: dict[str, tuple[int, OpCase]] = {}
    for case in all_cases().values():
        leafs = [new_tensor(x.dtype, ne=x.ne) for x in case.inputs]
        graph = Graph(case.build(Builders(), *leafs))
        size = sum(leaf.nbytes for leaf in graph.leafs)
        for node in graph.nodes:
            if size <= 256 * MIB and size > best.get(node.op, (0, case))[0]:
                best[node.op] = (size, case)
    return {op: case for op, (_, case) in best.items()}


ROWS = _of_rows()
CASES = sorted({*LARGE, *(set(ROWS) & set(UNITS))} - IDLE)


def leafs_of(op: str) -> tuple[Graph, dict[aggml.Tensor, Any]]:
    """A graph with the op, and its inputs whose values kernels depend on, such as ids."""
    if op in LARGE:
        graph = Graph(LARGE[op]())
        return graph, {
            t: np.zeros(t.shape, np.int32) for t in graph.leafs if t.dtype is aggml.DType.I32
        }
    case = ROWS[op]
    leafs = [new_tensor(x.dtype, ne=x.ne) for x in case.inputs]
    graph = Graph(case.build(Builders(), *leafs))
    looked_at = [
        (leaf, data(x, i))
        for i, (leaf, x) in enumerate(zip(leafs, case.inputs, strict=True))
        if x.fill != "normal" and leaf in graph.leaf_set
    ]
    return graph, dict(looked_at)


def moved(node: aggml.Tensor) -> int:
    """The least number of bytes that a node has to read and write."""
    read = [s for i, s in enumerate(node.src) if s is not None and i not in PARTLY.get(node.op, ())]
    extents_only = UNITS[node.op] == "WINDOW" or node.op.startswith(("im2col", "fill"))
    return sum(s.nelements * s.dtype.type_size // s.dtype.blck_size for s in read[extents_only:])


@pytest.mark.parametrize("op", sorted(OPS.keys() - IDLE - with_trait("WRITES_ANY") - {*CASES}))
def test_an_op_without_a_large_case_costs_at_least_its_bytes(cpu: aggml.Backend, op: str) -> None:
    if op == "quantize":  # no builder makes it; quantize_async estimates it in the same way
        return
    calls = [case for case in op_cases() if case.node == op and not case.steps]
    assert calls, f"{op} is in no benchmark and not recorded: LARGE has to have it"
    for case in calls:
        node = build(case).out
        assert price(cpu, node) >= moved(node) // BYTES_PER_NS


def price(be: aggml.Backend, end: aggml.Tensor) -> int:
    """The estimated time of this tensor's plan, in ns."""
    graph = Graph(end)
    be.alloc_graph(graph)
    plan = be.graph_plan(graph).plan
    assert isinstance(plan, Plan)
    return plan.native.cost_ns


def test_many_small_pieces_are_not_cheap(cpu: aggml.Backend) -> None:
    # Measured on a Zen 4: 50 ns for a matrix of three numbers, 16 ns for a window of three, 2.2 ns
    # for an element that is converted and does not lie beside the next one. The estimate has to be
    # at least half of that.
    def leaf(dtype: str, *ne: int) -> aggml.Tensor:
        return aggml.new_tensor(dtype, ne=ne)

    assert price(cpu, ops.mul_mat(leaf("f32", 3, 1, 4096), leaf("f32", 3, 1, 4096))) > 4096 * 25
    depthwise = ops.conv_1d_dw(leaf("f16", 3, 1, 512), leaf("f32", 64, 512), 1, 1, 1)
    assert price(cpu, depthwise) > 512 * (64 * 8 + 25)
    apart = ops.transpose(leaf("f32", 512, 512))
    assert price(cpu, ops.cpy(apart, leaf("f16", 512, 512))) > 512 * 512 * 1.1


def test_gradients_of_attention_cost_as_much_as_queries_meet_keys(cpu: aggml.Backend) -> None:
    """The cost grows with queries x keys x width, not with the size of the result."""

    def cost(width: int, queries: int, keys: int) -> int:
        q, k, v = f32(width, queries, 2), f32(width, keys, 2), f32(keys, width, 2)
        return price(cpu, ops.flash_attn_back(q, k, v, q, False))

    # Measured on a Zen 4: 2.6 to 8.9 ns for each pair of a query and a key, per element of the
    # head. The bytes that are moved cost a little more.
    products = 2 * 64 * 16 * 1024
    assert 0.9 * 5 * products < cost(64, 16, 1024) < 1.2 * 5 * products
    assert 1.8 < cost(64, 16, 2048) / cost(64, 16, 1024) < 2.2
    assert 1.8 < cost(128, 16, 1024) / cost(64, 16, 1024) < 2.2


@pytest.mark.parametrize("op", CASES)
async def test_large_operands_stay_off_the_loop(cpu: aggml.Backend, op: str) -> None:
    graph, values = leafs_of(op)
    cpu.alloc_graph(graph)
    for leaf, value in values.items():
        await cpu.set(leaf, value)
    plan = cpu.graph_plan(graph).plan
    assert isinstance(plan, Plan)
    nodes = [node for node in graph.nodes if UNITS[node.op] != "NOTHING"]
    assert plan.native.cost_ns >= sum(map(moved, nodes)) // BYTES_PER_NS
    await cpu.synchronize()
    before = _native.inline_work()
    future = cpu.graph_compute(graph)
    after = _native.inline_work()
    future.abort()
    assert after[0] - before[0] <= SUBMIT_NS
    assert op not in LARGE or after[0] == before[0]
    with contextlib.suppress(aggml.Aborted):
        await future


async def comes_to_be_done_here(be: aggml.Backend, call: Callable[[], aggml.Future[Any]]) -> bool:
    """Whether ``call`` is carried out by this thread. Tried again while a worker is still busy."""
    for _ in range(1000):
        before = _native.inline_work()[0]
        future = call()
        if future.done() and _native.inline_work()[0] > before:
            return True
        await future
        await be.synchronize()
    return False


async def test_the_timers_thread_leaves_what_is_large(cpu: aggml.Backend) -> None:
    big, small = f32(4 * MIB), vector(name="small")
    graphs = [Graph(ops.sum(big)), Graph(ops.neg(small))]
    cpu.alloc([big, small])
    for graph in graphs:
        cpu.alloc_graph(graph)

    async def done_by_timers(graph: Graph) -> bool:
        await cpu.synchronize()
        before = _native.inline_work()[1]
        # the delay begins at the release, when the graph is queued behind it
        with cpu.stream.hold():
            cpu.stream.delay(0.005)
            future = cpu.graph_compute(graph)
        await future
        spent = _native.inline_work()[1] - before
        assert spent <= TIMER_NS
        return spent > 60  # more than the end of the delay alone costs

    assert not any([await done_by_timers(graphs[0]) for _ in range(5)])
    for _ in range(1000):  # a worker that is awake may take the small graph first
        if await done_by_timers(graphs[1]):
            return
    raise AssertionError("the timers' thread leaves what is small, too")


async def test_small_work_is_done_by_who_submits(cpu: aggml.Backend) -> None:
    a = holding(cpu, ramp())
    y = ops.neg(a)
    graph = Graph(y)
    cpu.alloc_graph(graph)
    assert await comes_to_be_done_here(cpu, lambda: cpu.run(graph, {}, y))
    before = _native.inline_work()
    future = cpu.run(graph, {}, y)
    assert 0 < _native.inline_work()[0] - before[0] <= 1000
    assert np.array_equal(await future, -ramp())


async def test_one_call_does_no_more_than_its_budget(cpu: aggml.Backend) -> None:
    a = holding(cpu, np.zeros(4096, np.float32))
    assert await comes_to_be_done_here(cpu, lambda: cpu.get(a))
    before = _native.inline_work()
    with cpu.batch():
        futures = [cpu.get(a) for _ in range(1000)]
    assert _native.inline_work()[0] - before[0] <= SUBMIT_NS
    await aggml.gather(*futures)


# -- memory that is mapped from a file


def presence(memory: mmap.mmap, at: int, size: int) -> list[bool]:
    """For each page, whether it is in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0] + at
    start = address - address % mmap.PAGESIZE
    n = -(-(address + size - start) // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * n)()
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(n * mmap.PAGESIZE), found) == 0
    return [bool(x & 1) for x in found]


AT = 4 * MIB


@pytest.fixture
def cold(tmp_path: Path) -> mmap.mmap:
    """A mapped file whose byte AT is not in memory."""
    path = tmp_path / "weights"
    path.write_bytes(np.arange(2 * MIB, dtype=np.float32).tobytes())
    with path.open("rb") as file:
        os.fsync(file.fileno())
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        memory.madvise(mmap.MADV_RANDOM)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(presence(memory, AT, 4 * N)):
        pytest.skip("this file system keeps files in memory")
    return memory


async def test_a_small_get_of_a_cold_file_does_not_read_the_disk(
    cpu: aggml.Backend, cold: mmap.mmap
) -> None:
    t = vector(name="t")
    cpu.device.buffer_from_host(cold).place(t, AT)
    assert await comes_to_be_done_here(cpu, lambda: cpu.stream.mark())
    value = np.arange(AT // 4, AT // 4 + N, dtype=np.float32)
    before = _native.inline_work()
    got = cpu.get(t)
    assert _native.inline_work() == before
    assert np.array_equal(await got, value)
    assert await comes_to_be_done_here(cpu, lambda: cpu.get(t))  # now the page is in memory


async def test_a_small_plan_over_a_cold_file_does_not_read_the_disk(
    cpu: aggml.Backend, cold: mmap.mmap
) -> None:
    t, table = vector(name="t"), new_tensor("f32", ne=(N, 1024), name="table")
    buffer = cpu.device.buffer_from_host(cold)
    buffer.place(t, AT - MIB)  # on a page of its own: reading a page of the table would bring it in
    buffer.place(table, AT)
    buffer.usage = BufferUsage.WEIGHTS
    ids = new_tensor("i32", ne=1, name="ids")
    cpu.alloc([ids])
    await cpu.memset(ids, 0)
    row, minus = Graph(ops.get_rows(table, ids)), Graph(ops.neg(t))
    for graph in (row, minus):
        cpu.alloc_graph(graph)
        cpu.graph_plan(graph)
        await cpu.synchronize()
        before = _native.inline_work()
        future = cpu.graph_compute(graph)
        assert _native.inline_work() == before
        await future
    assert await comes_to_be_done_here(cpu, lambda: cpu.graph_compute(minus))


async def test_a_small_set_from_a_cold_file_does_not_read_the_disk(
    cpu: aggml.Backend, cold: mmap.mmap
) -> None:
    t = holding(cpu, ramp())
    part = np.frombuffer(cold, np.float32)[AT // 4 : AT // 4 + N]
    assert await comes_to_be_done_here(cpu, lambda: cpu.get(t))
    before = _native.inline_work()
    written = cpu.set(t, part)
    assert _native.inline_work() == before
    await written
    assert np.array_equal(await cpu.get(t), np.arange(AT // 4, AT // 4 + N, dtype=np.float32))
