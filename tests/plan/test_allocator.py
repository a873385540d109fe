"""Offsets of tensors: never wrong, never larger than ggml's; the allocators that place them."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from corpus_loader import allocator_cases
from hypothesis import given
from hypothesis import strategies as st
from plan.memory_model import check_plan
from plan.random_graphs import graphs
from plan.recorded_graphs import buildable, make_graph

from aggml import (
    AllocFailed,
    AlreadyAllocated,
    Buffer,
    BufferType,
    BufferUsage,
    CapacityExceeded,
    Graph,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    Tensor,
    new_tensor,
    ops,
)
from aggml.allocator import (
    AllocPlan,
    GraphAllocator,
    TensorAllocator,
    plan_graph,
    plan_scratch,
)
from aggml.allocator.arena import Arena, Chunk

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = [pytest.param(c, id=c["id"]) for c in allocator_cases() if buildable(c)]


class Paper(BufferType):
    """Memory that exists on paper only: addresses from 4096 on, a limit, failures on demand."""

    def __init__(self, *, alignment: int = 32, max_size: int = 1 << 62, base: int = 4096) -> None:
        self.name = "Paper"
        self.device = None
        self.alignment = alignment
        self.base = base
        self.limit = max_size
        self.left = 1 << 62
        self.extra = 0

    @property
    def max_size(self) -> int:
        return self.limit

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes + self.extra

    def alloc_buffer(self, size: int) -> Buffer:
        if size > self.left:
            raise AllocFailed(f"[Paper] {size} bytes")
        self.left -= size
        return Buffer(self, size, self.base, None)


def leaf(name: str, *ne: int) -> Tensor:
    return new_tensor("f32", ne=ne or (8, 8), name=name)


def chain(n: int) -> tuple[Graph, list[Tensor]]:
    """x -> cont -> ... -> cont: nothing in place, two tensors of 256 bytes alive at a time."""
    tensors = [leaf("x")]
    for _ in range(n):
        tensors.append(ops.cont(tensors[-1]))
    return Graph(tensors[-1]), tensors


def intermediates(graph: Graph) -> set[Tensor]:
    return {node for node in graph.nodes if node.view_src is None} - set(graph.ends)


def addresses(plan: AllocPlan) -> dict[Tensor, tuple[int, int]]:
    """One address space for all chunks; buffers 0 and 2 are the same."""
    assert all(size <= 1 << 14 for sizes in plan.chunks for size in sizes)
    return {
        tensor: (slot.buffer_id % 2 * (1 << 20) + slot.chunk * (1 << 14) + slot.offset, slot.size)
        for tensor, slot in plan.slots.items()
    }


# -- the arena


def test_an_arena_takes_the_smallest_hole_that_fits() -> None:
    arena = Chunk()
    a, b, c, d, e = (arena.take(size) for size in (64, 32, 32, 32, 32))
    arena.give(a, 64)
    arena.give(c, 32)
    assert arena.take(32) == c
    assert arena.take(32) == a
    assert arena.take(32) == a + 32
    assert arena.take(64) == e + 32
    assert arena.high == 256
    assert (b, d) == (64, 128)


def test_holes_merge_with_both_neighbours_and_with_the_top() -> None:
    arena = Chunk()
    a, b, c, d = (arena.take(32) for _ in range(4))
    arena.give(a, 32)
    arena.give(c, 32)
    arena.give(b, 32)
    assert arena.free == [(96, 0)]
    arena.give(d, 32)
    assert (arena.free, arena.top, arena.high) == ([], 0, 128)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_an_arena_never_gives_a_byte_twice(steps: list[tuple[bool, int]]) -> None:
    arena: Chunk = Chunk()
    held: list[tuple[int, int]] = []
    for give, number in steps:
        if give and held:
            arena.give(*held.pop(number % len(held)))
        elif not give:
            size = 32 * (number + 1)
            held.append((arena.take(size), size))
        taken = sorted(held)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(taken))
        assert all(start + size <= arena.high for start, size in held)
        # What is neither held nor above the top is a hole, and no two holes touch.
        assert sum(size for size, _ in arena.free) + sum(n for _, n in held) == arena.top
        holes = sorted((start, size) for size, start in arena.free)
        assert all(a + n < b for (a, n), (b, _) in pairwise(holes))


def test_an_arena_of_chunks_opens_a_new_one_only_if_none_has_room() -> None:
    arena = Arena(100)
    first = arena.take(64)
    second = arena.take(64)
    third = arena.take(32)
    large = arena.take(1000)
    assert [chunk.high for chunk in arena.chunks] == [96, 64, 1000]
    assert len({first, second, third, large}) == 4
    arena.give(large, 1000)
    assert arena.take(500) == large


# -- scratch


def test_a_chain_of_any_length_needs_two_tensors() -> None:
    graph, tensors = chain(50)
    plan = plan_scratch(graph, intermediates(graph), alignment=32)
    assert plan.size == 2 * 256
    assert set(plan.offsets) == set(tensors[1:-1])


def test_operations_in_place_need_one() -> None:
    x = leaf("x")
    y = x
    for _ in range(20):
        y = ops.silu(ops.scale(y, 2.0))
    graph = Graph(y)
    plan = plan_scratch(graph, intermediates(graph), alignment=32)
    assert plan.size == 256


def test_a_leaf_that_is_not_wanted_is_left_alone() -> None:
    x = leaf("x")
    a, b = ops.relu(x), ops.neg(x)
    graph = Graph(ops.cont(ops.mul(a, b)))
    plan = plan_scratch(graph, lambda t: t in {a, b}, alignment=32)
    assert set(plan.offsets) == {a, b}
    assert plan.offsets[a] != plan.offsets[b]


@pytest.mark.parametrize("reuse", [False, True])
def test_a_wanted_leaf_is_reused_only_if_told(reuse: bool) -> None:
    x = leaf("x").set_input()
    graph = Graph(ops.neg(ops.relu(x)))
    plan = plan_scratch(graph, lambda t: True, alignment=32, reuse_inputs=reuse)
    assert plan.size == (256 if reuse else 512)


@pytest.mark.parametrize(("position", "in_place"), [(0, True), (1, False)])
def test_a_view_is_taken_over_if_it_begins_where_its_storage_does(
    position: int, in_place: bool
) -> None:
    base = ops.cont(leaf("x", 8, 8))
    view = ops.view_2d(base, 8, 4, base.nb[1], position * base.nb[1])
    graph = Graph(ops.cont(ops.relu(view)))
    plan = plan_scratch(graph, intermediates(graph), alignment=32)
    assert plan.size == (256 if in_place else 256 + 128)


def test_a_view_keeps_its_storage() -> None:
    base = ops.cont(leaf("x"))
    view = ops.transpose(base)
    other = ops.cont(leaf("y"))
    graph = Graph(other, ops.cont(ops.add(other, ops.cont(view))))
    check_plan(graph, sized(graph, plan_scratch(graph, intermediates(graph), alignment=32)))


def test_a_storage_with_a_view_that_is_still_read_is_not_taken_over() -> None:
    base = ops.cont(leaf("x"))
    view = ops.reshape_2d(base, 8, 8)
    graph = Graph(ops.mul(view, ops.relu(base)))
    assert [node.op for node in graph.nodes] == ["cont", "reshape", "relu", "mul"]
    check_plan(graph, sized(graph, plan_scratch(graph, lambda t: True, alignment=32)))


def test_of_two_views_neither_is_taken_over_while_the_other_is_read() -> None:
    base = ops.cont(leaf("x"))
    one, two = ops.reshape_2d(base, 8, 8), ops.reshape_2d(base, 8, 8)
    graph = Graph(ops.mul(one, ops.relu(two)))
    assert [node.op for node in graph.nodes] == ["cont", "reshape", "reshape", "relu", "mul"]
    check_plan(graph, sized(graph, plan_scratch(graph, lambda t: True, alignment=32)))


def test_an_output_may_take_over_but_is_not_taken_over() -> None:
    result = ops.relu(ops.cont(leaf("x"))).set_output()
    graph = Graph(ops.cont(ops.neg(result)))
    plan = plan_scratch(graph, lambda t: t.op != "none", alignment=32)
    check_plan(graph, sized(graph, plan))
    assert plan.size == 3 * 256


def test_what_a_view_in_place_leaves_over_is_used_again() -> None:
    base = ops.cont(leaf("x", 8, 8))
    half = ops.relu(ops.view_2d(base, 8, 4, base.nb[1]))
    rest = ops.cont(half)
    graph = Graph(ops.cont(ops.add(half, rest)))
    plan = plan_scratch(graph, intermediates(graph), alignment=32)
    assert (plan.offsets[half], plan.offsets[rest], plan.size) == (0, 128, 256)


def test_a_node_that_needs_more_than_its_source_has_does_not_take_it_over() -> None:
    base = ops.cont(leaf("x"))
    graph = Graph(ops.cont(ops.relu(base)))
    plan = plan_scratch(
        graph,
        intermediates(graph),
        alignment=32,
        alloc_size=lambda t: t.nbytes + (64 if t.op == "relu" else 0),
    )
    assert plan.size == 256 + 320


def sized(graph: Graph, plan: Any) -> dict[Tensor, tuple[int, int]]:
    assert all(start + t.nbytes <= plan.size for t, start in plan.offsets.items())
    return {tensor: (start, tensor.nbytes) for tensor, start in plan.offsets.items()}


@given(graph=graphs(), alignment=st.sampled_from([8, 32, 64]))
def test_scratch_never_overlaps_what_is_alive(graph: Graph, alignment: int) -> None:
    plan = plan_scratch(graph, intermediates(graph), alignment=alignment)
    assert all(offset % alignment == 0 for offset in plan.offsets.values())
    check_plan(graph, sized(graph, plan))


@given(graph=graphs(), reuse=st.booleans())
def test_nothing_overlaps_if_leafs_and_results_are_planned_too(graph: Graph, reuse: bool) -> None:
    plan = plan_scratch(graph, lambda t: True, alignment=32, reuse_inputs=reuse)
    check_plan(graph, sized(graph, plan), leafs_must_last=not reuse)


@given(graph=graphs())
def test_scratch_is_no_more_than_all_tensors_side_by_side(graph: Graph) -> None:
    wanted = intermediates(graph)
    plan = plan_scratch(graph, wanted, alignment=32)
    assert plan.size <= sum(-(-t.nbytes // 32) * 32 for t in wanted)


def test_sizes_of_the_buffer_type_count() -> None:
    graph, tensors = chain(4)
    plan = plan_scratch(
        graph, intermediates(graph), alignment=128, alloc_size=lambda t: t.nbytes + 1
    )
    assert plan.size == 2 * 384
    assert {plan.offsets[t] % 128 for t in tensors[1:-1]} == {0}


def test_empty_tensors_take_nothing() -> None:
    x = leaf("x", 0, 4)
    graph = Graph(ops.cont(ops.cont(x)))
    plan = plan_scratch(graph, lambda t: True, alignment=32)
    assert plan.size == 0


@pytest.mark.parametrize("alignment", [0, -32, 24])
def test_an_alignment_is_a_power_of_two(alignment: int) -> None:
    graph, _ = chain(2)
    with pytest.raises(InvalidArgument, match=str(alignment)):
        plan_scratch(graph, lambda t: True, alignment=alignment)


def test_a_buffer_type_that_says_too_little_is_refused() -> None:
    graph, _ = chain(2)
    with pytest.raises(InvalidArgument, match="f32"):
        plan_scratch(graph, lambda t: True, alignment=32, alloc_size=lambda t: t.nbytes - 1)


# -- whole graphs


def place_weights(case: dict[str, Any], tensors: dict[str, Tensor]) -> Buffer:
    weights = [tensors[t["name"]] for t in case["graph"]["tensors"] if t["kind"] == "weight"]
    buffer = Buffer(Paper(), 1 << 30, 1 << 20, None)
    allocator = TensorAllocator(buffer)
    for weight in weights:
        allocator.alloc(weight)
    return buffer


@pytest.mark.feature("AL-09")
@pytest.mark.parametrize("case", RECORDED)
def test_no_larger_than_recorded(case: dict[str, Any]) -> None:
    graph, tensors = make_graph(case)
    weights = place_weights(case, tensors)
    kind = Paper(alignment=case["alignment"])
    plan = plan_graph(graph, types=[kind], reuse_inputs=True)
    assert plan.sizes()[0] <= case["gallocr_size"]
    storages = {name for name in case["offsets"] if tensors[name].view_src is None}
    assert {t.name for t in plan.slots} == storages
    check_plan(graph, addresses(plan), leafs_must_last=False)
    assert weights.size  # alive until here
    assert GraphAllocator(kind, reuse_inputs=True).reserve_size(graph) == plan.sizes()


@given(graph=graphs(), data=st.data(), reuse=st.booleans())
def test_nothing_overlaps_in_several_buffers_of_chunks(
    graph: Graph, data: st.DataObject, reuse: bool
) -> None:
    one, two = Paper(max_size=600), Paper()
    types = [one, two, one]
    ids = st.integers(0, 2)
    node_ids = [data.draw(ids) for _ in graph.nodes]
    leaf_ids = [data.draw(ids) for _ in graph.leafs]
    plan = plan_graph(graph, node_ids, leaf_ids, types=types, reuse_inputs=reuse)
    assert plan.chunks[2] == ()
    for tensor, slot in plan.slots.items():
        wanted = (
            node_ids[graph.nodes.index(tensor)]
            if tensor in graph.nodes
            else leaf_ids[graph.leafs.index(tensor)]
        )
        assert slot.buffer_id == wanted
    check_plan(graph, addresses(plan), leafs_must_last=not reuse)


def test_ids_must_fit() -> None:
    graph, _ = chain(2)
    with pytest.raises(InvalidArgument, match="node ids"):
        plan_graph(graph, [0], types=[Paper()])
    with pytest.raises(InvalidArgument, match="id 1"):
        plan_graph(graph, [0, 1], types=[Paper()])
    with pytest.raises(InvalidArgument, match="id -1"):
        plan_graph(graph, None, [-1], types=[Paper()])


# -- TensorAllocator


@pytest.mark.feature("AL-01")
@pytest.mark.feature("AL-02")
@pytest.mark.feature("AL-03")
def test_tensors_lie_one_behind_the_other() -> None:
    buffer = Buffer(Paper(), 1000, 4096 + 8, None)  # its base is not aligned
    allocator = TensorAllocator(buffer)
    a, b = leaf("a", 3), leaf("b", 5)
    assert allocator.alloc(a) is a
    allocator.alloc(b)
    assert (a.address, b.address) == (4096 + 32, 4096 + 64)
    assert a.buffer is buffer


@pytest.mark.feature("AL-03")
def test_a_full_buffer_takes_no_more_and_stays_as_it_is() -> None:
    allocator = TensorAllocator(Buffer(Paper(), 64, 4096, None))
    allocator.alloc(leaf("a", 9))
    large, view = leaf("large", 5, 2), ops.transpose(leaf("b"))
    with pytest.raises(CapacityExceeded, match="large"):
        allocator.alloc(large)
    assert large.placement is None
    with pytest.raises(InvalidArgument):
        allocator.alloc(view)
    assert allocator.offset == 64


# -- GraphAllocator


@pytest.fixture
def kind() -> Iterator[Paper]:
    yield Paper()
    gc.collect()


@pytest.mark.feature("AL-04")
@pytest.mark.feature("AL-10")
@pytest.mark.feature("AL-11")
def test_alloc_graph_places_all_that_has_no_memory(kind: Paper) -> None:
    allocator = GraphAllocator(kind)
    graph, tensors = chain(3)
    assert allocator.buffer_size() == 0
    allocator.alloc_graph(graph)
    assert all(t.buffer is allocator.buffers[0] for t in tensors)
    assert allocator.buffer_size() == allocator.reserve_size(graph)[0] == 3 * 256
    assert allocator.buffers[0].usage is BufferUsage.COMPUTE
    readable = [t.placement.readable for t in tensors if t.placement is not None]
    assert readable == [True, False, False, True]
    with pytest.raises(AlreadyAllocated, match="Graph"):
        allocator.alloc_graph(graph)


@pytest.mark.feature("AL-07")
def test_reserve_places_nothing_and_a_smaller_graph_needs_no_more(kind: Paper) -> None:
    allocator = GraphAllocator(kind)
    large, tensors = chain(9)
    allocator.reserve(large)
    assert tensors[0].placement is None
    buffers = allocator.buffers
    for n in (2, 5):
        allocator.alloc_graph(chain(n)[0])
    assert allocator.buffers == buffers


def test_placing_a_graph_unplaces_the_one_before(kind: Paper) -> None:
    allocator = GraphAllocator(kind)
    x = leaf("x")
    first, second = Graph(ops.cont(x)), Graph(ops.cont(ops.cont(x)))
    allocator.alloc_graph(first)
    allocator.alloc_graph(second)
    assert first.memory is None
    assert first.ends[0].placement is None
    assert x.placement is not None
    check_addresses(second)
    allocator.alloc_graph(first)
    check_addresses(first)


def check_addresses(graph: Graph) -> None:
    placed = {t.root for t in (*graph.nodes, *graph.leafs)}
    check_plan(graph, {t: ((t.address or 0) - 4096, t.nbytes) for t in placed})


@pytest.mark.feature("AL-10")
@given(graph=graphs())
def test_addresses_never_overlap(graph: Graph) -> None:
    GraphAllocator(Paper()).alloc_graph(graph)
    check_addresses(graph)


def test_a_leaf_with_memory_stays_where_it_is(kind: Paper) -> None:
    graph, tensors = chain(2)
    weights = Buffer(Paper(), 256, 1 << 20, None)
    weights.place(tensors[0], 0)
    GraphAllocator(kind).alloc_graph(graph)
    assert tensors[0].address == 1 << 20


def test_failing_to_get_memory_changes_nothing(kind: Paper) -> None:
    allocator = GraphAllocator(kind)
    small, tensors = chain(2)
    allocator.alloc_graph(small)
    before = [t.address for t in tensors]
    kind.left = 1000
    large = Graph(ops.cont(leaf("y", 64, 64)))
    with pytest.raises(AllocFailed):
        allocator.alloc_graph(large)
    assert [t.address for t in tensors] == before
    assert small.memory is not None
    assert large.memory is None
    assert large.ends[0].placement is None
    with pytest.raises(AllocFailed):
        allocator.reserve(large)
    assert allocator.buffer_size() == 3 * 256 - 256 or allocator.buffer_size() == 3 * 256


@pytest.mark.feature("AL-09")
def test_measuring_changes_nothing(kind: Paper) -> None:
    allocator = GraphAllocator(kind)
    small, tensors = chain(2)
    allocator.alloc_graph(small)
    left = kind.left
    assert allocator.reserve_size(Graph(ops.cont(leaf("y", 64, 64)))) == (2 * 16384,)
    assert kind.left == left
    assert tensors[0].placement is not None


@pytest.mark.feature("AL-05")
@pytest.mark.feature("AL-08")
def test_several_types_and_the_same_one_twice(kind: Paper) -> None:
    other = Paper(base=1 << 20)
    allocator = GraphAllocator([kind, other, kind])
    graph, tensors = chain(3)
    ids = [1, 2, 0]
    assert allocator.reserve_size(graph, ids, [0]) == (3 * 256, 256, 0)
    with pytest.raises(InvalidState, match="reserve first"):
        allocator.alloc_graph(graph)
    allocator.reserve(graph, ids, [0])
    allocator.alloc_graph(graph)
    first, second = allocator.buffers
    assert [t.buffer for t in tensors] == [first, second, first, first]
    assert [allocator.buffer_size(i) for i in range(3)] == [768, 256, 0]
    allocator.alloc_graph(chain(3)[0])  # alike: the ids still mean the same
    with pytest.raises(InvalidState, match="reserve first"):
        allocator.alloc_graph(chain(4)[0])


def test_equal_sizes_and_other_edges_are_another_structure(kind: Paper) -> None:
    def make(first: bool) -> Graph:
        x = leaf("x")
        a = ops.cont(x)
        c = ops.cont(ops.cont(a))
        return Graph(ops.add(c, a if first else c))

    allocator = GraphAllocator([kind, Paper()])
    allocator.reserve(make(False))
    with pytest.raises(InvalidState, match="reserve first"):
        allocator.alloc_graph(make(True))
    single = GraphAllocator(kind)
    single.reserve(make(False))
    graph = make(True)
    single.alloc_graph(graph)
    check_addresses(graph)


def test_a_limit_makes_chunks() -> None:
    kind = Paper(max_size=600)
    allocator = GraphAllocator(kind)
    graph, _ = chain(3)
    allocator.alloc_graph(graph)
    assert [buffer.size for buffer in allocator.buffers] == [512, 256]
    assert allocator.buffer_size() == 768


@pytest.mark.feature("AL-06")
def test_close_unplaces(kind: Paper) -> None:
    allocator = GraphAllocator(kind)
    graph, tensors = chain(2)
    allocator.alloc_graph(graph)
    allocator.close()
    allocator.close()
    assert [t.placement for t in tensors] == [None] * 3
    assert graph.memory is None
    assert allocator.buffer_size() == 0
    allocator.alloc_graph(graph)
    assert tensors[0].placement is not None


def test_a_tensor_keeps_its_memory_alive(kind: Paper) -> None:
    graph, tensors = chain(1)
    GraphAllocator(kind).alloc_graph(graph)
    gc.collect()
    assert tensors[1].buffer is not None
    assert tensors[1].buffer.size == 512


def test_what_is_no_type_is_refused(kind: Paper) -> None:
    with pytest.raises(InvalidArgument):
        GraphAllocator([])
    with pytest.raises(InvalidHandle):
        GraphAllocator([kind, "CPU"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="id 1"):
        GraphAllocator(kind).buffer_size(1)


def test_repr_shows_sizes(kind: Paper) -> None:
    allocator = GraphAllocator(kind)
    allocator.alloc_graph(chain(1)[0])
    assert repr(allocator) == "<GraphAllocator Paper: 512 bytes>"
