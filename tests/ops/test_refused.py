"""Calls that ggml stops: each fails here too, with an exception that names the tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ops.recorded import check_refused, refusals

import aggml
from aggml import new_tensor, ops

if TYPE_CHECKING:
    from corpus_loader import Case


@pytest.mark.parametrize("case", refusals(stage_build=True))
def test_refused_when_built(case: Case) -> None:
    with pytest.raises(aggml.AggmlError, match=r"^\[\w+\] "):
        check_refused(case, None)


@pytest.mark.parametrize("case", refusals(stage_build=False))
def test_refused_before_there_is_a_result(case: Case, any_backend: aggml.Backend) -> None:
    with pytest.raises(aggml.AggmlError):
        check_refused(case, any_backend)


def test_the_backend_goes_on_after_a_refusal(any_backend: aggml.Backend) -> None:
    a = new_tensor("f32", ne=(4, 3), name="table")
    ids = new_tensor("i32", ne=(1,), name="ids")
    rows = ops.get_rows(a, ids)
    graph = aggml.Graph(rows)
    memory = any_backend.alloc([a, ids])
    placed = any_backend.alloc_graph(graph)
    any_backend.set(a, np.arange(12, dtype=np.float32).reshape(3, 4))

    any_backend.set(ids, np.array([3], np.int32))
    failed = any_backend.graph_compute(graph)
    failed.wait(5)
    assert isinstance(failed.exception(), aggml.OutOfBounds)

    any_backend.set(ids, np.array([2], np.int32))
    any_backend.graph_compute(graph).wait(5)
    result = any_backend.get(rows)
    result.wait(5)
    assert result.result().tolist() == [8, 9, 10, 11]
    assert memory.size
    assert placed.size
