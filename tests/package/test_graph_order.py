"""build_forward_expand, build_forward_order, build_forward_select: what is computed, what placed.

Not here: graphs by their ends (test_graph.py), gradients (tests/gradients).
"""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import aggml
from aggml import (
    Graph,
    Scheduler,
    Tensor,
    build_forward_expand,
    build_forward_order,
    build_forward_select,
    new_tensor,
    ops,
)

if TYPE_CHECKING:
    from aggml.devices.cpu import CPUBackend
    from aggml.devices.sim import SimBackend


def leaf(name: str, *ne: int) -> Tensor:
    return new_tensor("f32", ne or (4,), name).set_input()


def names(tensors: tuple[Tensor, ...]) -> list[str]:
    return [tensor.name for tensor in tensors]


class Choice:
    """Three ways to compute from x, and from an input of their own, of different sizes."""

    def __init__(self) -> None:
        self.x = leaf("x")
        self.own = [leaf(f"own_{i}", 4, 2**i) for i in range(3)]
        self.start = ops.sqr(self.x).set_name("start")
        self.ways = [
            ops.add(ops.repeat(self.start, own), own).set_name(f"way_{i}")
            for i, own in enumerate(self.own)
        ]

    def select(self, i: int) -> Graph:
        return build_forward_select(None, self.ways, i)

    @property
    def values(self) -> dict[Tensor, Any]:
        x = np.arange(4, dtype=np.float32)
        return {self.x: x, **{t: np.full(t.shape, 1, np.float32) for t in self.own}}

    def expected(self, i: int) -> Any:
        return np.tile(np.arange(4, dtype=np.float32) ** 2, (2**i, 1)) + 1


def test_expanding_adds_behind_and_changes_nothing() -> None:
    x = leaf("x")
    a = ops.sqr(x).set_name("a")
    graph = Graph(a)
    other = build_forward_expand(graph, ops.neg(a).set_name("b"))
    assert (names(graph.nodes), names(other.nodes)) == (["a"], ["a", "b"])
    assert names(other.ends) == ["a", "b"]
    assert other.whole is other
    assert other.uid != graph.uid
    assert names(build_forward_expand(None, a).nodes) == ["a"]


def test_ordered_nodes_are_not_computed_until_they_are_needed() -> None:
    x = leaf("x")
    late = ops.neg(x).set_name("late")
    early = ops.sqr(x).set_name("early")
    graph = build_forward_order(None, late)
    assert (graph.nodes, graph.ends, names(graph.whole.nodes)) == ((), (), ["late"])
    graph = build_forward_expand(graph, early)
    assert (names(graph.nodes), names(graph.whole.nodes)) == (["early"], ["late", "early"])
    graph = build_forward_expand(graph, ops.add(early, late).set_name("sum"))
    assert names(graph.nodes) == ["late", "early", "sum"]  # not the order of the sum's operands
    assert graph.whole is graph


@pytest.mark.parametrize("i", range(3))
def test_a_selection_computes_one_and_places_all(i: int, cpu: CPUBackend) -> None:
    choice = Choice()
    graph = choice.select(i)
    assert names(graph.ends) == [f"way_{i}"]
    assert "way_0" in names(graph.whole.nodes)
    assert {n.name for n in graph.nodes} & {"way_0", "way_1", "way_2"} == {f"way_{i}"}
    memory = cpu.alloc_graph(graph)
    assert all(way.placement is not None for way in choice.ways)
    needed = {choice.x: choice.values[choice.x], choice.own[i]: choice.values[choice.own[i]]}
    found = cpu.run(graph, needed, choice.ways[i]).get(60)
    assert np.array_equal(found.reshape(2**i, 4), choice.expected(i))
    memory.close()


@pytest.mark.parametrize("i", range(3))
def test_a_run_may_bring_the_inputs_of_all(i: int, cpu: CPUBackend) -> None:
    choice = Choice()
    graph = choice.select(i)
    cpu.alloc_graph(graph)
    by_name = {t.name: value for t, value in choice.values.items()}
    for given in (choice.values, by_name):
        found = cpu.run(graph, given, choice.ways[i]).get(60)
        assert np.array_equal(found.reshape(2**i, 4), choice.expected(i))


