"""Runs that are requested again in the same words: other arrays, the same checks.

Here: the values that `PreparedRun` accepts, refuses and releases. Not here: the first run
(test_compute.py).
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import aggml
from aggml import Graph, ops

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def be() -> Iterator[aggml.Backend]:
    with aggml.get_device("CPU").backend(n_threads=1) as backend:
        yield backend


def doubled(be: aggml.Backend, ne: tuple[int, ...], dtype: str = "f32") -> tuple[Graph, Any]:
    """A graph of y = x + x that was run once, with a function that runs it again."""
    x = aggml.new_tensor(dtype, ne=ne, name="x").set_input()
    graph = Graph(ops.add(x, x).set_name("y"))
    be.alloc_graph(graph)
    element = ml_dtypes.bfloat16 if dtype == "bf16" else np.float32
    be.run(graph, {"x": np.zeros(ne[::-1], element)}, "y").get()
    return graph, lambda value: be.run(graph, {"x": value}, "y").get()


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
        np.arange(6, dtype=np.float32).reshape(3, 2).T,
        np.arange(6, dtype=np.float32)[::-1].reshape(2, 3),
        np.arange(6, dtype=np.float32),
        np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(6, dtype=np.float32).data,
    ],
    ids=["plain", "gaps", "transposed", "backwards", "flat", "4-D", "fortran", "memoryview"],
)
def test_any_array_that_fits_is_taken_again(be: aggml.Backend, value: Any) -> None:
    _, again = doubled(be, (3, 2))
    assert (again(value) == 2 * np.asarray(value).reshape(2, 3)).all()


def test_bfloat16_comes_and_goes_as_such_or_as_bits(be: aggml.Backend) -> None:
    _, again = doubled(be, (4,), "bf16")
    value: Any = np.array([1, 2, 3, 4], ml_dtypes.bfloat16)
    for given in (value, value.view(np.uint16)):
        result = again(given)
        assert result.dtype == ml_dtypes.bfloat16
        assert (result == 2 * value).all()


def test_an_array_that_does_not_fit_is_refused_and_nothing_is_queued(be: aggml.Backend) -> None:
    graph, again = doubled(be, (3, 2))
    before = be.stream.native.submitted
    for wrong in (np.zeros((3, 2), np.float32), np.zeros((2, 3)), [1.0] * 6, None):
        with pytest.raises(aggml.LayoutMismatch, match=r"\[Backend\.run\]"):
            again(wrong)
    read_only = np.ones((2, 3), np.float32)
    read_only.flags.writeable = False
    assert be.stream.native.submitted == before
    assert (again(read_only) == 2).all()
    found = be.plans.find(graph)
    assert found is not None
    assert found.prepared


def test_an_empty_tensor_and_many_inputs(be: aggml.Backend) -> None:
    _, again = doubled(be, (0, 3))
    assert again(np.zeros((3, 0), np.float32)).shape == (3, 0)
    leafs = [aggml.new_tensor("f32", ne=(2,), name=f"x{i}").set_input() for i in range(9)]
    ends = [ops.scale(x, 2.0) for x in leafs]
    graph = Graph(*ends)
    be.alloc_graph(graph)
    for step in range(3):
        given = {x: np.full(2, i + step, np.float32) for i, x in enumerate(leafs)}
        found = be.run(graph, given, ends).get()
        assert [array.tolist() for array in found] == [[2.0 * (i + step)] * 2 for i in range(9)]


def test_each_run_has_results_of_its_own_and_lets_go_of_what_it_was_given(
    be: aggml.Backend,
) -> None:
    _, again = doubled(be, (3, 2))
    value = np.ones((2, 3), np.float32)
    alone = sys.getrefcount(value)  # 1 or 2: some interpreters count the argument's own reference
    first, second = again(value), again(value)
    assert first is not second
    assert not np.shares_memory(first, second)
    be.stream.native.release_finished()
    gc.collect()
    assert sys.getrefcount(value) == alone
    assert sys.getrefcount(first) == alone
    assert be.stream.native.kept == 0


def test_runs_that_differ_in_shape_or_reuse_are_prepared_apart(be: aggml.Backend) -> None:
    graph, _ = doubled(be, (3, 2))
    value = np.ones((2, 3), np.float32)
    for _ in range(2):
        assert be.run(graph, {"x": value}, "y", shape=(6,)).get().shape == (6,)
        assert be.run(graph, {"x": value}, ["y"], shape=[(3, 2)]).get()[0].shape == (3, 2)
        assert be.run(graph, {"x": value}, "y").get().shape == (2, 3)
        assert be.run(graph, {}, "y", reuse=["x"]).get().shape == (2, 3)
        with pytest.raises(aggml.NotAllocated, match="an input of an earlier run"):
            be.run(graph, {}, "y")


def test_a_tensor_that_moved_is_read_where_it_lies_now(be: aggml.Backend) -> None:
    w = aggml.new_tensor("f32", ne=(4,), name="w")
    x = aggml.new_tensor("f32", ne=(4,), name="x").set_input()
    graph = Graph(ops.add(x, w).set_name("y"))
    memory = be.alloc([w])
    be.alloc_graph(graph)
    one = np.ones(4, np.float32)
    for value in (1, 2, 3):
        be.set(w, np.full(4, value, np.float32)).get()
        for _ in range(2):
            assert (be.run(graph, {"x": one}, "y").get() == 1 + value).all()
        memory.close()
        with pytest.raises(aggml.NotAllocated):
            be.run(graph, {"x": one}, "y")
        memory = be.alloc([w])


def test_scratch_that_grew_serves_what_was_prepared_before(be: aggml.Backend) -> None:
    def chain(n: int) -> Graph:
        x = aggml.new_tensor("f32", ne=(n,), name="x").set_input()
        return Graph(ops.sqr(ops.mul(ops.sqr(x), ops.sqrt(x))).set_name("y"))

    small, large = chain(64), chain(1 << 16)
    be.alloc_graph(small)
    value = np.full(64, 4, np.float32)
    expected = be.run(small, {"x": value}, "y").get()
    before = be.memory.block
    be.alloc_graph(large)
    assert be.memory.block is not before
    assert (be.run(small, {"x": value}, "y").get() == expected).all()


def test_a_closed_backend_names_the_call(be: aggml.Backend) -> None:
    graph, again = doubled(be, (3, 2))
    be.set(graph.leafs[0], np.ones((2, 3), np.float32)).get()
    for _ in range(2):
        be.graph_compute(graph).get()
    be.close()
    with pytest.raises(aggml.InvalidState, match=r"\[Backend.run\].*closed"):
        again(np.zeros((2, 3), np.float32))
    with pytest.raises(aggml.InvalidState, match=r"\[Backend.graph_compute\].*closed"):
        be.graph_compute(graph)
