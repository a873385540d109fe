"""Plans of whole graphs: no larger than ggml's, over several buffers, without overlap."""

from __future__ import annotations

from typing import Any

import pytest
from corpus_loader import allocator_cases
from hypothesis import given
from hypothesis import strategies as st
from memory.memory_model import check_layout
from memory.paper import Paper, addresses, chain
from memory.random_graphs import graphs
from memory.recorded_graphs import buildable, make_graph

from aggml import (
    Buffer,
    Graph,
    InvalidArgument,
    Tensor,
)
from aggml.memory.allocator import lay_out_graph
from aggml.memory.allocators import GraphAllocator, TensorAllocator

RECORDED = [pytest.param(c, id=c["id"]) for c in allocator_cases() if buildable(c)]


def test_no_recorded_case_is_left_out() -> None:
    assert len(RECORDED) == len(allocator_cases())


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
    layout = lay_out_graph(graph, types=[kind], reuse_inputs=True)
    assert layout.sizes()[0] <= case["gallocr_size"]
    storages = {name for name in case["offsets"] if tensors[name].view_src is None}
    assert {t.name for t in layout.slots} == storages
    check_layout(graph, addresses(layout), leafs_must_last=False)
    assert weights.size  # keeps the weights alive until here
    assert GraphAllocator(kind, reuse_inputs=True).reserve_size(graph) == layout.sizes()


@pytest.mark.long
@given(graph=graphs(), data=st.data(), reuse=st.booleans())
def test_nothing_overlaps_in_several_buffers_of_chunks(
    graph: Graph, data: st.DataObject, reuse: bool
) -> None:
    one, two = Paper(max_size=600), Paper()
    types = [one, two, one]
    ids = st.integers(0, 2)
    node_ids = [data.draw(ids) for _ in graph.nodes]
    leaf_ids = [data.draw(ids) for _ in graph.leafs]
    layout = lay_out_graph(graph, node_ids, leaf_ids, types=types, reuse_inputs=reuse)
    assert layout.chunks[2] == ()
    for tensor, slot in layout.slots.items():
        wanted = (
            node_ids[graph.nodes.index(tensor)]
            if tensor in graph.nodes
            else leaf_ids[graph.leafs.index(tensor)]
        )
        assert slot.buffer_id == wanted
    check_layout(graph, addresses(layout), leafs_must_last=not reuse)


def test_ids_must_fit() -> None:
    graph, _ = chain(2)
    with pytest.raises(InvalidArgument, match="node ids"):
        lay_out_graph(graph, [0], types=[Paper()])
    with pytest.raises(InvalidArgument, match="id 1"):
        lay_out_graph(graph, [0, 1], types=[Paper()])
    with pytest.raises(InvalidArgument, match="id -1"):
        lay_out_graph(graph, None, [-1], types=[Paper()])