def test_all_selections_need_the_same_memory_at_the_same_places(cpu: CPUBackend) -> None:
    choice = Choice()
    graphs = [choice.select(i) for i in range(3)]
    allocator = aggml.GraphAllocator(cpu.buffer_type)
    sizes = {allocator.reserve_size(graph) for graph in graphs}
    assert len(sizes) == 1
    allocator.reserve(graphs[0])
    buffers = allocator.buffers
    places = set()
    for i, graph in enumerate(graphs):
        allocator.alloc_graph(graph)
        places.add(tuple([t.address for t in (*graph.whole.leafs, *graph.whole.nodes)]))
        found = cpu.run(graph, choice.values, choice.ways[i]).get(60)
        assert np.array_equal(found.reshape(2**i, 4), choice.expected(i))
    assert len(places) == 1
    assert allocator.buffers == buffers


def test_selections_can_be_placed_beside_each_other(cpu: CPUBackend) -> None:
    choice = Choice()
    graphs = [choice.select(i) for i in range(3)]
    kept = [cpu.alloc_graph(graph) for graph in graphs]
    for _ in range(2):
        for i, graph in enumerate(graphs):
            found = cpu.run(graph, choice.values, choice.ways[i]).get(60)
            assert np.array_equal(found.reshape(2**i, 4), choice.expected(i))
    del kept


@pytest.mark.anyio
async def test_a_scheduler_computes_the_selected_one(cpu: CPUBackend, sim: SimBackend) -> None:
    choice = Choice()
    async with Scheduler([sim, cpu]) as scheduler:
        for i in (0, 2, 1, 0):
            graph = choice.select(i)
            needed = {
                choice.x: choice.values[choice.x],
                choice.own[i]: choice.values[choice.own[i]],
            }
            found = await scheduler.run(graph, needed, choice.ways[i])
            assert np.array_equal(found.reshape(2**i, 4), choice.expected(i))


def test_a_selection_goes_on_from_a_graph(cpu: CPUBackend) -> None:
    choice = Choice()
    first = Graph(choice.start)
    graph = build_forward_select(first, choice.ways, 1)
    after = build_forward_expand(graph, ops.neg(choice.ways[1]).set_name("after"))
    assert names(after.nodes)[-2:] == ["way_1", "after"]
    assert {"way_0", "way_2"} <= set(names(after.whole.nodes))
    cpu.alloc_graph(after)
    found = cpu.run(after, choice.values, after.ends[-1]).get(60)
    assert np.array_equal(found.reshape(2, 4), -choice.expected(1))


def test_gradients_of_a_selection_keep_its_memory(cpu: CPUBackend) -> None:
    w = new_tensor("f32", 4, "w").set_param()
    ways = [ops.sum(ops.sqr(w)), ops.sum(ops.mul(ops.sqr(w), w))]
    value = np.arange(4, dtype=np.float32)
    for i, expected in enumerate((2 * value, 3 * value**2)):
        graph = build_forward_select(None, ways, i)
        back = aggml.build_backward_expand(graph, loss=ways[i])
        assert {*graph.whole.nodes} < {*back.whole.nodes}
        gradient = back.grad(w)
        assert gradient is not None
        memory = cpu.alloc_graph(back)
        cpu.graph_reset(back)
        assert np.array_equal(cpu.run(back, {w: value}, gradient).get(60), expected)
        memory.close()


def test_copies_know_what_they_leave_out() -> None:
    graph = Choice().select(1)
    for other in (copy.copy(graph), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert names(other.whole.nodes) == names(graph.whole.nodes)
        assert names(other.nodes) == names(graph.nodes)
        assert {*other.nodes} < {*other.whole.nodes}


@pytest.mark.parametrize(
    ("build", "args", "error", "text"),
    [
        (build_forward_select, (None, Choice().ways, 3), aggml.OutOfBounds, r"idx = 3 of 3"),
        (build_forward_select, (None, Choice().ways, -1), aggml.OutOfBounds, r"idx = -1 of 3"),
        (build_forward_select, (None, [], 0), aggml.OutOfBounds, r"idx = 0 of 0"),
        (build_forward_select, (None, 3, 0), aggml.InvalidHandle, r"tensors = 3"),
        (build_forward_select, (None, Choice().ways, "a"), aggml.InvalidHandle, r"idx = 'a'"),
        (build_forward_select, (None, [3], 0), aggml.InvalidHandle, r"3 is no tensor"),
        (build_forward_order, (None, 3), aggml.InvalidHandle, r"3 is no tensor"),
        (build_forward_order, (3, leaf("x")), aggml.InvalidHandle, r"3 is no Graph"),
        (build_forward_expand, (3, leaf("x")), aggml.InvalidHandle, r"3 is no Graph"),
        (build_forward_expand, (None,), aggml.InvalidArgument, r"no tensor"),
        (build_forward_order, (None,), aggml.InvalidArgument, r"no tensor"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    build: Any, args: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=rf"^\[{build.__name__}\] .*{text}"):
        build(*args)
