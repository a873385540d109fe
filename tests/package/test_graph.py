"""Graphs: order of nodes and leafs as ggml has it, freezing, names, uids, depth."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from corpus_loader import allocator_cases
from memory.recorded_graphs import buildable, make_graph

from aggml import Graph, InvalidArgument, InvalidHandle, InvalidState, Tensor, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable


def leaf(name: str, *ne: int) -> Tensor:
    return new_tensor("f32", ne=ne or (4, 4), name=name)


def names(tensors: tuple[Tensor, ...]) -> list[str]:
    return [tensor.name for tensor in tensors]


@pytest.mark.parametrize(
    "case", [c for c in allocator_cases() if buildable(c)], ids=lambda case: case["id"]
)
def test_order_of_recorded_graphs(case: dict[str, Any]) -> None:
    graph, tensors = make_graph(case)
    assert names(graph.nodes) == case["order"]
    for name, node in case["nodes"].items():
        assert tensors[name].ne == tuple(node["ne"])
        assert tensors[name].dtype.type_name == node["type"]


def test_sources_come_first_in_order_depth_first() -> None:
    a, b, c = leaf("a"), leaf("b"), leaf("c")
    left = ops.relu(b).set_name("left")
    right = ops.mul(c, a).set_name("right")
    top = ops.add(left, right).set_name("top")
    graph = Graph(top)
    assert names(graph.nodes) == ["left", "right", "top"]
    assert names(graph.leafs) == ["b", "c", "a"]


def test_ends_are_expanded_one_after_the_other() -> None:
    a = leaf("a")
    one = ops.relu(a).set_name("one")
    two = ops.sqr(a).set_name("two")
    three = ops.add(one, two).set_name("three")
    graph = Graph(two, three, two)
    assert names(graph.nodes) == ["two", "one", "three"]
    assert graph.ends == (two, three, two)
    assert names(graph.leafs) == ["a"]


def test_views_are_nodes_and_their_storage_a_leaf() -> None:
    cache = leaf("cache", 4, 8)
    row = ops.view_1d(cache, 4, offset=16)
    written = ops.cpy(leaf("new", 4), row)
    graph = Graph(written)
    assert names(graph.nodes) == ["cache (view)", "new (copy of cache (view))"]
    assert names(graph.leafs) == ["new", "cache"]


def test_a_missing_operand_is_passed_over() -> None:
    a, sinks = leaf("a"), leaf("sinks", 1)
    node = ops.soft_max_add_sinks(ops.soft_max_ext(a), sinks)
    assert node.src == (a, None, sinks)
    graph = Graph(node)
    assert names(graph.leafs) == ["a", "sinks"]
    assert graph.use_count(sinks) == 1


def test_a_leaf_alone_is_a_graph() -> None:
    a = leaf("a")
    graph = Graph(a)
    assert graph
    assert len(graph) == 0
    assert graph.leafs == (a,)


def test_a_parameter_counts_as_a_node() -> None:
    a = leaf("a").set_param()
    graph = Graph(ops.relu(a))
    assert graph.leafs == ()
    assert graph.nodes[0] is a


def test_tensors_without_name_get_one() -> None:
    a = new_tensor("f32", 4)
    graph = Graph(ops.neg(ops.relu(a)))
    assert names(graph.leafs) == ["leaf_0"]
    assert names(graph.nodes) == ["node_0", "node_1"]


def test_tensors_may_be_in_several_graphs() -> None:
    a = leaf("a")
    shared = ops.relu(a)
    first = Graph(ops.neg(shared))
    second = Graph(ops.sqr(shared))
    assert first.nodes[0] is second.nodes[0] is shared
    assert shared.name == "node_0"


def test_use_counts() -> None:
    a = leaf("a")
    b = ops.relu(a)
    graph = Graph(ops.add(b, b), ops.neg(a))
    assert graph.use_count(a) == 2
    assert graph.use_count(b) == 2
    assert graph.use_count(graph.ends[0]) == 0
    assert graph.use_count(leaf("other")) == 0


def test_uids_differ_and_are_never_0() -> None:
    a = leaf("a")
    uids = [Graph(a).uid for _ in range(10)]
    assert uids == sorted(set(uids))
    assert 0 not in uids


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^\[Graph\] "):
        Graph()
    with pytest.raises(InvalidHandle, match=r"^\[Graph\] "):
        Graph([leaf("a")])  # type: ignore[arg-type]


def test_a_circle_is_refused_and_nothing_is_frozen() -> None:
    a = leaf("a", 4, 4, 4)
    node = ops.soft_max_ext(a)
    ops.soft_max_add_sinks(node, ops.cont(ops.view_1d(node, 4)))
    with pytest.raises(InvalidArgument, match="depends on itself"):
        Graph(node)
    a.set_name("still open")
    ops.soft_max_add_sinks(node, None)
    assert len(Graph(node)) == 1


def test_functions_that_change_a_node_refuse_one_in_a_graph() -> None:
    a = leaf("a", 4, 4, 2)
    product = ops.mul_mat(a, a)
    soft = ops.soft_max_ext(a)
    attention = ops.flash_attn_ext(a, a, a)
    Graph(product, soft, attention)
    sinks = leaf("sinks", 2)
    changes: tuple[Callable[[], Tensor], ...] = (
        lambda: ops.mul_mat_set_prec(product, "f32"),
        lambda: ops.soft_max_add_sinks(soft, sinks),
        lambda: ops.flash_attn_ext_set_prec(attention, "f32"),
        lambda: ops.flash_attn_ext_add_sinks(attention, sinks),
    )
    for change in changes:
        with pytest.raises(InvalidState, match="Graph"):
            change()


@pytest.mark.long
def test_a_chain_of_a_hundred_thousand_nodes() -> None:
    tensor = leaf("a", 1)
    for _ in range(100_000):
        tensor = ops.neg(tensor)
    graph = Graph(tensor)
    assert len(graph) == 100_000
    assert graph.nodes[-1] is tensor
    reference = weakref.ref(graph)
    del graph, tensor  # freeing them does not recurse either
    gc.collect()
    assert reference() is None


def test_repr_counts() -> None:
    a = leaf("a")
    graph = Graph(ops.relu(a).set_name("y"))
    assert repr(graph) == f"<Graph {graph.uid}: 1 nodes, 1 leafs, for y f32 [4, 4]>"
