"""Which nodes are fused: each condition that forbids it, and how a printed plan shows it.

Not here: what fused nodes compute (tests/ops/test_chain.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import aggml
from aggml import Graph, GraphAllocator, Tensor, new_tensor, ops
from aggml.plan import compile_plan
from aggml.plan.fusion import find_chains
from aggml.stream.slices import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT = 15.0


@pytest.fixture
def be() -> Iterator[aggml.Backend]:
    with aggml.get_device("CPU").backend(n_threads=2) as opened:
        yield opened


def leaf(*ne: int, dtype: str = "f32") -> Tensor:
    return new_tensor(dtype, ne=ne)


def two() -> tuple[Tensor, Tensor]:
    """A product and a sum that can be fused with it."""
    product = ops.mul_mat(leaf(64, 48), leaf(64, 5))
    return product, ops.add(product, leaf(48))


def chains(*ends: Tensor, at: dict[Tensor, tuple[int, int]] | None = None) -> list[list[str]]:
    """The fused chains of a graph, as op names. Tensors lie apart, except those in ``at``."""
    graph = Graph(*ends)
    places = {
        t: (i << 32, (i << 32) + t.nbytes) for i, t in enumerate((*graph.leafs, *graph.nodes))
    }
    places.update(at or {})

    def span(tensor: Tensor) -> tuple[bool, int, int]:
        start, end = places[tensor.root]
        if tensor.root is tensor:
            return True, start, end
        return True, start + tensor.view_offs, start + tensor.view_offs + tensor.nbytes

    found = finish(find_chains(graph, span)).chains
    return [[node.op for node in chain.nodes] for chain in found.values()]


def test_what_one_node_reads_is_fused() -> None:
    _, total = two()
    assert chains(total) == [["mul_mat", "add"]]


def other_reader() -> tuple[Tensor, ...]:
    product, total = two()
    return (total, ops.mul_mat(leaf(48, 32), product))


def an_end() -> tuple[Tensor, ...]:
    product, total = two()
    return (total, product)


def an_output() -> tuple[Tensor, ...]:
    product, total = two()
    product.set_output()
    return (total,)


def viewed() -> tuple[Tensor, ...]:
    product, total = two()
    return (total, ops.reshape_1d(product, 240))


def read_twice() -> tuple[Tensor, ...]:
    product, _ = two()
    return (ops.mul(product, product),)


def written_elsewhere() -> tuple[Tensor, ...]:
    """The product is copied into a tensor of the user, a leaf; the sum reads that view."""
    product, _ = two()
    kept = ops.cpy(product, leaf(48, 5))
    return (ops.add(kept, leaf(48)),)


def other_type() -> tuple[Tensor, ...]:
    x = ops.cast(leaf(48, 5), "f16")
    return (ops.add(ops.add(x, leaf(48, dtype="f16")), leaf(48, dtype="f16")),)


def other_shape() -> tuple[Tensor, ...]:
    return (ops.sum_rows(ops.sqr(leaf(64, 5))),)


def part_repeats() -> tuple[Tensor, ...]:
    product, _ = two()
    return (ops.add(product, leaf(24)),)


def turned() -> tuple[Tensor, ...]:
    return (ops.add(leaf(64, 64), ops.transpose(ops.relu(leaf(64, 64)))),)


def of_whole_columns() -> tuple[Tensor, ...]:
    product, _ = two()
    return (ops.rms_norm(product, 1e-6),)


def alibi() -> tuple[Tensor, ...]:
    return (ops.soft_max_ext(ops.scale(leaf(64, 5, 2), 2.0), leaf(64, 5), 1.0, 8.0),)


FORBIDDEN = [
    *(other_reader, an_end, an_output, viewed, read_twice, written_elsewhere, other_type),
    *(other_shape, part_repeats, turned, of_whole_columns, alibi),
]


@pytest.mark.parametrize("build", FORBIDDEN)
def test_not_fused(build: Callable[[], tuple[Tensor, ...]]) -> None:
    assert chains(*build()) == []


def test_an_output_in_the_middle_ends_a_chain() -> None:
    product, total = two()
    end = ops.sqr(ops.gelu(total.set_output()))
    assert chains(end) == [["mul_mat", "add"], ["gelu", "sqr"]]
    assert product.op == "mul_mat"


def test_not_where_the_result_lies_on_an_operand() -> None:
    """The allocator may place a result over a tensor whose last reader is an earlier fused node."""
    x = leaf(64, 64)
    product = ops.mul_mat(leaf(64, 64), x)
    total = ops.add(product, leaf(64))
    place = (1 << 20, (1 << 20) + x.nbytes)
    assert chains(total, at={x: place, total: place}) == []
    assert chains(ops.gelu(total), at={x: place, total: place}) == [["mul_mat", "add", "gelu"]]


def test_rows_may_lie_where_the_first_node_reads_them_and_not_elsewhere() -> None:
    x, y = leaf(64, 64), leaf(64, 64)
    square = ops.sqr(ops.add(x, y))
    place = (1 << 20, (1 << 20) + x.nbytes)
    assert chains(square, at={x: place, square: place}) == [["add", "sqr"]]
    assert chains(square, at={y: place, square: place}) == [["add", "sqr"]]
    shifted = (place[0] + 256, place[1] + 256)
    assert chains(square, at={x: place, square: shifted}) == []
    late = ops.mul(ops.relu(x), y)
    assert chains(late, at={y: place, late: place}) == []


def test_not_where_a_node_in_between_writes_what_is_read() -> None:
    x, y = leaf(64, 5), leaf(64, 5)
    one, other = ops.mul_mat(leaf(64, 48), x), ops.mul_mat(leaf(64, 48), y)
    both = ops.sub(one, other)
    assert [n.op for n in Graph(both).nodes] == ["mul_mat", "mul_mat", "sub"]

    def lead(at: dict[Tensor, tuple[int, int]]) -> Tensor:
        def span(tensor: Tensor) -> tuple[bool, int, int]:
            start, end = at.get(tensor, (id(tensor) << 16, (id(tensor) << 16) + tensor.nbytes))
            return True, start, end

        (chain,) = finish(find_chains(Graph(both), span)).chains.values()
        return chain.nodes[0]

    assert lead({}) is one
    place = (1 << 20, (1 << 20) + 960)
    # if `one` were computed last, it would read x after `other` has overwritten it
    assert lead({x: place, other: place}) is other
    # nor may `other` overwrite the memory of `one` before `one` is used
    assert lead({one: place, other: place}) is other


def test_memory_of_the_user_is_written(be: aggml.Backend) -> None:
    """A node placed by a GraphAllocator can be read afterwards, so each one is stored."""
    _, total = two()
    graph = Graph(total)
    GraphAllocator(be.buffer_type).alloc_graph(graph)
    assert [s.op for s in be.graph_plan(graph).plan.steps] == ["mul_mat", "add"]


def test_named_addresses_are_written() -> None:
    _, total = two()
    assert [s.op for s in compile_plan(Graph(total), lambda _: 64).steps] == ["mul_mat", "add"]


def test_the_reference_computes_each_node() -> None:
    _, total = two()
    graph = Graph(total)
    with aggml.get_device("CPU").backend(use_ref=True) as reference:
        reference.alloc_graph(graph)
        steps = reference.graph_plan(graph).plan.steps
    assert [step.op for step in steps] == ["mul_mat", "add"]


def test_a_plan_says_what_is_fused(be: aggml.Backend) -> None:
    product, total = two()
    total.set_name("total")
    graph = Graph(ops.get_rows(total, leaf(2, dtype="i32")))
    be.alloc_graph(graph)
    plan = be.graph_plan(graph).plan
    if getattr(be, "cpu", 0) == 0:
        pytest.skip("the exact kernels are in use, which fuse nothing")
    assert next((s.op, s.node) for s in plan.steps) == ("mul_mat+add", "total")
    assert "mul_mat+add" in str(plan)
    assert product.name not in str(plan)


async def test_who_fails_is_named_behind_fused_nodes(be: aggml.Backend) -> None:
    _, total = two()
    ids = leaf(2, dtype="i32")
    rows = ops.get_rows(total, ids).set_name("rows")
    graph = Graph(rows)
    be.alloc_graph(graph)
    for t in graph.leafs:
        if t is not ids:
            be.set(t, np.zeros(t.shape, np.float32))
    with pytest.raises(aggml.OutOfBounds, match=r"rows.*node 2 \(get_rows\)"):
        await be.run(graph, {ids: np.array([0, 5], np.int32)}, rows)


async def test_who_watches_sees_every_value(be: aggml.Backend) -> None:
    product, total = two()
    end = ops.gelu(total)
    graph = Graph(end)
    x = {
        t: np.random.default_rng(i).normal(size=t.shape).astype(np.float32)
        for i, t in enumerate(graph.leafs)
    }
    seen: dict[Tensor, np.ndarray] = {}
    async with aggml.Scheduler([be]) as sched:

        def watch(node: Tensor, ask: bool) -> bool:
            if not ask:
                assert sched.observed is not None
                seen[node] = sched.observed.copy()
            return True

        (unwatched,) = await sched.run(graph, x, [end])
        sched.set_eval_callback(watch)
        (watched,) = await sched.run(graph, x, [end])
    np.testing.assert_array_equal(watched, unwatched)
    assert set(seen) == {product, total, end}
    weight, y = product.src
    assert weight is not None
    assert y is not None
    np.testing.assert_allclose(seen[product], x[y] @ x[weight].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("parallel", [False, True])
async def test_a_scheduler_fuses_what_it_alone_reads(be: aggml.Backend, parallel: bool) -> None:
    product, total = two()
    graph = Graph(ops.gelu(total), product.set_output())
    x = {t: np.ones(t.shape, np.float32) for t in graph.leafs}
    async with aggml.Scheduler([be], parallel=parallel) as sched:
        values = await sched.run(graph, x, [*graph.ends, product])
    np.testing.assert_array_equal(values[1], np.full((5, 48), 64.0))
    np.testing.assert_allclose(values[0], np.full((5, 48), 65.0))


async def test_what_no_step_takes_is_computed_one_by_one(
    be: aggml.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the step of a product accepts no norm
    monkeypatch.setattr("aggml.plan.fusion._WHOLE_ROWS", frozenset())
    _, total = two()
    graph = Graph(ops.rms_norm(total, 0.0))
    be.alloc_graph(graph)
    assert [s.op for s in be.graph_plan(graph).plan.steps] == ["mul_mat", "add", "rms_norm"]
    x = {t: np.ones(t.shape, np.float32) for t in graph.leafs}
    y = await be.run(graph, x, graph.ends[0])
    np.testing.assert_allclose(y, np.ones((5, 48)), rtol=1e-6)


def test_columns_are_what_one_product_alone_reads() -> None:
    def columns(*ends: Tensor) -> set[Tensor]:
        def span(tensor: Tensor) -> tuple[bool, int, int]:
            return True, id(tensor) << 16, (id(tensor) << 16) + tensor.nbytes

        return {*finish(find_chains(Graph(*ends), span)).columns}

    product, total = two()
    weights = leaf(48, 7)
    y = ops.mul_mat(weights, total)
    assert columns(y) == {total}
    assert columns(y, total) == set()
    assert columns(ops.mul_mat(total, leaf(48, 7))) == set()  # here the sum supplies the rows
    assert columns(y, ops.scale(total, 2.0)) == set()
    assert columns(ops.mul_mat(weights, leaf(48, 5))) == set()
    assert columns(ops.mul_mat(weights, ops.reshape_2d(total, 48, 5))) == set()
    other = ops.add(product, leaf(48)).set_output()
    assert columns(ops.mul_mat(weights, other)) == set()
