"""Offsets of intermediates: lifetimes, views, work in place; live tensors never overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory.memory_model import check_layout
from memory.paper import chain, intermediates, leaf, sized
from memory.random_graphs import graphs

from aggml import (
    Graph,
    InvalidArgument,
    ops,
)
from aggml.memory.allocator import (
    lay_out_scratch,
)


def test_a_chain_of_any_length_needs_two_tensors() -> None:
    graph, tensors = chain(50)
    layout = lay_out_scratch(graph, intermediates(graph), alignment=32)
    assert layout.size == 2 * 256
    assert set(layout.offsets) == set(tensors[1:-1])


def test_operations_in_place_need_one() -> None:
    x = leaf("x")
    y = x
    for _ in range(20):
        y = ops.silu(ops.scale(y, 2.0))
    graph = Graph(y)
    layout = lay_out_scratch(graph, intermediates(graph), alignment=32)
    assert layout.size == 256


def test_a_leaf_that_is_not_wanted_is_left_alone() -> None:
    x = leaf("x")
    a, b = ops.relu(x), ops.neg(x)
    graph = Graph(ops.cont(ops.mul(a, b)))
    layout = lay_out_scratch(graph, lambda t: t in {a, b}, alignment=32)
    assert set(layout.offsets) == {a, b}
    assert layout.offsets[a] != layout.offsets[b]


@pytest.mark.parametrize("reuse", [False, True])
def test_a_wanted_leaf_is_reused_only_if_told(reuse: bool) -> None:
    x = leaf("x").set_input()
    graph = Graph(ops.neg(ops.relu(x)))
    layout = lay_out_scratch(graph, lambda t: True, alignment=32, reuse_inputs=reuse)
    assert layout.size == (256 if reuse else 512)


@pytest.mark.parametrize(("position", "in_place"), [(0, True), (1, False)])
def test_a_view_is_taken_over_if_it_begins_where_its_storage_does(
    position: int, in_place: bool
) -> None:
    base = ops.cont(leaf("x", 8, 8))
    view = ops.view_2d(base, 8, 4, base.nb[1], position * base.nb[1])
    graph = Graph(ops.cont(ops.relu(view)))
    layout = lay_out_scratch(graph, intermediates(graph), alignment=32)
    assert layout.size == (256 if in_place else 256 + 128)


def test_a_view_keeps_its_storage() -> None:
    base = ops.cont(leaf("x"))
    view = ops.transpose(base)
    other = ops.cont(leaf("y"))
    graph = Graph(other, ops.cont(ops.add(other, ops.cont(view))))
    check_layout(graph, sized(graph, lay_out_scratch(graph, intermediates(graph), alignment=32)))


def test_a_storage_with_a_view_that_is_still_read_is_not_taken_over() -> None:
    base = ops.cont(leaf("x"))
    view = ops.reshape_2d(base, 8, 8)
    graph = Graph(ops.mul(view, ops.relu(base)))
    assert [node.op for node in graph.nodes] == ["cont", "reshape", "relu", "mul"]
    check_layout(graph, sized(graph, lay_out_scratch(graph, lambda t: True, alignment=32)))


def test_of_two_views_neither_is_taken_over_while_the_other_is_read() -> None:
    base = ops.cont(leaf("x"))
    one, two = ops.reshape_2d(base, 8, 8), ops.reshape_2d(base, 8, 8)
    graph = Graph(ops.mul(one, ops.relu(two)))
    assert [node.op for node in graph.nodes] == ["cont", "reshape", "reshape", "relu", "mul"]
    check_layout(graph, sized(graph, lay_out_scratch(graph, lambda t: True, alignment=32)))


def test_an_output_may_take_over_but_is_not_taken_over() -> None:
    result = ops.relu(ops.cont(leaf("x"))).set_output()
    graph = Graph(ops.cont(ops.neg(result)))
    layout = lay_out_scratch(graph, lambda t: t.op != "none", alignment=32)
    check_layout(graph, sized(graph, layout))
    assert layout.size == 3 * 256


def test_what_a_view_in_place_leaves_over_is_used_again() -> None:
    base = ops.cont(leaf("x", 8, 8))
    half = ops.relu(ops.view_2d(base, 8, 4, base.nb[1]))
    rest = ops.cont(half)
    graph = Graph(ops.cont(ops.add(half, rest)))
    layout = lay_out_scratch(graph, intermediates(graph), alignment=32)
    assert (layout.offsets[half], layout.offsets[rest], layout.size) == (0, 128, 256)


def test_a_node_that_needs_more_than_its_source_has_does_not_take_it_over() -> None:
    base = ops.cont(leaf("x"))
    graph = Graph(ops.cont(ops.relu(base)))
    layout = lay_out_scratch(
        graph,
        intermediates(graph),
        alignment=32,
        alloc_size=lambda t: t.nbytes + (64 if t.op == "relu" else 0),
    )
    assert layout.size == 256 + 320


@given(graph=graphs(), alignment=st.sampled_from([8, 32, 64]))
def test_scratch_never_overlaps_what_is_alive(graph: Graph, alignment: int) -> None:
    layout = lay_out_scratch(graph, intermediates(graph), alignment=alignment)
    assert all(offset % alignment == 0 for offset in layout.offsets.values())
    check_layout(graph, sized(graph, layout))


@given(graph=graphs(), reuse=st.booleans())
def test_nothing_overlaps_if_leafs_and_results_are_planned_too(graph: Graph, reuse: bool) -> None:
    layout = lay_out_scratch(graph, lambda t: True, alignment=32, reuse_inputs=reuse)
    check_layout(graph, sized(graph, layout), leafs_must_last=not reuse)


@pytest.mark.long
@given(graph=graphs())
def test_scratch_is_no_more_than_all_tensors_side_by_side(graph: Graph) -> None:
    wanted = intermediates(graph)
    layout = lay_out_scratch(graph, wanted, alignment=32)
    assert layout.size <= sum(-(-t.nbytes // 32) * 32 for t in wanted)


def test_sizes_of_the_buffer_type_count() -> None:
    graph, tensors = chain(4)
    layout = lay_out_scratch(
        graph, intermediates(graph), alignment=128, alloc_size=lambda t: t.nbytes + 1
    )
    assert layout.size == 2 * 384
    assert {layout.offsets[t] % 128 for t in tensors[1:-1]} == {0}


def test_empty_tensors_take_nothing() -> None:
    x = leaf("x", 0, 4)
    graph = Graph(ops.cont(ops.cont(x)))
    layout = lay_out_scratch(graph, lambda t: True, alignment=32)
    assert layout.size == 0


@pytest.mark.parametrize("alignment", [0, -32, 24])
def test_an_alignment_is_a_power_of_two(alignment: int) -> None:
    graph, _ = chain(2)
    with pytest.raises(InvalidArgument, match=str(alignment)):
        lay_out_scratch(graph, lambda t: True, alignment=alignment)


def test_a_buffer_type_that_says_too_little_is_refused() -> None:
    graph, _ = chain(2)
    with pytest.raises(InvalidArgument, match="f32"):
        lay_out_scratch(graph, lambda t: True, alignment=32, alloc_size=lambda t: t.nbytes - 1)
