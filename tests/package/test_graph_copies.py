"""copy, deepcopy and pickle of graphs and tensors: another uid, no memory, the same results.

Not here: clones on another backend, with contents (test_compare.py).
"""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml import Graph, InvalidHandle, new_tensor, ops

if TYPE_CHECKING:
    from collections.abc import Callable


def through_pickle(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


WAYS: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, through_pickle]
DEEP = WAYS[1:]


def small() -> Graph:
    w = new_tensor("f32", (4, 3), "w")
    x = new_tensor("f32", (4, 1), "x").set_input()
    y = ops.add(ops.mul_mat(w, x), ops.view_1d(w, 3, 4)).set_name("y")
    return Graph(y, ops.soft_max(y).set_output())


def results(graph: Graph) -> list[np.ndarray[Any, Any]]:
    with aggml.get_device("CPU").backend() as be:
        be.alloc_graph(graph)
        values = {
            "w": np.arange(12, dtype=np.float32).reshape(3, 4),
            "x": np.ones((1, 4), np.float32),
        }
        run = be.run(graph, values, list(graph.ends))
        assert run.wait(60)
        return run.result()


@pytest.mark.parametrize("again", WAYS)
def test_no_two_graphs_have_one_uid(again: Callable[[Any], Any]) -> None:
    graph = small()
    others = [again(graph) for _ in range(3)] + [again(again(graph))]
    assert len({graph.uid, *[other.uid for other in others]}) == 5
    assert 0 not in {other.uid for other in others}


@pytest.mark.parametrize("again", WAYS)
def test_a_copy_computes_the_same(again: Callable[[Any], Any]) -> None:
    graph = small()
    other = again(graph)
    assert [(n.op, n.name, n.ne, n.ndim, n.nb, n.op_params, n.flags) for n in other.nodes] == [
        (n.op, n.name, n.ne, n.ndim, n.nb, n.op_params, n.flags) for n in graph.nodes
    ]
    for mine, its in zip(
        results(graph), results(other if again is not copy.copy else small()), strict=True
    ):
        assert np.array_equal(mine, its)


def test_a_shallow_copy_has_the_same_tensors() -> None:
    graph = small()
    other = copy.copy(graph)
    assert (other.nodes, other.leafs, other.ends) == (graph.nodes, graph.leafs, graph.ends)
    assert other.use_count(graph.leafs[0]) == graph.use_count(graph.leafs[0])


@pytest.mark.parametrize("again", DEEP)
def test_a_deep_copy_has_other_tensors_and_no_memory(again: Callable[[Any], Any]) -> None:
    graph = small()
    with aggml.get_device("CPU").backend() as be:
        memory = be.alloc_graph(graph)
        other, y, leafs = again((graph, graph.ends[0], graph.leafs))
        assert other.memory is None
        assert graph.memory is memory
        assert y is other.ends[0]  # objects that are copied together refer to each other
        assert leafs == other.leafs
        assert not {*other.nodes, *other.leafs} & {*graph.nodes, *graph.leafs}
        assert all(t.placement is None and t.buffer is None for t in (*other.leafs, *other.nodes))
        be.alloc_graph(other)
        assert None is not other.ends[0].address != graph.ends[0].address
    with pytest.raises(aggml.InvalidState):
        other.ends[0].set_name("frozen")


@pytest.mark.parametrize("again", DEEP)
def test_a_long_graph_needs_no_deep_stack(again: Callable[[Any], Any]) -> None:
    y = new_tensor("f32", 4)
    for _ in range(5000):
        y = ops.sqr(y)
    graph = again(Graph(y))
    assert len(graph) == 5000
    assert graph.nodes[-1] is graph.ends[0]


@pytest.mark.parametrize("again", WAYS)
def test_a_part_of_a_graph(again: Callable[[Any], Any]) -> None:
    part = small().part(0, 2)
    other = again(part)
    assert (len(other), other.uid != part.uid) == (2, True)


@pytest.mark.parametrize("again", DEEP)
def test_a_tensor_alone(again: Callable[[Any], Any]) -> None:
    t = new_tensor("q4_K", (256, 1), "t")
    with aggml.get_device("CPU").backend() as be:
        be.alloc([t])
        other = again(t)
    assert (other.dtype, other.ne, other.shape, other.name) == (t.dtype, t.ne, t.shape, "t")
    assert other is not t
    assert other.placement is None


def test_nodes_that_call_functions_are_copied_but_not_pickled() -> None:
    calls = []

    def double(dst: Any, a: Any, *_: Any) -> None:
        calls.append(1)
        dst[...] = 2 * a

    x = new_tensor("f32", 4, "x")
    other = copy.deepcopy(Graph(ops.map_custom1(x, double, 1)))
    with aggml.get_device("CPU").backend() as be:
        be.alloc_graph(other)
        run = be.run(other, {"x": np.ones(4, np.float32)}, other.ends[0])
        assert run.wait(60)
        assert np.array_equal(run.result(), np.full(4, 2))
    assert calls
    with pytest.raises(InvalidHandle, match=r"double.*pickled"):
        pickle.dumps(other)
