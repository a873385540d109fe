"""The allocators that place tensors: one by one, and graphs; growing, measuring, refusing."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from memory.paper import Paper, chain, check_addresses, leaf
from memory.random_graphs import graphs

from aggml import (
    AllocFailed,
    AlreadyAllocated,
    Buffer,
    BufferUsage,
    CapacityExceeded,
    Graph,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    ops,
)
from aggml.memory.allocators import GraphAllocator, TensorAllocator

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.mark.long
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
    allocator.alloc_graph(chain(3)[0])  # an equivalent graph: the buffer ids stay valid for it
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
