"""Which steps of a plan run at the same time: never two that touch the same bytes.

Not here: results of nodes (tests/ops), with any number of threads (tests/ops/test_threads.py).
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aggml
from aggml import Graph, Tensor, new_tensor, ops
from aggml.memory.allocator import lay_out_scratch
from aggml.native import cpu_mask
from aggml.plan import compile_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggml.plan import Plan

WIDE, NARROW = 512, 16  # a product of WIDE matrices has many chunks, one of NARROW matrices has one

fast = pytest.mark.skipif(
    cpu_mask(None) == 0, reason="the exact kernels are in use: a barrier between any two nodes"
)


def leaf(*ne: int, dtype: str = "f32") -> Tensor:
    return new_tensor(dtype, ne=ne)


def apart(*ends: Tensor) -> Plan:
    """The plan of a graph whose tensors do not overlap."""
    graph = Graph(*ends)
    where = {t: (i + 1) << 32 for i, t in enumerate((*graph.leafs, *graph.nodes))}
    return compile_plan(graph, where.__getitem__)


def phases(plan: Plan) -> list[set[str]]:
    """For each phase the names of the nodes in it, which run at the same time."""
    found: list[set[str]] = []
    for step in plan.steps:
        if step.beside:
            found[-1].add(step.node)
        else:
            found.append({step.node})
    return found


@fast
def test_products_of_the_same_columns_are_one_phase() -> None:
    x, position = leaf(WIDE, 32), leaf(32, dtype="i32")
    q, k, v = (ops.mul_mat(leaf(WIDE, WIDE), x).set_name(name) for name in "qkv")
    q3, k3 = (ops.reshape_3d(t, 64, WIDE // 64, 32) for t in (q, k))
    turned = [ops.rope(t, position, 64) for t in (q3, k3)]
    plan = apart(turned[0], turned[1], v)
    assert {"q", "k", "v"} in phases(plan)
    assert [s.op for s in plan.steps][-2:] == ["rope", "rope"]


@fast
def test_what_reads_a_product_comes_behind_it() -> None:
    x = leaf(WIDE, WIDE)
    for _ in range(4):
        x = ops.mul_mat(leaf(WIDE, WIDE), x)
    assert not any(step.beside for step in apart(x).steps)


@fast
def test_a_step_of_sgd_writes_its_result_alone_and_lets_others_run_beside_it() -> None:
    """It used to be listed with the ops that write more than their result, as adamw's step does."""
    x = leaf(WIDE, 32)
    a = ops.mul_mat(leaf(WIDE, WIDE), x).set_name("a")
    step = ops.opt_step_sgd(leaf(16).set_param(), leaf(16), leaf(2)).set_name("step")
    b = ops.mul_mat(leaf(WIDE, WIDE), x).set_name("b")
    assert {"a", "b"} in phases(apart(a, step, b))


@fast
def test_a_convolution_of_states_looks_at_no_data_and_keeps_no_order() -> None:
    """ssm_conv used to be listed with the ops that check indices before they start."""
    x = leaf(WIDE, 32)
    a = ops.mul_mat(leaf(WIDE, WIDE), x).set_name("a")
    conv = ops.ssm_conv(leaf(6, 8, 1), leaf(4, 8)).set_name("conv")
    kept = ops.cpy(conv, leaf(8, 3, 1)).set_name("kept")
    b = ops.mul_mat(leaf(WIDE, WIDE), x).set_name("b")
    assert {"a", "b"} in phases(apart(a, kept, b))


@fast
def test_small_nodes_that_do_not_need_each_other_run_together() -> None:
    x = leaf(4096)
    apart_from_each_other = [ops.gelu(x).set_name(f"n{i}") for i in range(12)]
    assert {f"n{i}" for i in range(12)} in phases(apart(*apart_from_each_other))
    # a few of them take less than what their phase would cost
    assert not any(step.beside for step in apart(*(ops.gelu(x) for _ in range(2))).steps)


@fast
def test_small_nodes_of_which_two_meet_keep_their_order() -> None:
    x = leaf(4096)
    some = [ops.gelu(x) for _ in range(12)]
    plan = apart(*some, ops.silu(some[3]))
    assert not any(step.beside for step in plan.steps)
    for checked in (ops.get_rows(leaf(4096, 2), leaf(1, dtype="i32")), ops.cpy(x, leaf(4096))):
        assert not any(
            step.beside for step in apart(*(ops.gelu(x) for _ in range(12)), checked).steps
        )


