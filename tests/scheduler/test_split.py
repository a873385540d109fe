"""Which backend computes which node, and where a graph is cut: as ggml does, and for any graph.

Nothing is run here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory.random_graphs import graphs
from scheduler.recorded_schedules import Recorded, cases, rebuild

import aggml
from aggml import Graph, new_tensor, ops
from aggml.devices.sim import SimDevice
from aggml.ops.table import VIEWS
from aggml.scheduler.deciding.assign import Assignment, Question, assign_backends
from aggml.scheduler.deciding.split import Split, cut_into_splits
from aggml.stream.slices import finish

CASES = [pytest.param(raw, id=raw["id"]) for raw in cases()]


def solve(
    graph: Graph,
    backends: list[aggml.Backend],
    pins: dict[aggml.Tensor, int] | None = None,
    *,
    op_offload: bool = False,
) -> tuple[Question, Assignment, list[Split]]:
    q = Question(backends, [b.buffer_type for b in backends])
    found = finish(assign_backends(graph, q, pins or {}, op_offload=op_offload))
    return q, found, finish(cut_into_splits(graph, q, found))


def overruled(case: Recorded) -> bool:
    """Whether ggml moved a node away from the backend to which it was pinned."""
    return any(case.raw["backend_of"][t.name] != b for t, b in case.pins.items())


def test_one_recorded_case_overrules_a_pin() -> None:
    assert [r["id"] for r in cases() if overruled(rebuild(r))] == ["same_buffer_type_1"]


@pytest.mark.parametrize("raw", CASES)
def test_recorded_backends_and_splits(raw: dict[str, Any]) -> None:
    case = rebuild(raw)
    _, found, splits = solve(case.graph, case.backends, case.pins, op_offload=raw["op_offload"])
    assert [n.name for n in case.graph.nodes] == raw["order"]
    if overruled(case):  # here the pin wins
        assert all(found.backend[t] == b for t, b in case.pins.items())
        return
    assert {name: found.backend[case.tensors[name]] for name in raw["backend_of"]} == raw[
        "backend_of"
    ]
    mine = [
        {
            "backend": s.backend,
            "inputs": [copy.tensor.name for copy in s.inputs],
            "nodes": [n.name for n in case.graph.nodes[s.start : s.end] if n.op not in VIEWS],
        }
        for s in splits
    ]
    assert mine == raw["splits"]
    assert len(splits) == raw["n_splits"]


def sims(*settings: dict[str, Any]) -> list[aggml.Backend]:
    devices = [SimDevice(f"SIM{i}", **given) for i, given in enumerate(settings)]
    return [*(d.backend() for d in devices), aggml.get_device("CPU").backend()]


def test_a_pin_on_the_same_memory_holds_against_the_upgrade() -> None:
    cpu = aggml.get_device("CPU")
    x = new_tensor("f32", ne=8).set_input()
    y = ops.sqr(ops.relu(x))
    _, found, splits = solve(Graph(y), [cpu.backend(), cpu.backend()], {y: 1})
    assert found.backend[y] == 1
    assert found.cause[y] == "usr"
    assert [(s.backend, s.inputs) for s in splits] == [(0, ()), (1, ())]


def test_a_node_that_nobody_runs_is_refused() -> None:
    x = new_tensor("f32", ne=8)
    graph = Graph(ops.sqr(x))
    with pytest.raises(aggml.NoBackendForOp, match="sqr"):
        solve(graph, [SimDevice("A", unsupported=["sqr"]).backend()] * 2)


def test_a_placed_tensor_whose_op_cannot_run_there_is_refused() -> None:
    backends = sims({"unsupported": ["set_rows"]})
    cache = new_tensor("f32", ne=(8, 4), name="cache")
    backends[0].alloc([cache])
    rows, ids = new_tensor("f32", ne=(8, 2)), new_tensor("i64", ne=2)
    with pytest.raises(aggml.NoBackendForOp, match="cache"):
        solve(Graph(ops.set_rows(cache, rows, ids)), backends)


def test_a_node_runs_where_the_storage_lies_that_it_writes() -> None:
    backends = sims({"unsupported": ["scale"]})
    x = new_tensor("f32", ne=8, name="x")
    y = ops.relu(x)
    z = ops.scale_inplace(y, 2.0)
    with pytest.raises(aggml.NoBackendForOp, match="cannot run 'scale'"):
        solve(Graph(z), backends, {y: 0})


def test_a_copy_is_made_anew_after_its_storage_was_written() -> None:
    backends = sims({})
    cache = new_tensor("f32", ne=8, name="cache")
    backends[1].alloc([cache])
    x = new_tensor("f32", ne=8, name="x")
    before = ops.relu(cache)
    written = ops.cpy(x, cache)
    after = ops.sqr(cache)  # no edge of the graph leads from the write to this read
    _, _, splits = solve(Graph(before, written, after), backends, {before: 0, written: 1, after: 0})
    assert [(s.backend, [c.tensor.name for c in s.inputs]) for s in splits] == [
        (0, ["cache"]),
        (1, []),
        (0, ["cache"]),
    ]
    assert [c.version for s in splits for c in s.inputs] == [0, 1]


def test_rope_and_attention_do_not_follow_their_small_weights() -> None:
    backends = sims({})
    factors = new_tensor("f32", ne=4, name="factors")
    backends[0].alloc([factors], usage="weights")
    x, pos = new_tensor("f32", ne=(8, 1, 2)).set_input(), new_tensor("i32", ne=2).set_input()
    y = ops.rope_ext(x, pos, factors, n_dims=8, mode="neox", freq_base=1e4)
    _, found, _ = solve(Graph(y), backends)
    assert found.cause[y] != "1.wgt2"


def test_offload_asks_the_device_and_takes_host_weights_only() -> None:
    w = new_tensor("f32", ne=(8, 8), name="w")
    x = new_tensor("f32", ne=(8, 2), name="x").set_input()
    y = ops.mul_mat(w, x)
    backends = sims({"offload": ["mul_mat"]})
    backends[1].alloc([w], usage="weights")
    graph = Graph(y)
    _, found, _ = solve(graph, backends, op_offload=True)
    assert (found.backend[y], found.cause[y]) == (0, "1.off")
    _, found, _ = solve(graph, backends, op_offload=False)
    assert (found.backend[y], found.cause[y]) == (1, "1.wgt0")


@pytest.mark.parametrize("n", [29, 30, 31, 65])
def test_a_split_with_many_inputs_ends_at_its_capacity(n: int) -> None:
    backends = sims({})
    leafs = [new_tensor("f32", ne=4, name=f"x{i}").set_input() for i in range(n)]
    total = leafs[0]
    for leaf in leafs[1:]:
        total = ops.add(total, leaf)
    graph = Graph(total)
    _, _, splits = solve(graph, backends, dict.fromkeys(graph.nodes, 0))
    assert sum(len(s.inputs) for s in splits) == n
    assert len(splits) == -(-n // 30)


@given(graphs(), st.data())
def test_splits_cover_the_graph_once_and_in_order(graph: Graph, data: st.DataObject) -> None:
    unsupported = data.draw(st.sets(st.sampled_from(["relu", "soft_max", "mul_mat"])))
    backends = sims({"unsupported": unsupported}, {}, {"reads_host": True})
    plain = [n for n in graph.nodes if n.view_src is None]
    pins = {
        n: data.draw(st.integers(1, 3))
        for n in (data.draw(st.lists(st.sampled_from(plain), max_size=4)) if plain else [])
    }
    try:
        q, found, splits = solve(graph, backends, pins)
    except aggml.NoBackendForOp:  # an in-place op that the device of its storage cannot run
        return
    assert splits[0].start == 0
    assert splits[-1].end == len(graph.nodes)
    assert all(a.end == b.start for a, b in pairwise(splits))
    assert all(found.backend[t] == b for t, b in pins.items())
    made = set()
    for split in splits:
        made |= set(split.inputs)
        for node in graph.nodes[split.start : split.end]:
            if node.op in VIEWS:
                continue
            assert found.backend[node] == split.backend
            assert q.supports(split.backend, node)
            for source in node.src:
                if source is None:
                    continue
                if source in split.swaps:
                    assert split.swaps[source] in made
                    assert split.swaps[source].backend == split.backend
                else:
                    assert q.reachable(source, split.backend, found.backend)


def test_a_graph_without_nodes_is_one_empty_split() -> None:
    _, _, splits = solve(Graph(new_tensor("f32", ne=4)), sims({}))
    assert [(s.start, s.end, s.inputs) for s in splits] == [(0, 0, ())]