def test_the_reference_keeps_the_order_of_nodes() -> None:
    x = leaf(WIDE, 32)
    a, b = (ops.mul_mat(leaf(WIDE, WIDE), x) for _ in range(2))
    graph = Graph(ops.relu(a), ops.relu(b))
    where = {t: (i + 1) << 32 for i, t in enumerate((*graph.leafs, *graph.nodes))}
    steps = compile_plan(graph, where.__getitem__, isa="scalar").steps
    assert not any(step.beside for step in steps)
    names = list(dict.fromkeys(step.node for step in steps))
    assert names == [node.name for node in graph.nodes]


@st.composite
def packed(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[Graph, dict[Tensor, int]]:
    """A random graph that also writes leafs. Its intermediates reuse memory as scratch does."""
    values: dict[int, list[Tensor]] = {n: [leaf(n, n), leaf(n, n)] for n in (WIDE, NARROW)}
    for _ in range(draw(st.integers(2, 24))):
        n = draw(st.sampled_from([WIDE, NARROW]))
        here = values[n]
        a, b = (draw(st.sampled_from(here[-5:])) for _ in "ab")
        kind = draw(st.sampled_from(["mul_mat", "mul_mat", "add", "gelu", "gelu_inplace", "half"]))
        if kind == "half":  # half of b is copied into half of a, which may be a leaf
            source = ops.view_2d(b, n, n // 2, b.nb[1], n // 2 * b.nb[1])
            copied = ops.cpy(source, ops.view_2d(a.root, n, n // 2, 4 * n, 0))
            quarter = ops.view_2d(copied, n // 2, n // 2, 4 * n, 0)
            here.append(ops.pad(quarter, n // 2, n // 2, 0, 0))
        elif kind in {"mul_mat", "add"}:
            here.append(getattr(ops, kind)(a, b))
        else:
            here.append(getattr(ops, kind)(a))
    graph = Graph(*(ops.relu(tensors[-1]) for tensors in values.values()))
    scratch = lay_out_scratch(graph, lambda t: t.op != "none", alignment=64)
    at = {t: (1 << 40) + offset for t, offset in scratch.offsets.items()}
    at |= {t: (i + 1) << 30 for i, t in enumerate(graph.leafs)}
    return graph, at


def touched(node: Tensor, at: dict[Tensor, int]) -> tuple[range, list[range]]:
    """The bytes that a node writes, and those that it reads."""

    def of(tensor: Tensor) -> range:
        start = at[tensor.root] + tensor.view_offs
        return range(start, start + tensor.nbytes)

    return of(node), [of(source) for source in node.src if source is not None]


def meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


@pytest.mark.long
@given(packed())
def test_nodes_whose_bytes_meet_keep_their_order(drawn: tuple[Graph, dict[Tensor, int]]) -> None:
    graph, at = drawn
    plan = compile_plan(graph, at.__getitem__)
    phase: dict[str, list[int]] = {}
    order: dict[str, list[int]] = {}
    number = -1
    for i, step in enumerate(plan.steps):
        number += not step.beside
        phase.setdefault(step.node, []).append(number)
        order.setdefault(step.node, []).append(i)
    nodes = [n for n in graph.nodes if n.op not in {"none", "view", "reshape"}]
    assert set(order) == {node.name for node in nodes}
    for a, b in combinations(nodes, 2):
        (wrote, read), (writes, reads) = touched(a, at), touched(b, at)
        if (
            meet(wrote, writes)
            or any(meet(wrote, r) for r in reads)
            or any(meet(r, writes) for r in read)
        ):
            assert phase[a.name][-1] < phase[b.name][0], (a, b)
    for steps in order.values():
        assert all(a < b for a, b in pairwise(steps))


@pytest.mark.parametrize("first", [True, False])
async def test_what_outlives_the_graph_is_written_in_the_order_of_refusals(first: bool) -> None:
    """A bad row index stops the nodes behind it; the nodes before it have been written."""
    kept, ids, table = leaf(8, 4), leaf(2, dtype="i32"), leaf(8, 4)
    with aggml.get_device("CPU").backend(n_threads=2) as be:
        be.alloc([kept, ids, table])
        be.set(kept, np.zeros((4, 8), np.float32))
        be.set(table, np.ones((4, 8), np.float32))
        ends = [ops.cpy(table, kept), ops.get_rows(table, ids)]
        graph = Graph(*(ends if first else reversed(ends)))
        be.alloc_graph(graph)
        be.set(ids, np.array([0, 9], np.int32))
        with pytest.raises(aggml.OutOfBounds):
            await be.graph_compute(graph)
        # all of it was written, but by a graph that failed: without `accept` it cannot be read
        be.accept(kept)
        assert (await be.get(kept)).mean() == float(first)
